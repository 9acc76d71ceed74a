"""Guides are tried where they harm nobody: real processes, hostile texts."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from slipstream_engine.guides import schema
from slipstream_engine.guides.checker import Checker
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind
from slipstream_engine.spec.draft import NO_DRAFT
from tests.engine import guided

# Intersections of patterns: minutes, whatever the library's own limits say.
_SLOW = {
    "type": "string",
    "allOf": [{"pattern": f".*[a-{chr(97 + i)}].*x{{{i}}}"} for i in range(1, 20)],
}
# A divisibility by an automaton with a million states: 8 s and 400 MB.
_LARGE = {"type": "integer", "multipleOf": 999_983}


@asynccontextmanager
async def _checker() -> AsyncIterator[Checker]:
    made = Checker(guided.vocabulary())
    try:
        yield made
    finally:
        made.close()


def _schema(document: Any) -> Guide:
    """As a document's would come: what is told before the trial is not tried."""
    return Guide(GuideKind.JSON_SCHEMA, schema.checked(document))


@pytest.mark.slow
def test_a_guide_that_takes_too_long_ends_alone_and_is_remembered() -> None:
    async def scenario() -> None:
        async with _checker() as checker:
            await checker.checked(Guide(GuideKind.JSON_OBJECT))
            longest_s, stop = 0.0, asyncio.Event()

            async def beat() -> None:
                """A stream of somebody else's."""
                nonlocal longest_s
                while not stop.is_set():
                    began = time.monotonic()
                    await asyncio.sleep(0.005)
                    longest_s = max(longest_s, time.monotonic() - began)

            beating = asyncio.create_task(beat())
            for document in (_SLOW, _LARGE):
                with pytest.raises(GuideError, match="it takes more than"):
                    await checker.checked(_schema(document))
                began = time.monotonic()
                with pytest.raises(GuideError, match="it takes more than"):
                    await checker.checked(_schema(document))
                assert time.monotonic() - began < 0.05
                # A new process: others are tried as before.
                assert await checker.checked(_schema({"enum": [1]})) == _schema({"enum": [1]})
            stop.set()
            await beating
            assert longest_s < 0.5

    asyncio.run(scenario())


_HOSTILE: dict[str, Guide] = {
    "alternatives in alternatives": _schema(
        {
            "$ref": "#/$defs/9",
            "$defs": {
                "0": {"type": "string"},
                **{
                    str(i): {
                        "anyOf": [
                            {"type": "array", "items": {"$ref": f"#/$defs/{i - 1}"}},
                            {"$ref": f"#/$defs/{i - 1}"},
                        ]
                    }
                    for i in range(1, 10)
                },
            },
        }
    ),
    "all of many": _schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}{j}": {"type": "string"}}} for j in range(8)]}
                for i in range(8)
            ]
        }
    ),
    "2,000 properties": _schema(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}
    ),
    "a billion characters": _schema({"type": "string", "minLength": 10**9}),
    "a billion elements": _schema({"type": "array", "items": {}, "minItems": 10**9}),
    "a billion repetitions": Guide(GuideKind.REGEX, "((a{1,1000}){1,1000}){1,1000}"),
    "an exponent": Guide(GuideKind.REGEX, "(a|b)*a(a|b){500}"),
    "catastrophe": Guide(GuideKind.REGEX, "((a+)+)+$"),
    "classes of letters": Guide(GuideKind.REGEX, r"\w{1,1000}\p{L}{1,1000}"),
    "ten thousand brackets": Guide(GuideKind.REGEX, "(" * 10_000),
    "rules without an end": Guide(GuideKind.GRAMMAR, 'start: start start | ""'),
    "a rule of itself": Guide(GuideKind.GRAMMAR, "start: start"),
    "line ends": Guide(GuideKind.GRAMMAR, "\n" * 60_000 + "x"),
    "rules in rules": Guide(GuideKind.GRAMMAR, "start: " + "(" * 5_000 + '"a"' + ")*" * 5_000),
    "everything repeated": Guide(GuideKind.GRAMMAR, 'start: (/.{0,1000}/ "a"?){0,100000}'),
}


