"""Guides in the form that the library takes, and compiled ones kept: the one door to llguidance.

Against xgrammar 0.2.9, both on one CPU, vocabularies of 49,152 (SmolLM2) and 151,936 (Qwen):

| | llguidance 1.9.1 | xgrammar 0.2.9 |
|---|---|---|
| needs | nothing, 7.5 MB | torch, transformers, triton, tvm-ffi; 15 MB of its own |
| licence; used by | MIT; vLLM, SGLang, llama.cpp, Chromium | Apache-2.0; vLLM, SGLang, MLC |
| vocabulary made ready | 0.10 s, 16 MB; 0.40 s, 61 MB | 0.04 s, 5 MB; 0.11 s, 20 MB |
| compile: 3 fields; recursive; 200 fields | 1.3; 1.9; 5.8 ms | 5.5 to 19; 21 to 27; 64 ms |
| a mask, mean; slowest of 3,400 | 4 to 10 µs; 0.2 ms | 3 to 22 µs; 9.7 ms |
| roll back 60 tokens | 9 µs | 10 µs |
| limits | steps of lexer and parser, sizes | none but time outside |
| what it cannot do | an error that names it | accepted wrong values of 6 of 13 schemas |

Mask speed is a tie: 9 µs a row of 49,152 tokens here and 14 of 151,936, 0.7 and 1.5 ms for a draft
of 64. llguidance compiles faster, counts its steps, refuses what it does not keep, and brings
nothing into a process; xgrammar has three keywords more, and passed over `not`, `if`,
`uniqueItems`, `oneOf`, bounds in `allOf` and lengths beside a pattern. Neither is safe from every
text: intersections of patterns take minutes whatever the limits, so `checker.py` has each compiled
elsewhere first.
"""

import ctypes
import dataclasses
import json
from collections import OrderedDict
from threading import Lock

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from slipstream_engine.guides import lark
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind, Vocabulary

# The library's byte before the name of a special token: no text has it.
_SPECIAL = b"\xff"
# Every token that fits may come, not only the one that the tokeniser would choose: drafts are
# checked so, and the tokeniser itself is not needed.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
# A step of the lexer costs 70 ns, an item of the parser 50 ns (the library's own figures), so that
# no mask takes more than 5 ms. An ordinary schema needs a hundredth of that; a pattern that also
# has bounds on its length may need 30,000 steps once.
_STEP_LEXER_FUEL = 50_000
_STEP_ITEMS = 50_000
# 0.4 kB each, for a sequence of its own. A string with a bound on its length takes one for each
# character, so this is also how long all such strings of an answer may be.
_LEXER_STATES = 100_000
_KEPT_GUIDES = 128
_KEPT_CHARACTERS = 1 << 20


def tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """What masks are made with: 0.1 s for 49,152 tokens, 0.4 s for 151,936, 16 and 61 MB.

    Its end token is one more than the model has, so that its bit says whether an answer may end,
    and nobody ever draws it.
    """
    tokens = list(vocabulary.tokens)
    for token, name in vocabulary.special.items():
        tokens[token] = _SPECIAL + name.encode()
    wrapped = TokenizerWrapper(_Tokens([*tokens, _SPECIAL + b"end of the answer"]))
    return LLTokenizer(wrapped, n_vocab=vocabulary.size + 1, eos_token=vocabulary.size)


def as_lark(guide: Guide) -> Guide:
    """A grammar in llama.cpp's notation becomes one in the library's. Raises GuideError."""
    if guide.kind is not GuideKind.GRAMMAR:
        return guide
    try:
        return dataclasses.replace(guide, text=any_to_lark(guide.text))
    except Exception as error:
        # The library's converter raises whatever it meets.
        raise GuideError(f"the grammar cannot be read: {error}") from error


def compile_guide(made: LLTokenizer, guide: Guide) -> LLMatcher:
    """A matcher at its beginning, with a first mask that has a token. Raises GuideError.

    Without the interpreter's lock, so that other threads run meanwhile.
    """
    limits = LLParserLimits(
        step_lexer_fuel=_STEP_LEXER_FUEL,
        step_max_items=_STEP_ITEMS,
        max_lexer_states=_LEXER_STATES,
        verbose_errors=False,
    )
    matcher = LLMatcher(made, _OPTIONS + _lark(guide), limits=limits, log_level=0)
    if not matcher.is_error():
        # On a copy: what the lexer learns from it is not worth keeping.
        tried = matcher.deep_copy()
        tried.compute_bitmask()
        if not tried.is_error():
            return matcher
        matcher = tried
    raise GuideError(_reason(matcher.get_error()))


