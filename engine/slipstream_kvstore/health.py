"""/metrics, /healthz and /readyz of the cache, on a port of their own: no token, no page.

They answer from the event loop that serves pages: when that hangs, they do too, and the probe
fails.
"""

from aiohttp import web

from slipstream_kvstore.server import Server
from slipstream_kvstore.session import Service


async def serve(server: Server, service: Service, host: str, port: int) -> web.AppRunner:
    """Start answering; the caller cleans the runner up. Raises OSError."""

    async def healthz(_: web.Request) -> web.Response:
        if server.has_failed:
            return web.Response(status=500, text="takes no connections any more\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if not server.is_serving:
            return web.Response(status=503, text="not serving\n")
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        body = service.metrics.text(service.store, service.in_flight.used_bytes)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    for path, handler in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", metrics)):
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner
