"""An outside OpenAI endpoint, over real sockets: a few lines of aiohttp in a thread of their own.

`Script` says how it answers; `Stand` keeps what it was sent.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Script:
    """One streamed answer. Seconds; `usage` None sends none; `cached` None tells no share."""

    text: tuple[str, ...] = ("Hello", " there", "!")
    before_role_s: float = 0.0
    before_first_s: float = 0.0
    between_s: float = 0.0
    prompt_tokens: int = 20
    cached: int | None = None
    usage: bool = True
    tokens_per_chunk: int = 1
    call: tuple[str, str, str] | None = None
    ends_with_done: bool = True

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(self.before_role_s)
        response = await begin(request)
        await send(response, delta={"role": "assistant", "content": ""})
        await asyncio.sleep(self.before_first_s)
        for index, piece in enumerate(self.text):
            if index:
                await asyncio.sleep(self.between_s)
            await send(response, delta={"content": piece})
        if self.call is not None:
            id_, name, arguments = self.call
            first = {"name": name, "arguments": ""}
            half = len(arguments) // 2
            await send(response, delta=tool(id=id_, type="function", function=first))
            for part in (arguments[:half], arguments[half:]):
                await send(response, delta=tool(function={"arguments": part}))
        await send(response, delta={}, finish="tool_calls" if self.call else "stop")
        if self.usage:
            await response.write(chunk(choices=[], usage=self.counts()))
        if self.ends_with_done:
            await response.write(b"data: [DONE]\n\n")
        return response

    def counts(self) -> dict[str, Any]:
        output = len(self.text) * self.tokens_per_chunk
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": output,
            "total_tokens": self.prompt_tokens + output,
        }
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return usage


def tool(**call: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **call}]}


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


async def begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


async def send(
    response: web.StreamResponse, *, delta: dict[str, Any], finish: str | None = None
) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    await response.write(chunk(choices=[choice], usage=None))


def chunk(**fields: Any) -> bytes:
    """As OpenAI names it: other load generators go by `object`."""
    document = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "small"}
    return event({**document, **fields})


def refuse(status: int, message: str) -> Answer:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": message}}, status=status)

    return answer


@dataclass
class Stand:
    """`answer` may be changed at any time; `seen` are bodies and headers in order of arrival."""

    answer: Answer
    models: tuple[str, ...] | None = ("small",)
    # What names stand for, where a listing says so.
    roots: dict[str, str] = field(default_factory=dict)
    port: int = 0
    seen: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        if self.models is None:
            raise web.HTTPNotFound
        cards = [{"id": name, "root": self.roots.get(name)} for name in self.models]
        return web.json_response({"data": cards})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append((body, {k.lower(): v for k, v in request.headers.items()}))
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            return await self.answer(request, body)
        finally:
            self.num_open -= 1


@contextmanager
def stand(answer: Answer, models: tuple[str, ...] | None = ("small",)) -> Iterator[Stand]:
    """Served by a loop of its own, so that a generator in this one cannot hide behind it."""
    made = Stand(answer, models)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(_start(made), loop).result(10)
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(made: Stand) -> web.AppRunner:
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/v1/models", made.list_models)
    app.router.add_post("/v1/chat/completions", made.chat)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    return runner
