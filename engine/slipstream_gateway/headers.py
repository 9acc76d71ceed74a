"""Which headers cross the gateway, in both directions. Pure.

What is not named here stays outside: an engine never sees a client's credentials or cookies, and
never an `x-slipstream-*` header that the gateway did not set itself.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from slipstream_api import names

_TO_ENGINE: Final = ("accept", "content-type", "user-agent", "traceparent", "tracestate")

# RFC 9110, section 7.6.1, and what each hop writes for itself.
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "date",
        "server",
    }
)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def to_engine(
    client: Mapping[str, str],
    *,
    token: str,
    model: str,
    track: str,
    session: str,
    cache_salt: str | None,
    request_id: str,
) -> dict[str, str]:
    """The headers of the upstream request. `client` must be case-insensitive."""
    headers = {name: client[name] for name in _TO_ENGINE if name in client}
    # The bytes of a stream pass as they are, so they must not come compressed.
    headers["accept-encoding"] = "identity"
    headers[names.HEADER_TOKEN] = token
    headers[names.HEADER_MODEL] = model
    headers[names.HEADER_TRACK] = track
    headers[names.HEADER_SESSION] = session
    headers[names.HEADER_REQUEST_ID] = request_id
    if cache_salt is not None:
        headers[names.HEADER_CACHE_SALT] = cache_salt
    return headers


def to_client(engine: Iterable[tuple[str, str]], *, request_id: str) -> list[tuple[str, str]]:
    """The headers of the answer; the caller adds a length where there is one."""
    pairs = [(name, value) for name, value in engine]
    named = {
        word.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for word in value.split(",")
    }
    kept = [
        (name, value)
        for name, value in pairs
        if name.lower() not in _HOP_BY_HOP | named | {names.HEADER_REQUEST_ID}
        and not name.lower().startswith("x-slipstream-")
    ]
    return [*kept, (names.HEADER_REQUEST_ID, request_id)]


def usable_request_id(value: str) -> str | None:
    """A client's request id where it is safe to log and to repeat."""
    return value if _REQUEST_ID.fullmatch(value) else None
