"""The one door to engines: sends a request and returns the answer's head. Knows no routing.

EngineError              no answer came; `is_retriable`: surely nothing was computed
├── Unreachable          no connection
├── Dropped              the connection ended before an answer
└── Silent               no byte within the read timeout
"""

import io
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from slipstream_gateway.table import Replica


class EngineError(Exception):
    error_class = "engine_error"
    is_retriable = False


class Unreachable(EngineError):  # noqa: N818
    error_class = "engine_unreachable"
    is_retriable = True


class Dropped(EngineError):  # noqa: N818
    """Retriable only on a reused connection: the engine may have closed it as idle in the same
    moment. On a fresh one the request itself may be what ended the engine."""

    error_class = "engine_dropped"

    def __init__(self, message: str, *, was_reused: bool) -> None:
        super().__init__(message)
        self.is_retriable = was_reused


class Silent(EngineError):  # noqa: N818
    error_class = "engine_timeout"


class Engines:
    """Connections to every engine; timeouts in seconds."""

    def __init__(self, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            # No limit: how many requests an engine takes is the engine's to say.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s
            ),
            trace_configs=[trace],
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    async def post(
        self, replica: Replica, path: str, body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """The answer as soon as its head is here; the caller closes it. Raises EngineError."""
        url = URL.build(scheme="http", host=replica.address, port=replica.port, path=path)
        context = SimpleNamespace(was_reused=False)
        try:
            return await self._session.post(
                url,
                data=io.BytesIO(body),  # sent in pieces: a large one does not hold the loop
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=context,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(str(error)) from error
        except aiohttp.ServerTimeoutError as error:
            raise Silent(str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Dropped(str(error), was_reused=context.was_reused) from error


async def _note_reuse(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: Any
) -> None:
    context.trace_request_ctx.was_reused = True
