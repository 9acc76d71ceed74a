"""What `make bench-edits` asks, in tokens: real edits, and chats with nothing to draft from."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from slipstream_bench import edit, packages, releases, words
from slipstream_bench.edit import Edit
from slipstream_bench.errors import WorkloadError
from slipstream_bench.options import DEFAULT_PACKAGES
from slipstream_bench.seeds import rng_of
from slipstream_engine.chat import ChatTemplate
from slipstream_engine.conversation import Message
from slipstream_weights import source
from slipstream_weights.checkpoint import TextModel
from tests.bench import engine_peers
from tests.bench.engine_job import DraftedJob

# Of a whole file in its new release.
_LEAST_TOKENS, _MOST_TOKENS = 700, 1300
_MAX_FILE_CHARACTERS = 8000
_EDITS_A_ROUND = 3
_CHAT_TOKENS, _CHAT_WORDS = 96, 30


@dataclass(frozen=True, slots=True)
class Case:
    """The chat that asks for an edit, the file before it as the prediction, and the answer."""

    prompt: list[int]
    prediction: list[int]
    answer: list[int]

    def job(self, drafts: str) -> DraftedJob:
        return DraftedJob([self.prompt], len(self.answer), drafts, self.prediction, self.answer)


def edits(number: int) -> list[Case]:
    """Those of a round. Raises WorkloadError."""
    cases = _cases()
    return [cases[(number * _EDITS_A_ROUND + it) % len(cases)] for it in range(_EDITS_A_ROUND)]


def chats(number: int, count: int, drafts: str) -> DraftedJob:
    """Answers at a temperature of 1: a small model repeats itself otherwise, which drafts well."""
    asked = (
        words.question(rng_of(number, f"bench-edits/{index}"), _CHAT_WORDS)
        for index in range(count)
    )
    prompts = [_chat(text) for text in asked]
    return DraftedJob(prompts, _CHAT_TOKENS, drafts, seed=1000 * number)


@functools.cache
def _cases() -> Sequence[Case]:
    """Shuffled, so that a round has files of several packages."""
    cache = packages.default_cache()
    found: list[Case] = []
    for text in DEFAULT_PACKAGES:
        one = releases.parse(text)
        old, new = (packages.files_of(one.package, it, cache) for it in (one.old, one.new))
        for change in edit.edits_between(one.package, old, new, _MAX_FILE_CHARACTERS):
            case = _case(change)
            if _LEAST_TOKENS <= len(case.answer) <= _MOST_TOKENS:
                found.append(case)
    if not found:
        raise WorkloadError("no file of these packages changed and fits")
    rng_of(0, "bench-edits").shuffle(found)
    return found


def _case(change: Edit) -> Case:
    """As `slipstream bench serve --workload edit --prediction` asks for it."""
    answer = [*_encoded(f"```python\n{change.new}```"), min(_model().end_tokens)]
    return Case(_chat(edit.prompt(change)), _encoded(change.old), answer)


def _chat(text: str) -> list[int]:
    return _encoded(ChatTemplate(_model()).render([Message(role="user", content=text)]))


def _encoded(text: str) -> list[int]:
    tokenizer: Tokenizer = _model().tokenizer
    return tokenizer.encode(text, add_special_tokens=False).ids


@functools.cache
def _model() -> TextModel:
    return source.open_checkpoint(engine_peers.gguf()).text_model()
