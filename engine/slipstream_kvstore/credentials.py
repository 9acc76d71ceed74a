"""Tokens that open a door: files of a mounted Secret, read again when they change.

The first file's is sent; each that is there is accepted, so that a rotation interrupts nobody.
"""

import hmac
from collections.abc import Sequence
from pathlib import Path

from slipstream_kvstore.codec import MAX_TOKEN_BYTES

_Stamp = tuple[int, int, int]


class CredentialsError(Exception):
    """There is no token that could be used."""


class Tokens:
    """`files`: their names in the folder, the one to send first."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        """Raises CredentialsError: no folder, or no usable token in its first file."""
        self._paths = [folder / name for name in files]
        self._stamps: tuple[_Stamp | None, ...] = ()
        self._values: list[bytes] = []
        if not _is_usable(_read(self._paths[0])):
            raise CredentialsError(f"no token of 1 to {MAX_TOKEN_BYTES} bytes in {self._paths[0]}")

    def values(self) -> list[bytes]:
        """What is valid now, the one to send first."""
        # A mounted Secret changes by exchanging a link: the file behind the name is another.
        stamps = tuple(_stamp(path) for path in self._paths)
        if stamps != self._stamps:
            found = [_read(path) for path in self._paths]
            self._values = [value for value in found if _is_usable(value)]
            self._stamps = stamps
        return self._values

    def accepts(self, candidate: bytes) -> bool:
        """Takes the same time whatever the candidate has in common with a token."""
        # The sum looks at every token, also after a match.
        return sum(hmac.compare_digest(candidate, value) for value in self.values()) > 0


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError:
        return b""


def _is_usable(value: bytes) -> bool:
    return 1 <= len(value) <= MAX_TOKEN_BYTES
