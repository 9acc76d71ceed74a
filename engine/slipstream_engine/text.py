"""Tokens to text as they come: whole characters only, and nothing past a stop string."""

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer


def _byte_of_character() -> dict[str, int]:
    """The published table of byte-level BPE: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_BYTES = _byte_of_character()


class TokenBytes:
    """The bytes of every token of one byte-level tokeniser; special tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {
            index: b"" if token.special else token.content.encode()
            for index, token in tokenizer.get_added_tokens_decoder().items()
        }

    def of(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            # Rows of padded embeddings name no token.
            text = self._tokenizer.id_to_token(token) or ""
            known = bytes(_BYTES[character] for character in text if character in _BYTES)
            self._known[token] = known
        return known


class TextStream:
    """The text of one answer. Joined, its pieces are the answer; `is_stopped` after a stop."""

    def __init__(self, token_bytes: TokenBytes, stops: Sequence[str]) -> None:
        self._token_bytes = token_bytes
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Text that may be the beginning of a stop string.
        self._held = ""
        self.is_stopped = False

    def push(self, token: int) -> str:
        """The text that is certain after one more token."""
        return self._release(self._decoder.decode(self._token_bytes.of(token)))

    def finish(self) -> str:
        """What was held back, at the end of the answer."""
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text if self.is_stopped else text + held

    def _release(self, new: str) -> str:
        if self.is_stopped:
            return ""
        text = self._held + new
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.is_stopped, self._held = True, ""
            return text[: min(places)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
