"""The gateway as a process: start in the right order, run, drain on SIGTERM, leave cleanly."""

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from lightkube.core.exceptions import ConfigError as KubeConfigError

from slipstream_api import config as configs
from slipstream_api import failure, names
from slipstream_api.conditions import Reason
from slipstream_api.config import ConfigError, GatewayConfig
from slipstream_api.failure import StartupFailure
from slipstream_api.observation import Ring
from slipstream_gateway import cluster
from slipstream_gateway.cluster import Identity
from slipstream_gateway.flight import Recorder
from slipstream_gateway.metrics import Metrics
from slipstream_gateway.proxy import Proxy
from slipstream_gateway.reporter import Reporter
from slipstream_gateway.server import Server
from slipstream_gateway.upstream import Engines
from slipstream_gateway.view import View
from slipstream_gateway.watcher import Watcher

log = logging.getLogger("slipstream.gateway")

# New connections still come for so long after this Pod stopped being ready.
UNREADY_GRACE_S = 3.0


def serve(path: Path, termination_log: Path = Path(names.TERMINATION_LOG)) -> int:
    """Serve until SIGTERM. 0: drained; 1: could not start, and said why."""
    try:
        config = configs.load(GatewayConfig, path)
        identity = read_identity(os.environ)
        asyncio.run(run(config, identity))
    except ConfigError as error:
        return _fail(error.message, error.field, termination_log)
    except KubeConfigError as error:
        return _fail(f"no way to the Kubernetes API: {error}", "", termination_log)
    except OSError as error:
        return _fail(f"cannot listen: {error}", "port", termination_log)
    return 0


def read_identity(environment: Mapping[str, str]) -> Identity:
    """From the downward API. Raises ConfigError."""
    values = [environment.get(name, "") for name in ("POD_NAME", "POD_NAMESPACE")]
    if not all(values):
        raise ConfigError("POD_NAME and POD_NAMESPACE must be set in the environment", "")
    return Identity(values[0], values[1], uid=environment.get("POD_UID") or None)


def _fail(message: str, field: str, termination_log: Path) -> int:
    log.error("cannot start: %s", message)
    failure.write(StartupFailure(Reason.CONFIG_INVALID.value, message, field), termination_log)
    return 1


async def run(config: GatewayConfig, identity: Identity) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Gateway(config, identity).run(stop)


class Gateway:
    """All parts of one gateway. `port` is known once `is_listening` is set."""

    def __init__(
        self,
        config: GatewayConfig,
        identity: Identity,
        *,
        unready_grace_s: float = UNREADY_GRACE_S,
    ) -> None:
        self._config = config
        self._unready_grace_s = unready_grace_s
        self._scopes = cluster.scopes(config.namespaces)
        self.metrics = Metrics()
        self.view = View(self._scopes)
        self._watcher = Watcher(self.view, identity, self.metrics)
        self._reporter = Reporter(
            self.view, identity, self.metrics, lease_duration_s=config.lease_duration_s
        )
        self._engines = Engines(
            connect_timeout_s=config.connect_timeout_s, read_timeout_s=config.read_timeout_s
        )
        ring = Ring(config.observations, instance=f"{identity.name}/{uuid.uuid4().hex[:8]}")
        recorder = Recorder(self.metrics, ring)
        proxy = Proxy(config, self.view, self._engines, self.metrics, recorder)
        self._server = Server(config, identity, self.view, proxy, self.metrics, ring)
        self.is_listening = asyncio.Event()
        self.port = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then finish what was begun."""
        try:
            self.port = await self._server.start()
            self.is_listening.set()
            log.info("listening", extra={"port": self.port})
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work) for work in self._background()]
                await stop.wait()
                log.info("draining")
                await self._server.drain(self._unready_grace_s)
                log.info("drained")
                for task in tasks:
                    task.cancel()
            await self._reporter.say_farewell()
        finally:
            await self._server.close()
            await self._engines.close()
            await self._reporter.close()

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self._reporter.keep_lease(),
            self._reporter.keep_acknowledging(),
            self._watcher.put_into_use(),
            *(self._follow(scope) for scope in self._scopes),
        ]

    async def _follow(self, scope: str) -> None:
        # The Lease comes before the first list: a generation that the operator wrote when it
        # could not yet know of this gateway is then surely in that list.
        await self._reporter.has_lease.wait()
        await self._watcher.follow(scope)
