"""The internal token: whether a header may be believed. Knows two files and no HTTP."""

import hmac
from pathlib import Path

from slipstream_api import names
from slipstream_api.config import ConfigError

_FIELD = "server.tokenDir"
_Stamp = tuple[int, int, int]


class InternalTokens:
    """The keys in one folder: two may be valid, read again when the files change."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError: no folder, or no current key in it."""
        self._folder = folder
        self._stamps: tuple[_Stamp | None, ...] = ()
        self._keys: list[bytes] = []
        self._refresh()
        if not self._keys:
            raise ConfigError(f"no key {names.TOKEN_KEYS[0]} in {folder}", _FIELD)

    def is_valid(self, candidate: str | None) -> bool:
        """Takes the same time whatever the candidate has in common with a key."""
        if candidate is None:
            return False
        self._refresh()
        # aiohttp hands on bytes that are no UTF-8 as surrogates.
        offered = candidate.encode("utf-8", "surrogateescape")
        # The sum looks at every key, also after a match.
        return sum(hmac.compare_digest(offered, key) for key in self._keys) > 0

    def _refresh(self) -> None:
        # A mounted Secret changes by exchanging a link: the file behind the name is another.
        stamps = tuple(_stamp(self._folder / name) for name in names.TOKEN_KEYS)
        if stamps == self._stamps:
            return
        keys = [_read(self._folder / name) for name in names.TOKEN_KEYS]
        self._keys = [key for key in keys if key]
        self._stamps = stamps


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
