"""The one door to the endpoint: lists its models, sends one request and takes its times."""

import asyncio
import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from slipstream_bench.answer import Answer, MalformedChunkError, StreamError, error_message
from slipstream_bench.errors import EndpointError
from slipstream_bench.record import Failure, FailureKind, Record
from slipstream_bench.sse import EventReader, EventTooLongError

clock_s = time.monotonic

_CONNECT_S = 10.0
_LIST_S = 30.0
# After [DONE] only the end of the body is awaited, so that the connection can be used again.
_END_OF_BODY_S = 1.0
# Servers close idle connections after 5 s (uvicorn) or more; a request must not race with that.
_KEEP_ALIVE_S = 4.0
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_LIST_BYTES = 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_CHARACTERS = 300
# Above this aiohttp wants a file, so as to send it in pieces.
_BYTES_IN_ONE_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    record: Record
    answer: Answer


class Endpoint:
    """An OpenAI endpoint by its base URL (with its `/v1`). An async context manager."""

    def __init__(self, url: str, *, api_key: str | None, deadline_s: float) -> None:
        self._url = url.rstrip("/")
        self._deadline_s = deadline_s
        headers = {"accept-encoding": "identity"}  # a compressed stream comes in lumps
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._headers = headers

    async def __aenter__(self) -> "Endpoint":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def models(self) -> dict[str, str] | None:
        """The names it answers to, and the model that each stands for.

        None where it does not list them. Raises EndpointError.
        """
        url = f"{self._url}/models"
        try:
            async with asyncio.timeout(_LIST_S), self._session.get(url) as response:
                status, text = response.status, await _beginning(response, _MAX_LIST_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise EndpointError(f"{url} cannot be reached: {reason}") from error
        if status in (401, 403):
            raise EndpointError(
                f"{url} answered {status}: {_words(text)}\nSet OPENAI_API_KEY, or pass --api-key."
            )
        if status != 200:
            return None
        try:
            found = json.loads(text)
            return {str(m["id"]): str(m.get("root") or m["id"]) for m in found["data"]}
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    async def send(
        self, document: Mapping[str, Any], headers: Mapping[str, str], intended_s: float, turn: int
    ) -> Reply:
        """One chat request to its end, deadline or failure; never raises for what it met."""
        data = msgspec.json.encode(document)
        answer = Answer()
        failure: Failure | None = None
        started_s = clock_s()
        try:
            async with asyncio.timeout(self._deadline_s):
                async with self._session.post(
                    f"{self._url}/chat/completions",
                    data=data if len(data) < _BYTES_IN_ONE_PIECE else io.BytesIO(data),
                    headers={"content-type": "application/json", **headers},
                    allow_redirects=False,
                ) as response:
                    if response.status == 200:
                        failure = await _read(response, answer)
                    else:
                        failure = await _refusal(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            failure = Failure(FailureKind.UNREACHABLE, str(error) or type(error).__name__)
        except TimeoutError:
            if answer.ended_s is None:
                failure = Failure(FailureKind.DEADLINE, f"not done after {self._deadline_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            failure = Failure(FailureKind.DISCONNECTED, str(error) or type(error).__name__)
        record = Record(
            turn=turn,
            intended_s=intended_s,
            started_s=started_s,
            ended_s=clock_s() if answer.ended_s is None else answer.ended_s,
            first_token_s=answer.first_s,
            last_token_s=answer.last_s,
            num_chunks=answer.num_chunks,
            gaps_s=answer.gaps_s,
            usage=answer.usage,
            finish_reason=answer.finish_reason,
            failure=failure,
            began_with_call=answer.began_with_call,
        )
        return Reply(record, answer)


async def _read(response: aiohttp.ClientResponse, answer: Answer) -> Failure | None:
    """Feed the stream to the answer; what was wrong with it, if anything.

    All events of one read get one time: they were here together.
    """
    if response.content_type != "text/event-stream":
        words = _words(await _beginning(response, _ERROR_CHARACTERS))
        message = f"not an event stream but {response.content_type}: {words}"
        return Failure(FailureKind.MALFORMED, message)
    events, num_bytes = EventReader(), 0
    try:
        while data := await response.content.readany():
            now_s = clock_s()
            num_bytes += len(data)
            if num_bytes > _MAX_ANSWER_BYTES:
                message = f"an answer longer than {_MAX_ANSWER_BYTES} bytes"
                return Failure(FailureKind.MALFORMED, message)
            for payload in events.feed(data):
                if payload == b"[DONE]":
                    answer.ended_s = now_s
                    await _finish(response)
                    return None
                answer.add(payload, now_s)
    except (MalformedChunkError, EventTooLongError) as error:
        return Failure(FailureKind.MALFORMED, str(error)[:_ERROR_CHARACTERS])
    except StreamError as error:
        return Failure(FailureKind.STREAM_ERROR, str(error)[:_ERROR_CHARACTERS])
    if answer.finish_reason is None:
        return Failure(FailureKind.TRUNCATED, "the stream ended before its answer did")
    answer.ended_s = clock_s()  # some endpoints send no [DONE]
    return None


async def _finish(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(_END_OF_BODY_S):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError):
        response.close()  # the answer is whole; only the connection is not used again


async def _refusal(response: aiohttp.ClientResponse) -> Failure:
    text = await _beginning(response, _MAX_ERROR_BYTES)
    return Failure(FailureKind.HTTP, _words(text), status=response.status)


async def _beginning(response: aiohttp.ClientResponse, max_bytes: int) -> str:
    kept = b""
    while len(kept) < max_bytes and (data := await response.content.readany()):
        kept += data
    return kept[:max_bytes].decode("utf-8", "replace")


def _words(text: str) -> str:
    """An error body as a person reads it, shortened."""
    try:
        message = error_message(json.loads(text))
    except ValueError:
        message = text
    return " ".join(message.split())[:_ERROR_CHARACTERS] or "(empty body)"
