"""The comparisons of `make bench-edits`: who drafts how, and how much that must be worth."""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream_engine import rankprocess
from tests.bench import edits_work, engine_peers, engine_rows
from tests.bench.comparison import Pair, Row, Setting
from tests.bench.engine_job import Drafted, DraftedJob
from tests.bench.engine_sides import Generator, SideError

_FORCED = (
    "Edits: every answer is forced to the file of the next release, token by token, on both sides; "
    "forward pass, drawing and verification are done in full. Acceptance is that of a model which "
    "makes the edit without a mistake, more than any model's."
)
_EDITS = "whole-file edits of 700 to 1,300 tokens, prediction given"
# How many tokens the peer's lookup drafts: the library's default, and what is tried beside it.
_LOOKUP, _LOOKUPS = 10, (4, 6, 10, 16, 24, 32)


class Drafts:
    """One way to draft, of a process that knows several.

    `said`: what was answered, by what was asked: others who are asked the same must agree.
    """

    def __init__(
        self, generator: Generator, drafts: str, said: dict[str, list[list[int]]] | None = None
    ) -> None:
        self.facts: dict[str, float] = {}
        self._said = {} if said is None else said
        self.versions = generator.versions
        self.drafts = drafts
        self.generator = generator

    @property
    def group(self) -> int:
        return self.generator.group

    def pause(self) -> None:
        self.generator.pause()

    def resume(self) -> None:
        self.generator.resume()

    def answer(self, job: DraftedJob) -> Drafted:
        """Raises SideError: another side said something else, or the process failed."""
        drafted = self.generator.draft(job)
        asked = f"{job.prompts} {job.seed}"
        if self._said.setdefault(asked, drafted.answers) != drafted.answers:
            raise SideError("drafts changed what was said")
        return drafted


def edit(side: Drafts, number: int) -> float:
    """Tokens a second, from the first token to the last."""
    _warm(side)
    found = [side.answer(case.job(side.drafts)) for case in edits_work.edits(number)]
    return _tokens_per_s(side, found)


def chat(side: Drafts, number: int, count: int) -> float:
    """Tokens a second of all answers together, from the first token until one of them ends."""
    _warm(side)
    return _tokens_per_s(side, [side.answer(edits_work.chats(number, count, side.drafts))])


def edit_by_lookup(side: Drafts, number: int) -> float:
    """The peer drafts as many tokens as are fastest in the round that is not counted."""
    if number == 0 and side.drafts.startswith("lookup"):
        side.drafts = f"lookup {max(_LOOKUPS, key=functools.partial(_lookup_rate, side))}"
    figure = edit(side, number)
    if side.drafts.startswith("lookup"):
        side.facts["num_pred_tokens"] = float(side.drafts.split()[1])
    return figure


def _lookup_rate(side: Drafts, most: int) -> float:
    side.drafts = f"lookup {most}"
    return _tokens_per_s(side, [side.generator.draft(edits_work.edits(0)[0].job(side.drafts))])


def _tokens_per_s(side: Drafts, found: Sequence[Drafted]) -> float:
    num_tokens = sum(one.num_tokens for one in found)
    took_s = sum(one.last_s - one.first_s for one in found)
    num_steps = sum(one.num_steps for one in found)
    num_drafted = sum(one.num_drafted for one in found)
    num_accepted = sum(one.num_accepted for one in found)
    side.facts = {
        "tokens/step": num_tokens / num_steps,
        "ms/step": 1000 * took_s / num_steps,
        "drafted/step": num_drafted / num_steps,
        "accepted/step": num_accepted / num_steps,
        "first token s": sum(one.first_s for one in found) / len(found),
        "whole answers tokens/s": num_tokens / sum(one.last_s for one in found),
    }
    return num_tokens / took_s


def _warm(side: Drafts) -> None:
    """A process that was stopped has cold caches and sleeping threads."""
    case = edits_work.edits(0)[0]
    answer = [*case.answer[:16], case.answer[-1]]
    side.generator.draft(
        edits_work.Case(case.prompt[:64], case.prediction, answer).job(side.drafts)
    )


def ours(setting: Setting) -> Generator:
    # No prefix cache: the peers have none here, and two loops share the pages.
    config = engine_rows.engine_json(setting, 0, has_prefix_cache=False, drafts="auto")
    return Generator(
        python=Path(sys.executable),
        module="tests.bench.edits_ours",
        arguments=[config],
        root=setting.root,
        log=setting.build / "edits-ours.log",
        environment=rankprocess.environment(),
    )


def llama(setting: Setting) -> Generator:
    return Generator(
        python=engine_peers.llama_python(setting.peers, setting.tell),
        module="tests.bench.edits_llama",
        arguments=[engine_peers.gguf(), str(setting.threads)],
        root=setting.root,
        log=setting.build / "edits-llama.log",
        environment={},
    )


@contextmanager
def with_llama(setting: Setting, drafts: str) -> Iterator[tuple[Drafts, Drafts]]:
    with ours(setting) as first:
        first.pause()
        with llama(setting) as second:
            second.pause()
            yield Drafts(first, "auto"), Drafts(second, drafts)


@contextmanager
def alone(setting: Setting) -> Iterator[tuple[Drafts, Drafts]]:
    """Ours with and without drafts in one process: two of them differ by more than drafts."""
    with ours(setting) as one:
        one.pause()
        said: dict[str, list[list[int]]] = {}
        yield Drafts(one, "auto", said), Drafts(one, "none", said)


def _lookup_row(name: str, what: str, measure: Callable[[Drafts, int], float]) -> Row[Drafts]:
    against = f"llama.cpp with its prompt-lookup draft, {what}"
    return Row(name, _EDITS, against, "tokens/s", 1.3, 2.0, measure, note=_FORCED)


def _chat_row(name: str, count: int, num_turns: int) -> Row[Drafts]:
    return Row(
        name,
        f"free chat at batch {count}, nothing to draft from",
        "our engine without speculation",
        "tokens/s",
        0.97,
        1.0,
        functools.partial(chat, count=count),
        num_turns=num_turns,
    )


PAIRS: tuple[Pair[Any], ...] = (
    Pair(
        "llama.cpp",
        functools.partial(with_llama, drafts="none"),
        (Row("llama", _EDITS, "llama.cpp plain", "tokens/s", 2.5, 4.0, edit, note=_FORCED),),
    ),
    Pair(
        "llama.cpp with prompt lookup",
        functools.partial(with_llama, drafts=f"lookup {_LOOKUP}"),
        (
            _lookup_row("llama-lookup", f"its defaults ({_LOOKUP} tokens)", edit),
            # The last one: what it has chosen stays.
            _lookup_row("llama-lookup-chosen", "as many tokens as are fastest", edit_by_lookup),
        ),
    ),
    Pair(
        "ours without drafts",
        alone,
        (
            Row(
                "none",
                _EDITS,
                "our engine without speculation",
                "tokens/s",
                3.5,
                5.0,
                edit,
                note=_FORCED,
            ),
            _chat_row("chat-one", 1, 10),
            _chat_row("chat-eight", 8, 6),
        ),
    ),
)
