"""Requests whose guides are compiled beside the steps, and what may overtake them."""

import json
import queue
import time

import pytest

from slipstream_engine.guides.compiled import Compiler
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind
from slipstream_engine.intake import Intake
from slipstream_engine.messages import Abort, AbortSample, Start, Submit, ToRank, Words
from tests.engine import guided, policy

# A third of a second to compile, so that there is something to overtake.
_LONG = Guide(
    GuideKind.JSON_SCHEMA,
    json.dumps(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}
    ),
)
_SHORT = Guide(GuideKind.REGEX, "a+")


class _Rank:
    """What came through, in order."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[ToRank | None] = queue.SimpleQueue()
        self.compiler = Compiler()
        self.intake = Intake(self.commands.put, self.compiler)
        self.intake.take(Words(guided.vocabulary()))

    def next(self) -> ToRank | None:
        return self.commands.get(timeout=20)


def _submit(id_: str, guide: Guide | None = None) -> Submit:
    return Submit(policy.request(id_, [1], guide=guide))


def test_a_request_waits_for_its_guide_and_nobody_waits_for_it() -> None:
    rank = _Rank()
    others: list[ToRank | None] = [Start("{}"), _submit("b"), Abort("z"), AbortSample("b", 0), None]
    rank.intake.take(_submit("a", _LONG))
    for command in others:
        rank.intake.take(command)
    assert [rank.next() for _ in others] == others
    assert rank.next() == _submit("a", _LONG)
    assert rank.compiler.has(_LONG)
    # It is there now: the next one does not wait.
    for command in (_submit("c", _LONG), _submit("d")):
        rank.intake.take(command)
        assert rank.commands.get(timeout=0.05) == command


def test_a_request_that_is_aborted_while_it_waits_never_comes() -> None:
    rank = _Rank()
    rank.intake.take(_submit("a", _LONG))
    rank.intake.take(_submit("b", _SHORT))
    # The abort itself does: it is answered, which shows that the rank lives.
    rank.intake.take(Abort("a"))
    assert rank.next() == Abort("a")
    assert rank.next() == _submit("b", _SHORT)
    # An abort of one that has come is passed on.
    rank.intake.take(Abort("b"))
    assert rank.next() == Abort("b")
    assert rank.commands.empty()


def test_a_guide_that_cannot_be_compiled_comes_and_is_told_at_once() -> None:
    rank = _Rank()
    wrong = Guide(GuideKind.REGEX, "a(")
    rank.intake.take(_submit("a", wrong))
    assert rank.next() == _submit("a", wrong)
    began = time.monotonic()
    with pytest.raises(GuideError, match="regex parse error"):
        rank.compiler.compiled(wrong)
    assert time.monotonic() - began < 0.05


def test_steps_go_on_while_a_guide_is_compiled() -> None:
    """The library compiles without the interpreter's lock: what it takes is no step's pause."""
    rank = _Rank()
    began = last = time.monotonic()
    rank.intake.take(_submit("a", _LONG))
    longest_s = 0.0
    while rank.commands.empty():
        time.sleep(0.001)
        now = time.monotonic()
        longest_s, last = max(longest_s, now - last), now
    whole_s = last - began
    assert rank.next() == _submit("a", _LONG)
    # Reading the text and making a grammar of it hold the lock, for milliseconds.
    assert whole_s > 0.05
    assert longest_s < max(0.5 * whole_s, 0.1)


def test_compiled_guides_are_kept_up_to_a_number_and_a_size() -> None:
    compiler = Compiler(guided.vocabulary())
    first = Guide(GuideKind.REGEX, "x")
    compiler.compiled(first)
    for number in range(127):
        compiler.compiled(Guide(GuideKind.REGEX, f"a{number}"))
    assert compiler.has(first)
    # Used again, it is not the next one to go.
    compiler.compiled(first)
    compiler.compiled(Guide(GuideKind.REGEX, "y"))
    assert compiler.has(first)
    assert not compiler.has(Guide(GuideKind.REGEX, "a0"))
    large = Guide(GuideKind.CHOICE, json.dumps(["b" * 700_000]))
    larger = Guide(GuideKind.CHOICE, json.dumps(["c" * 700_000]))
    compiler.compiled(large)
    compiler.compiled(larger)
    assert compiler.has(larger)
    assert not compiler.has(large)
