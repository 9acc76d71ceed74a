"""Tokens to text as they come: whole characters only, and nothing past a stop string."""

import codecs
from collections import deque
from collections.abc import Sequence

from tokenizers import Tokenizer

from slipstream_engine.guides.spec import Vocabulary


def _byte_of_character() -> dict[str, int]:
    """The published table of byte-level BPE: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_BYTES = _byte_of_character()


class TokenBytes:
    """The bytes of every token of one byte-level tokeniser.

    Special tokens have none, but for those in `shown`.
    """

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = {
            index: token.content
            for index, token in added
            if token.special and token.content not in shown
        }
        self._known: dict[int, bytes] = {
            index: b"" if index in self._special else token.content.encode()
            for index, token in added
        }

    def of(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            # Rows of padded embeddings name no token.
            text = self._tokenizer.id_to_token(token) or ""
            known = bytes(_BYTES[character] for character in text if character in _BYTES)
            self._known[token] = known
        return known

    def name(self, token: int) -> str:
        """How log-probabilities show a token: no two tokens that have text share a name."""
        data = self.of(token)
        if not data:
            return self._special.get(token, f"<token {token}>")
        try:
            return data.decode()
        except UnicodeDecodeError:
            # OpenAI's way of writing part of a character.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def vocabulary(self) -> Vocabulary:
        """All tokens, for guides: 50 ms for 49,152."""
        size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        return Vocabulary(tuple(self.of(token) for token in range(size)), self._special)

    @property
    def longest(self) -> int:
        """Bytes of the longest token: a text has no fewer tokens than its length by this."""
        return max(len(text) for text in self._tokenizer.get_vocab(with_added_tokens=True))


class TextStream:
    """The text of one answer. Joined, its pieces are the answer; `is_stopped` after a stop.

    A stop string counts only where it begins after the first `min_tokens` tokens (as in vLLM).
    `num_tokens_out`: how many of the tokens have their text in what was given out; the others
    wait for the rest of a character or may belong to a stop string. Of a token in which a stop
    string begins, what stands before it is its text. `last_end`: how many characters there are
    with the last token, the one that it only begins included.
    """

    def __init__(self, token_bytes: TokenBytes, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._token_bytes = token_bytes
        self._stops = tuple(map(_Search, stops))
        self._num_unstoppable = min_tokens if stops else 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Text that may be the beginning of a stop string.
        self._held = ""
        # Lengths in characters, and where the text of each token ends that is not out yet.
        self._num_decoded = 0
        self._num_released = 0
        self._ends: deque[int] = deque()
        self._last_end = 0
        self.last_end = 0
        self.num_tokens_out = 0
        self.is_stopped = False

    def push(self, token: int) -> str:
        """The text that is certain after one more token."""
        new = self._decoder.decode(self._token_bytes.of(token))
        self._num_decoded += len(new)
        is_cut = bool(self._decoder.getstate()[0])
        self.last_end = self._num_decoded + is_cut
        self._ends.append(self.last_end)
        if self._num_unstoppable > 0:
            self._num_unstoppable -= 1
            return self._count(new)
        return self._count(self._release(new))

    def finish(self) -> str:
        """What was held back, at the end of the answer."""
        text = self._count(self._release(self._decoder.decode(b"", final=True)))
        held, self._held = self._held, ""
        if not self.is_stopped:
            text += held
            self.num_tokens_out += len(self._ends)
            self._ends.clear()
        return text

    def _count(self, released: str) -> str:
        self._num_released += len(released)
        ends = self._ends
        while ends and ends[0] <= self._num_released:
            self._last_end = ends.popleft()
            self.num_tokens_out += 1
        if self.is_stopped and ends and self._last_end < self._num_released:
            # The stop string begins inside of it.
            ends.clear()
            self.num_tokens_out += 1
        return released

    def _release(self, new: str) -> str:
        if self.is_stopped:
            return ""
        if not self._stops:
            return new
        text, num_held = self._held + new, len(self._held)
        places = [
            num_held + end - len(stop.wanted)
            for stop in self._stops
            if (end := stop.find_end(new)) is not None
        ]
        if places:
            self.is_stopped, self._held = True, ""
            return text[: min(places)]
        keep = max(stop.num_matched for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


class _Search:
    """A string in a text that comes in pieces: Knuth, Morris and Pratt, 1977.

    `num_matched`: how much of its beginning the text so far ends with. Twice as many comparisons
    as there are characters at most, whatever both are: to try each length anew took 20 s a token
    for strings of 400,000 spaces.
    """

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.num_matched = 0
        # For each beginning that is matched: the longest shorter one that it ends with.
        self._shorter = [0, 0]
        for character in wanted[1:]:
            self._shorter.append(self._after(self._shorter[-1], character))

    def find_end(self, text: str) -> int | None:
        """Where in the next piece its first occurrence ends; None: it has none yet."""
        if self.num_matched == 0 and self.wanted[0] not in text:
            return None
        for index, character in enumerate(text):
            self.num_matched = self._after(self.num_matched, character)
            if self.num_matched == len(self.wanted):
                return index + 1
        return None

    def _after(self, num_matched: int, character: str) -> int:
        while num_matched and self.wanted[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + (self.wanted[num_matched] == character)
