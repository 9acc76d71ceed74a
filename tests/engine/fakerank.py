"""A rank process without a model, for tests of the serving side alone.

Every sample's answer is its prompt over and over, so that a test knows the text: one token a
step, or up to BURST of them, as from a model that speculates. A prompt may hold an order in place
of text: `<fail>` raises in the step, `<vanish>` ends the process without a word, `<garbage>` sends
what is no message, `<lost>` says that another rank is gone.
"""

import os
import queue
import random
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

from slipstream_api.conditions import Reason
from slipstream_engine import messages
from slipstream_engine.batch import Load, Progress, Sampled, TokenLogprob
from slipstream_engine.messages import (
    Abort,
    AbortSample,
    Failed,
    Forget,
    Loaded,
    Start,
    Step,
    Submit,
    Words,
)
from slipstream_engine.request import FinishReason, Request
from slipstream_kvstore.keys import Namespace, Split
from slipstream_kvstore.layout import PageLayout, PoolLayout
from tests.engine import tiny

STEP_S = "FAKE_STEP_S"
MAX_RUNNING = "FAKE_MAX_RUNNING"
BURST = "FAKE_BURST"
MAX_CONTEXT = 4096
NUM_PAGES = 1024
_PAGE_TOKENS = 16
LAYOUT = PageLayout(_PAGE_TOKENS, (PoolLayout("k", "float32", (2, 2, 16)),))


@dataclass
class _Asked:
    request: Request
    num_tokens: int = 0
    open: set[int] = field(default_factory=set)


class FakeEngine:
    """First come, first served; every running sample gets one to `burst` tokens a step."""

    def __init__(self, max_running: int, burst: int = 1) -> None:
        self._max_running = max_running
        self._bursts = random.Random(burst)
        self._burst = burst
        self._asked: dict[str, _Asked] = {}
        self._num_prompt_tokens = 0

    @property
    def is_idle(self) -> bool:
        return not self._asked

    def take(self, command: Submit | Abort | AbortSample) -> None:
        match command:
            case Submit(request):
                open_ = set(range(request.num_samples))
                self._asked[request.id] = _Asked(request, open=open_)
                self._num_prompt_tokens += len(request.prompt)
            case Abort(request_id):
                self._asked.pop(request_id, None)
            case AbortSample(request_id, sample):
                if (asked := self._asked.get(request_id)) is not None:
                    asked.open.discard(sample)
                    if not asked.open:
                        del self._asked[request_id]

    def step(self) -> Step:
        running = list(self._asked.values())[: self._max_running]
        fresh = [asked.request for asked in running if asked.num_tokens == 0]
        progress = []
        for _ in range(self._bursts.randint(1, self._burst)):
            open_ = [asked for asked in running if asked.request.id in self._asked]
            progress += [one for asked in open_ for one in self._advance(asked)]
        return Step(
            tuple(progress),
            self._load(),
            num_prefill_tokens=sum(len(request.prompt) for request in fresh),
            run_s=0.001,
            admitted=tuple(request.id for request in fresh),
        )

    def _advance(self, asked: _Asked) -> list[Progress]:
        request = asked.request
        token = request.prompt[asked.num_tokens % len(request.prompt)]
        asked.num_tokens += 1
        finish = None
        if token in request.end_tokens and asked.num_tokens > request.min_tokens:
            finish = FinishReason.STOP
        elif asked.num_tokens == request.max_tokens:
            finish = FinishReason.LENGTH
        told = [
            Progress(request.id, sample, _sampled(request, token), finish, len(request.prompt) // 2)
            for sample in sorted(asked.open)
        ]
        if finish is not None:
            del self._asked[request.id]
        return told

    def _load(self) -> Load:
        running = list(self._asked.values())[: self._max_running]
        used = sum((len(a.request.prompt) + a.num_tokens) // _PAGE_TOKENS + 1 for a in running)
        return Load(
            num_running=len(running),
            num_waiting=len(self._asked) - len(running),
            num_pages_used=used,
            num_pages_cached=3,
            num_pages=NUM_PAGES,
            num_prefix_queries=self._num_prompt_tokens,
            num_prefix_hits=self._num_prompt_tokens // 2,
            num_preemptions=0,
        )


def _sampled(request: Request, token: int) -> Sampled:
    count = request.sampling.num_top_logprobs
    if count is None:
        return Sampled(token)
    top = tuple(TokenLogprob(100 + index, -0.5 - index) for index in range(count))
    return Sampled(token, -0.25, top)


def main() -> int:
    connection = socket.socket(fileno=int(sys.argv[1]))
    commands: queue.SimpleQueue[messages.ToRank | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, commands), daemon=True).start()
    start = commands.get()
    assert isinstance(start, Start)
    if start.rank > 0:
        return _serve_beside(commands)
    namespace = Namespace("sha256:weights", LAYOUT, Split(), None, "fake")
    loaded = Loaded(
        architecture="llama",
        max_context=MAX_CONTEXT,
        num_pages=NUM_PAGES,
        page_bytes=LAYOUT.page_bytes,
        load_s=0.0,
        threads=1,
        namespace=messages.encode_namespace(namespace),
        kernels={"matmul": "torch"},
    )
    connection.sendall(messages.encode(loaded))
    try:
        return _serve(connection, commands)
    except BrokenPipeError:
        return 0
    except Exception as error:
        words = Failed(Reason.CONTAINER_FAILED, f"{type(error).__name__}: {error}")
        connection.sendall(messages.encode(words))
        return 1


def _serve(connection: socket.socket, commands: "queue.SimpleQueue[messages.ToRank | None]") -> int:
    environ = os.environ
    engine = FakeEngine(int(environ.get(MAX_RUNNING, "8")), int(environ.get(BURST, "1")))
    step_s = float(os.environ.get(STEP_S, "0.001"))
    while True:
        taken = [commands.get()] if engine.is_idle else []
        while not commands.empty():
            taken.append(commands.get())
        for command in taken:
            if command is None:
                return 0
            if isinstance(command, Submit):
                _obey(connection, command.request)
            # It keeps no past answers: there is nothing to forget.
            assert not isinstance(command, Start | Words | Forget)
            engine.take(command)
        connection.sendall(messages.encode(engine.step()))
        time.sleep(step_s)


def _serve_beside(commands: "queue.SimpleQueue[messages.ToRank | None]") -> int:
    """A rank without requests: it waits for the end of the first one's serving process."""
    while commands.get() is not None:
        pass
    return 0


def _obey(connection: socket.socket, request: Request) -> None:
    text = tiny.tokenizer().decode(list(request.prompt), skip_special_tokens=False)
    if "<fail>" in text:
        raise ArithmeticError("a step that cannot be done")
    if "<lost>" in text:
        words = Failed(Reason.CONTAINER_FAILED, "another rank is gone", is_consequence=True)
        connection.sendall(messages.encode(words))
        raise BrokenPipeError
    if "<vanish>" in text:
        os._exit(7)
    if "<garbage>" in text:
        connection.sendall(messages.LENGTH.pack(5) + b"\xff\xff\xff\xff\xff")


def _read(connection: socket.socket, commands: "queue.SimpleQueue[messages.ToRank | None]") -> None:
    with connection.makefile("rb") as stream:
        while True:
            head = stream.read(messages.LENGTH.size)
            if len(head) < messages.LENGTH.size:
                commands.put(None)
                return
            command = messages.decode_to_rank(stream.read(messages.LENGTH.unpack(head)[0]))
            # It guides nobody.
            if not isinstance(command, Words):
                commands.put(command)


if __name__ == "__main__":
    sys.exit(main())
