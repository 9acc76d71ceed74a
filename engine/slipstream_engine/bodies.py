"""The bytes of a request: whether they come, and whether they may be read. Knows no fields."""

import asyncio
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from slipstream_api.jsonbounds import JsonBounds
from slipstream_engine.apierror import ApiError

# How long a client may take to send its body: as long as at the gateway.
READ_S = 120.0
_KIB = 1024


@dataclass(frozen=True, slots=True)
class BodyLimits:
    max_context: int
    max_bytes: int
    bounds: JsonBounds

    @classmethod
    def of(cls, max_context: int, longest_token_bytes: int) -> "BodyLimits":
        """What a context can hold, several times over, and what is no prompt beside it.

        No text that fits has more bytes than the context has tokens of the longest kind; a byte
        takes at most six in JSON. Minified JSON as a prompt has 0.9 quotes a token, lists of
        numbers 0.3 brackets. Eight prompts of one context each may come as tokens.
        The worst of what passes is read in 0.08 s with a context of 8,192 tokens and in 0.5 s with
        131,072 (one of two noisy 2.6 GHz cores).
        """
        own = 32 * _KIB
        bounds = JsonBounds(own + max_context, own + 2 * max_context, own + 8 * max_context)
        max_bytes = _KIB * _KIB + 8 * max_context * longest_token_bytes
        return cls(max_context, max_bytes, bounds)

    def check_bytes(self, num_bytes: int) -> None:
        """Raises ApiError."""
        if num_bytes > self.max_bytes:
            raise self._too_long(
                f"the body has {num_bytes} bytes; at most {self.max_bytes} are read"
            )

    def check(self, body: bytes) -> None:
        """Raises ApiError."""
        self.check_bytes(len(body))
        if excess := self.bounds.excess(body):
            raise self._too_long(excess)

    def _too_long(self, excess: str) -> ApiError:
        """With the code by which clients know that they must say less."""
        return ApiError(
            400,
            f"the context holds {self.max_context} tokens; {excess}",
            code="context_length_exceeded",
        )


async def read(request: web.Request, limits: BodyLimits, read_s: float) -> bytes:
    """The body. Raises ApiError: 400 for what no context holds, 408 for what does not come."""
    limits.check_bytes(request.content_length or 0)
    try:
        async with asyncio.timeout(read_s):
            body = await request.read()
    except (web.RequestPayloadError, HttpProcessingError) as error:
        message = "the body cannot be read: its length or its encoding is not what it says"
        raise ApiError(400, message, code="invalid_body") from error
    except TimeoutError as error:
        message = f"the body did not come within {read_s:g} s"
        raise ApiError(408, message, code="request_timeout") from error
    limits.check(body)
    return body
