"""The code of a prompt that an answer will repeat: found whole, and nothing else taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.spec import sources
from tests.depth import cases

FILE = "".join(f"def function_{number}(x):\n    return x + {number}\n\n" for number in range(12))
OTHER = FILE.replace("function", "method").replace("+", "*")
CHANGE = "".join(f"-    return x + {number}\n+    return {number}\n" for number in range(12))
SNIPPET = f"# ... existing code ...\n{OTHER}# ... rest of the code ...\n"


def fenced(code: str, info: str = "python", mark: str = "```") -> str:
    return f"{mark}{info}\n{code}{mark}"


def test_one_long_block_is_found_with_its_fence() -> None:
    text = f"Please add a docstring:\n\n{fenced(FILE)}\n\nAnswer with the whole file."
    assert sources.find([text]) == fenced(FILE)


def test_several_files_are_taken_in_their_order() -> None:
    text = f"a.py:\n{fenced(FILE)}\nb.py:\n{fenced(OTHER, 'py', '~~~~')}\nRename x."
    assert sources.find([text]) == f"{fenced(FILE)}\n\n{fenced(OTHER, 'py', '~~~~')}"


def test_of_files_that_are_too_long_together_the_longest_is_taken() -> None:
    long = FILE * (sources.MAX_CHARACTERS // len(FILE))
    assert sources.find([f"{fenced(FILE)}\n{fenced(long)}\n{fenced(OTHER)}"]) == fenced(long)
    assert sources.find([fenced(long + FILE)]) == ""


@pytest.mark.parametrize(
    "change", [fenced(CHANGE, "diff"), fenced(CHANGE, "Patch x"), fenced(SNIPPET)]
)
def test_a_change_is_no_file(change: str) -> None:
    assert sources.find([f"{fenced(FILE)}\nApply this:\n{change}\n"]) == fenced(FILE)
    assert sources.find([change]) == ""


def test_an_ellipsis_in_code_makes_it_no_change() -> None:
    code = f'{FILE}print("... of the existing ones")\n'
    assert sources.find([fenced(code)]) == fenced(code)


def test_short_examples_are_no_file() -> None:
    assert sources.find([f"{fenced('x = 1')} and {fenced(FILE)[:150]}```"]) == ""


def test_the_latest_text_with_code_decides() -> None:
    texts = [f"Change it:\n{fenced(FILE)}", f"Now this:\n{fenced(OTHER)}", "And faster, please."]
    assert sources.find(texts) == fenced(OTHER)
    assert sources.find(texts[:1]) == fenced(FILE)
    assert sources.find([]) == sources.find(["", "no code"]) == ""


def test_a_longer_fence_holds_shorter_ones() -> None:
    document = f"# Use\n\n{fenced(FILE)}\n"
    whole = fenced(document, "markdown", "````")
    assert sources.find([f"Translate:\n{whole}\n"]) == whole


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{FILE}",
        f"    ```python\n{FILE}    ```",
        f"```a`b\n{FILE}```",
        f"```\n{FILE}~~~",
        f"````\n{FILE}```",
        f"text ```\n{FILE}text ```\n",
    ],
    ids=["not closed", "indented code", "backtick in info", "other mark", "shorter", "in a line"],
)
def test_what_is_no_fenced_block_is_not_found(text: str) -> None:
    assert sources.find([text]) == ""


def test_line_ends_are_kept() -> None:
    code = FILE.replace("\n", "\r\n")
    assert sources.find([f"```python\r\n{code}```\r\n"]) == f"```python\n{code}```"


def test_morphs_code_is_found_as_its_model_says_it() -> None:
    text = f"<instruction>Add it</instruction>\n<code>{FILE}</code>\n<update>{SNIPPET}</update>"
    assert sources.find([text]) == FILE
    in_a_line = text.replace("\n<code>", " <code>").replace("\n<update>", " <update>")
    assert sources.find([in_a_line]) == FILE


KORTIX = (
    "Merge all changes from the <update> snippet into the <code> below.\n"
    "Output only the updated code, enclosed within <updated-code> and </updated-code> tags.\n\n"
)


def test_kortix_code_is_found_in_the_tags_of_its_answer() -> None:
    expected = f"<updated-code>{FILE}</updated-code>"
    code, update = f"<code>{FILE}</code>", f"<update>{SNIPPET}</update>"
    assert sources.find([f"{KORTIX}{code}\n\n{update}\n\nProvide the code."]) == expected
    assert sources.find([f"{KORTIX}{update}\n\n{code}\n\nProvide the code."]) == expected


def test_code_that_holds_such_tags_itself_is_found_whole() -> None:
    page = f"<p>\n<code>a</code> and <code>b</code>\n</p>\n{FILE}"
    assert sources.find([f"<code>{page}</code>\n<update>{SNIPPET}</update>"]) == page


def test_tags_of_a_web_page_are_no_tags_of_ours() -> None:
    assert sources.find([f"Why is <code>{FILE}</code> slow?"]) == ""


lines = st.text(st.sampled_from("ab `~<>/\n\r"), max_size=40)
infos = st.sampled_from(["", "python", "c++ file=a.cc"])


@cases(200)
@given(st.lists(lines, max_size=8), lines, infos, st.integers(0, 3), st.integers(3, 6))
def test_any_code_in_a_fence_that_it_does_not_hold_is_found(
    body: list[str], before: str, info: str, indent: int, length: int
) -> None:
    code = "".join(f"{line}\n" for line in body) + "x" * sources.MIN_CHARACTERS + "\n"
    while "`" * length in code:
        length += 1
    fence = " " * indent + "`" * length
    before = before.replace("`", "").replace("~", "").replace("<", "")
    text = f"{before}\n{fence}{info}\n{code}{fence}\nDo it."
    assert sources.find([text]) == f"{fence}{info}\n{code}{fence}"


@cases(300)
@given(st.lists(st.sampled_from([*"`~<>\n x", "```", "<code>", "</code>", "<update>", "x" * 210])))
def test_what_is_found_stands_in_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    found = sources.find([text])
    for line in found.splitlines():
        assert line in text
