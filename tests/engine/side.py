"""The serving side alone, in this process: a real socket, a rank process without a model."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from slipstream_api import config as configs
from slipstream_api.config import EngineConfig
from slipstream_engine import connections, server
from slipstream_engine.engine import Engine
from slipstream_engine.messages import Loaded
from slipstream_engine.questions import TextSide
from slipstream_engine.rankclient import RankClient
from slipstream_engine.tokens import InternalTokens
from slipstream_engine.tracing import Tracing
from slipstream_weights.checkpoint import TextModel
from tests.engine import served, tiny

MODULE = "tests.engine.fakerank"
CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"


@dataclass
class Side:
    engine: Engine
    url: str

    def client(self, **fields: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=30, **fields)


def text_side(chat_template: str = tiny.CHAT_TEMPLATE) -> TextSide:
    model = TextModel(
        tokenizer=tiny.tokenizer(),
        chat_template=chat_template,
        end_tokens=frozenset({1}),
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )
    return TextSide.make(model)


def config(**sections: Any) -> EngineConfig:
    # A file of any kind stands for the checkpoint: the identity tells its digest.
    return EngineConfig.model_validate(served.config(Path(__file__), **sections))


@asynccontextmanager
async def serving(
    tracing: Tracing | None = None,
    tokens: InternalTokens | None = None,
    text: TextSide | None = None,
    **sections: Any,
) -> AsyncIterator[Side]:
    made = config(**sections)
    ranks = made.parallel.num_ranks
    rank = await RankClient.start(configs.dump(made), ranks, module=MODULE)
    engine = Engine(made, tokens, rank, tracing)
    http = connections.runner(server.make_app(engine))
    await http.setup()
    try:
        site = web.TCPSite(http, "127.0.0.1", 0)
        await site.start()
        loaded = await rank.wait_loaded()
        assert isinstance(loaded, Loaded), loaded
        engine.begin_serving(loaded, text or text_side())
        yield Side(engine, f"http://127.0.0.1:{http.addresses[0][1]}")
    finally:
        await http.cleanup()
        engine.close()
        await rank.stop()


@contextmanager
def serving_beside(text: TextSide) -> Iterator[Side]:
    """The same in a thread of its own, for clients that wait."""
    loop = asyncio.new_event_loop()
    ready: queue.SimpleQueue[tuple[Side, asyncio.Event]] = queue.SimpleQueue()

    async def live() -> None:
        async with serving(text=text) as side:
            ended = asyncio.Event()
            ready.put((side, ended))
            await ended.wait()

    def run() -> None:
        loop.run_until_complete(live())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    side, ended = ready.get(timeout=60)
    try:
        yield side
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)


def chat(content: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat whose answer begins with `content` again: see fakerank."""
    document = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 12,
    }
    return {name: value for name, value in {**document, **fields}.items() if value is not ...}


async def until(is_true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_true():  # noqa: ASYNC110  (what is waited for is in another process)
            await asyncio.sleep(0.01)
