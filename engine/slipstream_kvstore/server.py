"""Who may connect, and how everybody leaves. Nothing that one client does ends the server."""

import asyncio
import contextlib
import logging
import socket

from slipstream_kvstore import channel as channels
from slipstream_kvstore.channel import Channel
from slipstream_kvstore.metrics import Ended
from slipstream_kvstore.session import RefusedError, Service, Session

log = logging.getLogger("slipstream.cache")

# After a failed accept (no descriptors left): some connection must end first.
_ACCEPT_PAUSE_S = 0.1


class Server:
    """`start`, then `drain` or `close`."""

    def __init__(self, service: Service, max_connections: int) -> None:
        self._service = service
        self._metrics = service.metrics
        self._max_connections = max_connections
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._sessions: dict[asyncio.Task[None], Session] = {}

    def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        self._listener = channels.listen(host, port)
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return int(self._listener.getsockname()[1])

    @property
    def is_serving(self) -> bool:
        return self._accepting is not None and not self._accepting.done()

    @property
    def has_failed(self) -> bool:
        """Nobody can connect, and nobody wanted that."""
        accepting = self._accepting
        return accepting is not None and accepting.done() and not accepting.cancelled()

    async def drain(self, timeout_s: float) -> None:
        """Requests that have begun may finish; everybody else is cut at once."""
        await self._stop_accepting()
        for task, session in self._sessions.items():
            session.end_after_this_request()
            if session.is_idle:
                task.cancel()
        if self._sessions:
            await asyncio.wait(self._sessions, timeout=timeout_s)
        await self.close()

    async def close(self) -> None:
        await self._stop_accepting()
        for task in self._sessions:
            task.cancel()
        if self._sessions:
            await asyncio.wait(self._sessions)

    async def _stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
                channel = Channel(sock)
            except OSError as error:
                log.warning("cannot accept: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._sessions) >= self._max_connections:
                self._metrics.ended[Ended.LIMIT].inc()
                channel.close()
                continue
            session = Session(self._service, channel)
            task = asyncio.create_task(self._live(session, channel, str(address[0])))
            self._sessions[task] = session
            self._metrics.connections.set(len(self._sessions))
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._sessions[task]
        self._metrics.connections.set(len(self._sessions))

    async def _live(self, session: Session, channel: Channel, peer: str) -> None:
        try:
            await session.serve()
        except RefusedError as refused:
            self._ended(refused.reason, peer, refused)
            with contextlib.suppress(OSError):
                await session.tell(refused.status)
        except TimeoutError as error:
            self._ended(Ended.DEADLINE, peer, error)
        except OSError as error:
            self._ended(Ended.NETWORK, peer, error)
        except Exception:
            self._metrics.ended[Ended.BUG].inc()
            log.exception("connection", extra={"peer": peer})
        finally:
            channel.close()

    def _ended(self, reason: Ended, peer: str, error: Exception) -> None:
        self._metrics.ended[reason].inc()
        detail = str(error) or None
        log.info(
            "connection ended",
            extra={"reason": reason.name.lower(), "peer": peer, "detail": detail},
        )
