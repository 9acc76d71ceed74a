"""Passes one engine's answer on to its client, chunk by chunk, and ends it as it deserves.

An answer that did not come to its own end is never closed like one that did: where events are
spoken an error event says why, and the connection ends without the body's end.
"""

import asyncio
import time
from http import HTTPStatus

import aiohttp
from aiohttp import web

from slipstream_api.observation import ErrorClass
from slipstream_gateway import flight as flights
from slipstream_gateway import headers, openai
from slipstream_gateway.flight import Flight
from slipstream_gateway.reading import Reading

_EVENT_STREAM = "text/event-stream"
_RETRY_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
# Half of what asyncio holds for a connection before a writer waits. An event is smaller, and a
# timeout for each would cost more than reading it (2 µs of 14).
_SMALL_BYTES = 32 * 1024
# What a client that reads slowly gets to take the last words.
_LAST_WORDS_S = 2.0


class _ClientGone(Exception):  # noqa: N818
    """The client's connection ended before its answer did, or takes nothing."""


class _Broken(Exception):  # noqa: N818
    """The answer ended before its own end."""

    def __init__(self, error_class: ErrorClass) -> None:
        super().__init__(error_class.value)
        self.error_class = error_class


async def relay(
    request: web.Request,
    flight: Flight,
    upstream: aiohttp.ClientResponse,
    *,
    write_timeout_s: float,
    retry_after_s: int,
) -> web.StreamResponse:
    """The answer that the client got; `flight` knows how it ended."""
    response = _head(flight, upstream, retry_after_s)
    flight.status = upstream.status
    flight.error_class = flights.refusal(upstream.status)
    flight.streamed = upstream.content_type == _EVENT_STREAM
    # Nothing of ours fits into a stream that comes compressed although nobody asked for it.
    is_readable = upstream.headers.get("content-encoding", "identity") == "identity"
    reading = Reading(
        is_event_stream=flight.streamed and is_readable, offered_tools=flight.offered_tools
    )
    flight.reading = reading
    try:
        await _pass_on(request, response, upstream, reading, write_timeout_s)
    except _ClientGone:
        flight.fail(ErrorClass.CLIENT_DISCONNECT)
        if request.transport is not None:
            request.transport.abort()  # it takes no more bytes, of an ending neither
    except _Broken as broken:
        flight.fail(broken.error_class)
        await _break_off(request, response, reading, broken.error_class)
    except asyncio.CancelledError:
        if not flight.is_cut or request.transport is None:
            raise
        flight.task.uncancel()
        flight.fail(ErrorClass.GATEWAY_SHUTDOWN)
        await _break_off(request, response, reading, ErrorClass.GATEWAY_SHUTDOWN)
    return response


def _head(
    flight: Flight, upstream: aiohttp.ClientResponse, retry_after_s: int
) -> web.StreamResponse:
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
    for name, value in headers.to_client(upstream.headers.items(), request_id=flight.request_id):
        response.headers.add(name, value)
    response.content_length = upstream.content_length
    if upstream.status in _RETRY_LATER:
        response.headers.setdefault("retry-after", str(retry_after_s))
    if upstream.content_type == _EVENT_STREAM:
        # Understood by nginx, which otherwise collects a stream before it passes it on.
        response.headers.setdefault("x-accel-buffering", "no")
    return response


async def _pass_on(
    request: web.Request,
    response: web.StreamResponse,
    upstream: aiohttp.ClientResponse,
    reading: Reading,
    write_timeout_s: float,
) -> None:
    """Raises _ClientGone or _Broken."""
    try:
        await response.prepare(request)
        while chunk := await _next_chunk(upstream, reading):
            reading.feed(chunk, time.monotonic())
            if len(chunk) < _SMALL_BYTES and not _is_behind(request):
                await response.write(chunk)  # cannot wait: it fits into what the socket may owe
            else:
                async with asyncio.timeout(write_timeout_s):
                    await response.write(chunk)
        if upstream.status == HTTPStatus.OK and reading.flaw is not None:
            raise _Broken(reading.flaw)
        await response.write_eof()
    except (ConnectionError, TimeoutError) as error:
        raise _ClientGone from error


def _is_behind(request: web.Request) -> bool:
    """Whether the client has yet to read what was written before."""
    return request.transport is None or request.transport.get_write_buffer_size() > 0


async def _next_chunk(upstream: aiohttp.ClientResponse, reading: Reading) -> bytes:
    """What came since the last one; nothing at the end. Raises _Broken."""
    try:
        return await upstream.content.readany()
    except (aiohttp.ClientError, OSError) as error:  # OSError: TimeoutError is one
        if reading.is_done:
            return b""  # the answer was whole; only its connection was not
        is_silent = isinstance(error, TimeoutError)
        broken = ErrorClass.ENGINE_TIMEOUT if is_silent else ErrorClass.ENGINE_BROKE
        raise _Broken(ErrorClass.ENGINE_FAILED if reading.has_failed else broken) from error


async def _break_off(
    request: web.Request,
    response: web.StreamResponse,
    reading: Reading,
    error_class: ErrorClass,
) -> None:
    transport = request.transport
    if transport is None:
        return
    # An engine that told its error itself has said it; a second one would confuse.
    if reading.is_event_stream and not reading.has_told_error and response.prepared:
        event = openai.failed(error_class).event()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await response.write(event if reading.is_between_events else b"\n\n" + event)
        except (ConnectionError, TimeoutError):
            transport.abort()
            return
    transport.close()
    # Closing waits for the client to read what is written; a client that never does is left.
    asyncio.get_running_loop().call_later(_LAST_WORDS_S, transport.abort)
