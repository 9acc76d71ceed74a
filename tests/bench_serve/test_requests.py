"""Which requests are made, and when: arrivals, sessions, workloads, datasets."""

import contextlib
import itertools
import json
import statistics
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_bench import agent, chat, dataset, edit, packages, releases, words
from slipstream_bench.answer import ToolCall
from slipstream_bench.arrivals import arrivals
from slipstream_bench.edit import Edit
from slipstream_bench.errors import WorkloadError
from slipstream_bench.releases import Releases
from slipstream_bench.session import Message, Session, body, grow
from slipstream_bench.shapes import AgentShape
from tests.depth import cases


def take(number: int, rate_per_s: float, seed: int, burstiness: float = 1.0) -> list[float]:
    return list(itertools.islice(arrivals(rate_per_s, Random(seed), burstiness), number))


@given(st.floats(0.01, 1000), st.integers(), st.floats(0.1, 50))
def test_arrivals_rise_and_repeat_with_their_seed(
    rate_per_s: float, seed: int, burstiness: float
) -> None:
    times = take(50, rate_per_s, seed, burstiness)
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == take(50, rate_per_s, seed, burstiness)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness_that_were_asked(burstiness: float) -> None:
    times = take(20_000, 50.0, seed=7, burstiness=burstiness)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert statistics.pvariance(gaps) / mean**2 == pytest.approx(1 / burstiness, rel=0.1)


def test_infinite_burstiness_is_a_metronome() -> None:
    assert take(4, 2.0, seed=1, burstiness=float("inf")) == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (float("inf"), 1), (1, 0)])
def test_arrivals_that_cannot_be_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        next(arrivals(rate, Random(0), burstiness))


texts = st.text(max_size=20)
calls = st.lists(st.builds(ToolCall, id=texts, name=texts, arguments=texts), max_size=3)
shapes = st.builds(
    AgentShape,
    num_turns=st.integers(1, 6),
    prefix_words=st.integers(1, 80),
    result_words=st.integers(1, 60),
    think_s=st.just(0.0),
    is_prefix_shared=st.booleans(),
    has_tools=st.booleans(),
)


@given(shapes, st.integers(0, 50), st.lists(st.tuples(texts, calls), min_size=6, max_size=6))
def test_each_turn_of_an_agent_begins_with_the_whole_turn_before(
    shape: AgentShape, index: int, answers: list[tuple[str, list[ToolCall]]]
) -> None:
    session = agent.plan("s", index, shape)
    assert session == agent.plan("s", index, shape)
    assert session.num_requests == shape.num_turns
    messages: tuple[Message, ...] = session.opening
    for result, (text, tool_calls) in zip(session.results, answers, strict=False):
        longer = grow(messages, text, tool_calls, result)
        assert longer[: len(messages)] == messages
        asked = longer[len(messages)]
        assert (asked["role"], asked["content"] or "") == ("assistant", text)
        told = longer[len(messages) + 1 :]
        assert len(told) == max(1, len(tool_calls))
        assert result in told[0]["content"]
        ids = [call["id"] for call in asked.get("tool_calls", ())]
        assert all(ids)
        assert [it.get("tool_call_id") for it in told] == (ids or [None])
        messages = longer


def test_agents_share_their_system_prompt_or_have_their_own() -> None:
    def first_messages(is_shared: bool) -> set[str]:
        shape = AgentShape(2, 50, 10, 0.0, is_prefix_shared=is_shared, has_tools=False)
        return {agent.plan("s", index, shape).opening[0]["content"] for index in range(5)}

    assert len(first_messages(is_shared=True)) == 1
    assert len(first_messages(is_shared=False)) == 5


def test_every_agent_has_a_name_and_a_task_of_its_own() -> None:
    shape = AgentShape(1, 5, 5, 0.0, is_prefix_shared=True, has_tools=False)
    sessions = [agent.plan("s", index, shape) for index in range(20)]
    assert len({session.key for session in sessions}) == 20
    assert len({session.opening[1]["content"] for session in sessions}) == 20


@given(st.integers(), st.integers(1, 300))
def test_made_up_text_has_the_wanted_length(seed: int, num_words: int) -> None:
    for make in (words.rules, words.code):
        assert len(make(Random(seed), num_words).split()) == num_words
    assert len(words.question(Random(seed), num_words).split()) >= num_words


def test_chat_questions_differ_and_repeat_with_their_seed() -> None:
    def ask(seed: str) -> list[str]:
        found = itertools.islice(chat.sessions(seed, 30), 50)
        return [session.opening[0]["content"] for session in found]

    assert ask("1") == ask("1")
    assert len(set(ask("1"))) == 50
    assert not set(ask("1")) & set(ask("2"))


