"""/metrics, /healthz and /readyz, and the two figures behind liveness. Knows no model."""

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest

from slipstream_operator.election import clock
from slipstream_operator.heartbeat import Heartbeat
from slipstream_operator.metrics import Metrics

_SAMPLE_S = 1.0
# A loop that is this late serves nobody.
_MAX_LAG_S = 10.0
# A watch this far behind is dead: a live one is late by milliseconds.
_MAX_WATCH_AGE_S = 120.0


class Health:
    def __init__(
        self, metrics: Metrics, heartbeat: Heartbeat, *, is_synced: Callable[[], bool]
    ) -> None:
        self._metrics = metrics
        self._heartbeat = heartbeat
        self._is_synced = is_synced
        self._lag_s = 0.0

    async def sample(self) -> None:
        """Measure the loop's lag and the watches' age until cancelled."""
        while True:
            before = clock()
            await asyncio.sleep(_SAMPLE_S)
            self._lag_s = max(0.0, clock() - before - _SAMPLE_S)
            self._metrics.loop_lag_s.set(self._lag_s)
            late = self._heartbeat.most_late(clock())
            self._metrics.watch_age_s.set(late.age_s if late is not None else 0.0)

    async def serve(self, port: int) -> web.AppRunner:
        """Start answering; the caller cleans the runner up."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._serve_metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, None, port).start()
        return runner

    async def _healthz(self, _: web.Request) -> web.Response:
        late = self._heartbeat.most_late(clock())
        if self._lag_s > _MAX_LAG_S:
            return web.Response(status=500, text=f"event loop {self._lag_s:.1f} s late\n")
        if self._is_synced() and late is not None and late.age_s > _MAX_WATCH_AGE_S:
            return web.Response(status=500, text=f"{late}\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._is_synced():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the first listing is not complete\n")

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})
