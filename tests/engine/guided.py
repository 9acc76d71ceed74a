"""Guides over the tiny byte-level tokeniser, and what a test asks of them."""

import json
from collections.abc import Iterable
from typing import Any

from slipstream_engine.guides.compiled import Compiler
from slipstream_engine.guides.matcher import Matchers
from slipstream_engine.guides.spec import Guide, GuideKind, Vocabulary
from slipstream_engine.spec.draft import NO_DRAFT, Draft
from slipstream_engine.text import TokenBytes
from tests.engine import tiny

# The tiny model's end token, and how many tokens its tokeniser has.
END = 1
SIZE = tiny.tokenizer().get_vocab_size()


def vocabulary() -> Vocabulary:
    return TokenBytes(tiny.tokenizer()).vocabulary()


def matchers(known: Vocabulary | None = None) -> Matchers:
    made = known or vocabulary()
    return Matchers(Compiler(made))


def schema(document: Any, **terms: Any) -> Guide:
    return Guide(GuideKind.JSON_SCHEMA, json.dumps(document), **terms)


def tokens(text: str) -> list[int]:
    """As the tiny tokeniser cuts it."""
    return list(tiny.tokenizer().encode(text, add_special_tokens=False).ids)


def text(known: Vocabulary, answer: Iterable[int]) -> str:
    return b"".join(known.tokens[token] for token in answer).decode()


def allowed(mask: bytes) -> list[int]:
    return [token for token in range(len(mask) * 8) if mask[token >> 3] >> (token & 7) & 1]


class Asked:
    """One sample of one guided request."""

    def __init__(
        self,
        guide: Guide,
        *,
        end_tokens: Iterable[int] = (END,),
        min_tokens: int = 0,
        by: Matchers | None = None,
        id_: str = "r",
    ) -> None:
        self.matchers = by or matchers()
        self.key = (id_, 0)
        self.min_tokens = min_tokens
        self.matchers.start(id_, guide, frozenset(end_tokens), min_tokens)

    def allowed(self, draft: Draft = NO_DRAFT) -> list[list[int]]:
        found = [allowed(mask) for mask in self.matchers.masks(self.key, draft)]
        assert self.matchers.take_failures() == {}
        return found

    def next(self) -> list[int]:
        return self.allowed()[0]

    def legal(self, draft: Draft) -> Draft:
        found = self.matchers.legal(self.key, draft)
        assert self.matchers.take_failures() == {}
        return found

    def commit(self, answer: Iterable[int]) -> None:
        self.matchers.commit(self.key, list(answer))
        assert self.matchers.take_failures() == {}
