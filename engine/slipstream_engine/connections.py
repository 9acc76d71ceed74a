"""Connections to the API: what is no HTTP is answered in the shape of every other error.

aiohttp answers it by itself, in plain text that quotes what it was sent, and has no public place
to change that.
"""

from aiohttp import web
from aiohttp.web_request import BaseRequest

from slipstream_engine.apierror import ApiError


class _Connection(web.RequestHandler):
    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)
        words = "the request is no valid HTTP" if status < 500 else "unexpected error"
        shaped = ApiError(status, words, code=f"http_{status}")
        response = web.json_response(shaped.document(), status=status)
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        made.__class__ = _Server
        return made


def runner(app: web.Application) -> web.AppRunner:
    """`app` before it listens. A client that goes away ends its handler, and its work."""
    return _Runner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
