"""Tokens as bytes, four each, so that the interpreter's own search finds sequences of them.

Searching 10,000 tokens takes some microseconds and no index: nothing to build or to keep.
"""

from array import array
from collections.abc import Iterable, Iterator

SIZE = 4
_TYPE = "i"


def pack(tokens: Iterable[int]) -> bytes:
    return array(_TYPE, tokens).tobytes()


def forwards(text: bytes | bytearray, pattern: bytes, first: int, last: int) -> Iterator[int]:
    """The places after each occurrence that lies in [first ─ last), counted in tokens."""
    start = text.find(pattern, SIZE * first, SIZE * last)
    while start >= 0:
        # Bytes in the middle of two tokens can look alike.
        if start % SIZE == 0:
            yield (start + len(pattern)) // SIZE
        start = text.find(pattern, start + 1, SIZE * last)


def backwards(text: bytes | bytearray, pattern: bytes, first: int, last: int) -> Iterator[int]:
    """The same from the last occurrence to the first."""
    start = text.rfind(pattern, SIZE * first, SIZE * last)
    while start >= 0:
        if start % SIZE == 0:
            yield (start + len(pattern)) // SIZE
        start = text.rfind(pattern, SIZE * first, start + len(pattern) - 1)