class MaskBuffer:
    """Where masks of one vocabulary are written; for one thread.

    The library's own bytes take 7 µs for 49,152 tokens and 13 for 151,936, this 1.5 and 2.
    """

    def __init__(self, vocabulary_size: int) -> None:
        # In words of 32 tokens, with the library's own end token.
        self._size = (vocabulary_size // 32 + 1) * 4
        self._buffer = ctypes.create_string_buffer(self._size)

    def mask(self, matcher: LLMatcher) -> bytes:
        """A bit for each token and for the end; worthless where the matcher has an error."""
        matcher.unsafe_compute_mask_ptr(ctypes.addressof(self._buffer), self._size)
        return self._buffer.raw


class Compiler:
    """Compiles guides for one vocabulary and keeps the latest; any thread may ask."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        """None: it is learnt later."""
        self._made: tuple[LLTokenizer, int] | None = None
        # By the digest of a guide: a matcher at its beginning, or why there is none.
        self._kept: OrderedDict[bytes, tuple[LLMatcher | GuideError, int]] = OrderedDict()
        self._num_characters = 0
        self._lock = Lock()
        if vocabulary is not None:
            self.learn(vocabulary)

    def learn(self, vocabulary: Vocabulary) -> None:
        """Holds the interpreter's lock as long as `tokenizer` takes."""
        self._made = tokenizer(vocabulary), vocabulary.size

    @property
    def vocabulary_size(self) -> int:
        return self._known[1]

    @property
    def _known(self) -> tuple[LLTokenizer, int]:
        if self._made is None:
            raise GuideError("no vocabulary is known")
        return self._made

    def has(self, guide: Guide) -> bool:
        with self._lock:
            return guide.digest in self._kept

    def compiled(self, guide: Guide) -> LLMatcher:
        """A matcher of one's own. Raises GuideError."""
        with self._lock:
            found = self._kept.get(guide.digest, (None, 0))[0]
            if found is not None:
                self._kept.move_to_end(guide.digest)
        if found is None:
            found = self._compile(guide)
        if isinstance(found, GuideError):
            raise found
        return found.deep_copy()

    def _compile(self, guide: Guide) -> LLMatcher | GuideError:
        made: LLMatcher | GuideError
        try:
            made = compile_guide(self._known[0], guide)
        except GuideError as error:
            made = error
        with self._lock:
            self._keep(guide, made)
        return made

    def _keep(self, guide: Guide, matcher: LLMatcher | GuideError) -> None:
        if guide.digest in self._kept:
            return
        self._kept[guide.digest] = matcher, len(guide.text)
        self._num_characters += len(guide.text)
        while len(self._kept) > _KEPT_GUIDES or (
            self._num_characters > _KEPT_CHARACTERS and len(self._kept) > 1
        ):
            _, (_, num_characters) = self._kept.popitem(last=False)
            self._num_characters -= num_characters


class _Tokens:
    """What the library asks of a tokeniser; nothing that is forced is ever tokenised."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = len(tokens) - 1
        self.special_token_ids: list[int] = []

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError(f"to tokenise {text!r}")


def _lark(guide: Guide) -> str:
    """The guide's text as a grammar."""
    match guide.kind:
        case GuideKind.JSON_OBJECT:
            return f"start: {lark.json_object()}"
        case GuideKind.JSON_SCHEMA:
            return f"start: {lark.json_value(json.loads(guide.text))}"
        case GuideKind.REGEX:
            # The library passes over a backslash that nothing follows.
            if (len(guide.text) - len(guide.text.rstrip("\\"))) % 2:
                raise GuideError("a backslash at the end escapes nothing")
            # The notation has no line breaks between slashes.
            pattern = guide.text.replace("\n", "\\n").replace("\r", "\\r")
            return f"start: /{regex_to_lark(pattern, 'd')}/"
        case GuideKind.CHOICE:
            # One word of the lexer: as many rules would be as many items at every step.
            texts = " | ".join(lark.literal(text) for text in json.loads(guide.text))
            return f"start: CHOICE\nCHOICE: {texts}"
        case GuideKind.GRAMMAR:
            return guide.text


def _reason(message: str) -> str:
    """The library's words without its excerpt of the grammar, or of its own stack."""
    if message.startswith("panic: "):
        return "the library cannot take it"
    text = message.partition("\n   1 |")[0].partition("<non-verbose/>")[0]
    text = text.removeprefix("at 2(8): ").removeprefix("failed to compile JSON schema: ")
    return " ".join(text.split())[:500] or "nothing can follow it"