def test_a_body_streams_with_usage_and_overrides_win() -> None:
    session = Session(
        opening=({"role": "user", "content": "hi"},), fields={"max_tokens": 5, "tools": ["t"]}
    )
    document = body(
        session,
        session.opening,
        {"model": "m", "max_tokens": 9, "temperature": 0.0},
        {"temperature": None, "top_k": 3},
    )
    assert document == {
        "model": "m",
        "max_tokens": 5,
        "tools": ["t"],
        "top_k": 3,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


OLD = "".join(f"line_{i} = {i}\n" for i in range(100))


def test_edits_are_the_files_that_changed_a_little_and_fit() -> None:
    old = {"a.py": OLD, "same.py": OLD, "gone.py": OLD, "big.py": OLD * 9, "else.py": OLD}
    old["small.py"] = "version = 1\n"
    new = {
        "a.py": OLD.replace("line_3 = 3", "line_3 = 33"),
        "same.py": OLD,
        "new.py": OLD,
        "big.py": OLD * 9 + "x = 1\n",
        "else.py": "something = 'else'\n" * 100,
        "small.py": "version = 2\n",
    }
    found = edit.edits_between("p 1", old, new, max_characters=5000)
    assert [it.path for it in found] == ["a.py"]


def test_an_edit_asks_for_the_whole_file_by_its_change() -> None:
    one = Edit("p 1", "a.py", OLD, OLD.replace("line_3 = 3\n", "line_3 = 33\n"))
    prompt = edit.prompt(one)
    assert OLD in prompt
    assert "-line_3 = 3\n+line_3 = 33\n" in prompt
    assert "whole new file" in prompt
    assert edit.session(one, has_prediction=False).fields == {}
    predicted = edit.session(one, has_prediction=True).fields["prediction"]
    assert predicted == {"type": "content", "content": OLD}


def test_every_edit_comes_once_before_any_comes_again() -> None:
    edits = [Edit("p", f"{i}.py", f"old {i}\n", f"new {i}\n") for i in range(10)]
    asked = list(itertools.islice(edit.sessions("s", edits, has_prediction=False), 20))
    first, second = ({it.opening[0]["content"] for it in half} for half in (asked[:10], asked[10:]))
    assert len(first) == 10
    assert first == second


@pytest.mark.parametrize(
    "text", ["click", "click:1", "click:1:1", "-x:1:2", "a b:1:2", "a:..:2", "a:1;x:2", ":1:2"]
)
def test_packages_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        releases.parse(text)


def test_a_package_with_two_releases_is_read() -> None:
    assert releases.parse("click:8.1.3:8.1.7") == Releases("click", "8.1.3", "8.1.7")


def test_a_release_in_the_cache_is_read_from_there(tmp_path: Path) -> None:
    folder = tmp_path / "demo-1.0" / "demo"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("x = 1\n", encoding="utf-8")
    (folder / "latin.py").write_bytes(b"# caf\xe9\n")
    (folder / "notes.txt").write_text("no", encoding="utf-8")
    (folder / "link.py").symlink_to(folder / "a.py")
    assert packages.files_of("Demo", "1.0", tmp_path) == {"demo/a.py": "x = 1\n"}


def test_dataset_lines_become_requests(tmp_path: Path) -> None:
    lines = [
        {"prompt": "hi"},
        {"messages": [{"role": "user", "content": "ho"}], "model": "other", "stop": ["x"]},
        {"prompt": "again", "session": "s-1", "max_completion_tokens": 7},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    first, second, third = dataset.load(path)
    assert first == Session(opening=({"role": "user", "content": "hi"},))
    assert second.fields == {"stop": ["x"]}
    assert third.key == "s-1"
    document = body(third, third.opening, {"max_tokens": 9}, {})
    assert document["max_completion_tokens"] == 7
    assert "max_tokens" not in document
    again = list(itertools.islice(dataset.sessions((first, second)), 3))
    assert again == [first, second, first]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "either messages or prompt"),
        ('{"prompt": "a", "messages": [{}]}', "either messages or prompt"),
        ('{"prompt": ""}', "prompt must be"),
        ('{"messages": []}', "messages must be"),
        ('{"messages": ["hi"]}', "messages must be"),
        ('{"prompt": "a", "session": 3}', "session must be"),
    ],
)
def test_a_bad_dataset_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match=rf"line 2: .*{message}"):
        dataset.load(path)


@cases(50)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_dataset_are_requests_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("d") / "own.jsonl"
    path.write_bytes(content)
    with contextlib.suppress(WorkloadError):
        assert dataset.load(path)
