"""The internal token: whether a header may be believed. Knows no HTTP."""

from pathlib import Path

from slipstream_api import names
from slipstream_api.config import ConfigError
from slipstream_kvstore.credentials import CredentialsError, Tokens

_FIELD = "server.tokenDir"


class InternalTokens:
    """The keys in one folder: several may be valid, read again when the files change."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError: no folder, or no current key in it."""
        try:
            self._tokens = Tokens(folder, names.TOKEN_KEYS)
        except CredentialsError as error:
            raise ConfigError(str(error), _FIELD) from error

    def is_valid(self, candidate: str | None) -> bool:
        """Takes the same time whatever the candidate has in common with a key."""
        if candidate is None:
            return False
        # aiohttp hands on bytes that are no UTF-8 as surrogates.
        return self._tokens.accepts(candidate.encode("utf-8", "surrogateescape"))
