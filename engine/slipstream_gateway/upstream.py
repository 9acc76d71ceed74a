"""The one door to engines: sends a request and returns the answer's head. Knows no routing.

EngineError              no answer came; `remedy` says what may be done about it
├── Unreachable          no connection
├── Dropped              the connection ended before an answer
└── Silent               no byte within the read timeout
"""

import io
from collections.abc import Mapping
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from slipstream_api.observation import ErrorClass
from slipstream_gateway.table import Replica

# uvicorn, which serves vLLM and SGLang, closes an idle connection after 5 s: this end is first.
_KEEP_ALIVE_S = 4.0


class Remedy(Enum):
    """What may be done with a request that got no answer, without computing anything twice."""

    ELSEWHERE = auto()
    SAME_AGAIN = auto()
    NONE = auto()


class EngineError(Exception):
    error_class = ErrorClass.ENGINE_FAILED
    remedy = Remedy.NONE


class Unreachable(EngineError):  # noqa: N818
    error_class = ErrorClass.ENGINE_UNREACHABLE
    remedy = Remedy.ELSEWHERE


class Dropped(EngineError):  # noqa: N818
    """On a reused connection the engine may have closed it as idle in the same moment, or the
    request may have ended the engine. Only the same engine can tell: one that still takes a fresh
    connection lives, and no second one is risked. On a fresh connection it was the request."""

    error_class = ErrorClass.ENGINE_DROPPED

    def __init__(self, message: str, *, was_reused: bool) -> None:
        super().__init__(message)
        self.remedy = Remedy.SAME_AGAIN if was_reused else Remedy.NONE


class Silent(EngineError):  # noqa: N818
    error_class = ErrorClass.ENGINE_TIMEOUT


class Engines:
    """Connections to every engine; timeouts in seconds."""

    def __init__(self, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s
        )
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        # No limit: how many requests an engine takes is the engine's to say.
        self._pooled = _session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S), timeout, [trace]
        )
        self._fresh = _session(aiohttp.TCPConnector(limit=0, force_close=True), timeout, [])

    async def close(self) -> None:
        await self._pooled.close()
        await self._fresh.close()

    async def post(
        self,
        replica: Replica,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        is_fresh: bool = False,
    ) -> aiohttp.ClientResponse:
        """The answer as soon as its head is here; the caller closes it. `is_fresh`: over a
        connection of its own. Raises EngineError."""
        url = URL.build(scheme="http", host=replica.address, port=replica.port, path=path)
        context = SimpleNamespace(was_reused=False)
        session = self._fresh if is_fresh else self._pooled
        try:
            return await session.post(
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


def _session(
    connector: aiohttp.TCPConnector,
    timeout: aiohttp.ClientTimeout,
    traces: list[aiohttp.TraceConfig],
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        trace_configs=traces,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def _note_reuse(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: Any
) -> None:
    context.trace_request_ctx.was_reused = True
