"""The cache as a process: plain values in, pages served until SIGTERM, a drain, an end.

Who reads the configuration file and says why it could not start is the command line
(`slipstream_cli.cache`): this package imports nothing else of ours.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass

from slipstream_kvstore import health
from slipstream_kvstore.codec import Limits
from slipstream_kvstore.metrics import Metrics
from slipstream_kvstore.server import Server
from slipstream_kvstore.session import InFlight, Service, Timeouts
from slipstream_kvstore.store import Store

log = logging.getLogger("slipstream.cache")


@dataclass(frozen=True, slots=True)
class Settings:
    """`max_bytes` of pages, `max_in_flight_bytes` on their way: the process needs both at once."""

    host: str
    port: int
    health_port: int
    max_bytes: int
    tenant_max_bytes: int | None
    limits: Limits
    max_in_flight_bytes: int
    max_connections: int
    timeouts: Timeouts
    drain_timeout_s: float


class ListenError(Exception):
    """`is_health`: it was the port of probes and metrics."""

    def __init__(self, error: OSError, *, is_health: bool) -> None:
        super().__init__(str(error))
        self.is_health = is_health


def run(settings: Settings, accepts: Callable[[bytes], bool]) -> None:
    """Serve until SIGTERM or SIGINT. Raises ListenError."""
    asyncio.run(_run(settings, accepts))


async def _run(settings: Settings, accepts: Callable[[bytes], bool]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service = Service(
        store=Store(settings.max_bytes, settings.tenant_max_bytes),
        limits=settings.limits,
        timeouts=settings.timeouts,
        in_flight=InFlight(settings.max_in_flight_bytes),
        accepts=accepts,
        metrics=Metrics(),
    )
    server = Server(service, settings.max_connections)
    try:
        port = server.start(settings.host, settings.port)
    except OSError as error:
        raise ListenError(error, is_health=False) from error
    try:
        runner = await health.serve(server, service, settings.host, settings.health_port)
    except OSError as error:
        await server.close()
        raise ListenError(error, is_health=True) from error
    try:
        log.info("listening", extra={"port": port, "health_port": runner.addresses[0][1]})
        await stop.wait()
        log.info("draining")
        await server.drain(settings.drain_timeout_s)
        log.info("drained")
    finally:
        await server.close()
        await runner.cleanup()