@pytest.mark.slow
def test_a_hostile_guide_is_refused_or_runs_with_short_steps() -> None:
    """What passes is walked with random tokens: no step of it takes long."""

    async def scenario() -> dict[str, Guide]:
        passed = {}
        async with _checker() as checker:
            for name, guide in _HOSTILE.items():
                with suppress(GuideError):
                    passed[name] = await checker.checked(guide)
        return passed

    passed = asyncio.run(scenario())
    by = guided.matchers()
    for name, guide in passed.items():
        asked = guided.Asked(guide, by=by, id_=name)
        slowest_s = 0.0
        for number in range(300):
            began = time.process_time()
            (mask,) = by.masks(asked.key, NO_DRAFT)
            slowest_s = max(slowest_s, time.process_time() - began)
            if by.take_failures():
                break
            following = [one for one in guided.allowed(mask) if one != guided.END]
            if not following:
                break
            by.commit(asked.key, [following[number * 7919 % len(following)]])
        by.stop(name)
        assert slowest_s < 0.1, name
    assert "a billion characters" in passed


def test_a_grammar_in_another_notation_comes_back_in_the_librarys() -> None:
    async def scenario() -> Guide:
        async with _checker() as checker:
            asked = Guide(GuideKind.GRAMMAR, 'root ::= "a" | "b" root', is_patient=True)
            return await checker.checked(asked)

    guide = asyncio.run(scenario())
    assert guide.is_patient
    asked = guided.Asked(guide)
    asked.commit(guided.tokens("bba"))
    assert asked.next() == [guided.END]


def test_what_the_library_refuses_is_told_in_its_words() -> None:
    async def told(guide: Guide) -> str:
        async with _checker() as checker:
            with pytest.raises(GuideError) as caught:
                await checker.checked(guide)
            return str(caught.value)

    cases = {
        "look-around": Guide(GuideKind.REGEX, "a(?=b)"),
        "escapes nothing": Guide(GuideKind.REGEX, "a\\\\\\"),
        "Unsatisfiable": _schema({"type": "integer", "minimum": 2, "maximum": 1}),
        "unknown name": Guide(GuideKind.GRAMMAR, "start: x"),
        # It asks for the tokeniser, which is not there, and writes down its stack.
        "^the library cannot take it$": Guide(
            GuideKind.GRAMMAR, 'start: "abc"\n%llguidance {"no_forcing": false}'
        ),
    }
    for words, guide in cases.items():
        assert re.search(words, asyncio.run(told(guide)))


def test_the_process_ends_with_the_serving_process_and_starts_anew_when_it_died() -> None:
    async def scenario() -> None:
        async with _checker() as checker:
            await checker.checked(Guide(GuideKind.JSON_OBJECT))
            process = checker._process
            assert process is not None
            process.kill()
            process.wait()
            await checker.checked(Guide(GuideKind.REGEX, "a"))
            process = checker._process
            assert process is not None
        assert process.returncode is not None

    asyncio.run(scenario())


def test_a_process_that_does_not_start_is_no_fault_of_the_guide() -> None:
    async def scenario() -> None:
        checker = Checker(guided.vocabulary(), module="tests.engine.guided")
        try:
            with pytest.raises(RuntimeError, match="does not start"):
                await checker.checked(Guide(GuideKind.JSON_OBJECT))
        finally:
            checker.close()

    asyncio.run(scenario())


def test_nothing_of_the_process_is_left_when_it_is_closed() -> None:
    async def scenario() -> int:
        async with _checker() as checker:
            await checker.checked(Guide(GuideKind.JSON_OBJECT))
            assert checker._process is not None
            return checker._process.pid

    pid = asyncio.run(scenario())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_two_who_ask_for_one_guide_at_once_have_it_tried_once() -> None:
    async def scenario() -> None:
        async with _checker() as checker:
            asking = [checker.checked(_schema(_SLOW)) for _ in range(8)]
            told = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(one, GuideError) for one in told)
            # One that dies of it does so once: the next process is the second.
            process = checker._process
            assert process is None

    asyncio.run(scenario())
