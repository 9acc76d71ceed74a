"""Which code of a prompt an answer will probably repeat, as it will stand in the answer. Pure text.

Who wants a file changed sends it: in a fenced block, or between the tags of the models that merge
an edit into a file. Nothing is lost where the guess is wrong: what is found is only drafted from.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Shorter code is rather an example than a file, and soon said anyway.
MIN_CHARACTERS = 200
# Two or three of the longest contexts; more is not tokenised once more for a guess.
MAX_CHARACTERS = 1_000_000

# A fence as CommonMark has it: at most three spaces, then three or more of one character.
_FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})(?P<info>.*)")
# What a change is sent as: no answer repeats it.
_CHANGES = frozenset({"diff", "patch", "udiff"})
# A comment that stands for what is left out.
_MARKER = re.compile(
    r"^[ \t]*(#|//|/\*|<!--|--|;|%)+[ \t]*\.\.\. .*(existing|rest of|unchanged)",
    re.IGNORECASE | re.MULTILINE,
)
# Morph: instruction, code, update. Kortix: code and update in either order, the answer in tags of
# its own. Both say `<code>` in their instructions too, in the middle of a line.
_OPENING = re.compile(r"(?:^|</instruction>\s*|</update>\s*)<code>", re.MULTILINE)
_CLOSING_BEFORE_UPDATE = re.compile(r"</code>\s*<update>")


@dataclass(frozen=True, slots=True)
class _Fenced:
    """A fenced block: its first line, what it holds, and its last line."""

    opening: str
    info: str
    code: str
    closing: str

    @property
    def text(self) -> str:
        return f"{self.opening}\n{self.code}{self.closing}"


def find(texts: Sequence[str]) -> str:
    """Of the latest of a conversation's texts that holds code; "" if none does.

    Several files are taken in their order, as an answer that changes all of them repeats them; the
    longest one alone if they are too long together.
    """
    for text in reversed(texts):
        found = _between_tags(text) or _in_fences(text)
        if found:
            return found
    return ""


def _between_tags(text: str) -> str:
    if "<update>" not in text:
        return ""
    opening = _OPENING.search(text)
    if opening is None:
        return ""
    # Code of web pages holds such tags too.
    before_update = _CLOSING_BEFORE_UPDATE.search(text, opening.end())
    end = before_update.start() if before_update else text.rfind("</code>", opening.end())
    code = text[opening.end() : max(end, opening.end())]
    if not MIN_CHARACTERS <= len(code) <= MAX_CHARACTERS:
        return ""
    return f"<updated-code>{code}</updated-code>" if "<updated-code>" in text else code


def _in_fences(text: str) -> str:
    files = [
        block.text
        for block in _blocks(text)
        if MIN_CHARACTERS <= len(block.code) <= MAX_CHARACTERS and not _is_change(block)
    ]
    if sum(map(len, files)) > MAX_CHARACTERS:
        return max(files, key=len)
    return "\n\n".join(files)


def _is_change(block: _Fenced) -> bool:
    language = block.info.split(maxsplit=1)[:1]
    return language in [[name] for name in _CHANGES] or _MARKER.search(block.code) is not None


def _blocks(text: str) -> list[_Fenced]:
    """A block that is not closed is none: there a prompt ends that wants it to be gone on with."""
    found: list[_Fenced] = []
    opening: re.Match[str] | None = None
    code: list[str] = []
    for line in text.splitlines(keepends=True):
        fence = _FENCE.fullmatch(line.rstrip("\r\n"))
        if opening is None:
            # Backticks after backticks are code in the line, no fence.
            if fence and not (fence["mark"][0] == "`" and "`" in fence["info"]):
                opening, code = fence, []
        elif fence and fence["mark"].startswith(opening["mark"]) and not fence["info"].strip():
            info = opening["info"].strip().lower()
            found.append(_Fenced(opening[0], info, "".join(code), fence[0].rstrip()))
            opening = None
        else:
            code.append(line)
    return found
