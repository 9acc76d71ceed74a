"""One answer from prompt tokens to pieces of text, with its times and counts; knows no HTTP."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from slipstream_engine.metrics import EngineMetrics
from slipstream_engine.observations import Observation, ObservationRing
from slipstream_engine.rankclient import RankClient, RankError
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.text import TextStream, TokenBytes


@dataclass(frozen=True, slots=True)
class Question:
    """A checked request: its prompt fits, its limit is resolved."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stops: tuple[str, ...]
    session: str | None


@dataclass(frozen=True, slots=True)
class Piece:
    """New text, often none; `num_tokens` so far; the last piece has the reason of the end."""

    text: str
    num_tokens: int
    finish: FinishReason | None


@dataclass(slots=True)
class _Times:
    arrival: float
    first: float | None = None
    last: float | None = None
    num_tokens: int = 0


class Answerer:
    """Asks the rank, turns tokens into text, and keeps the books of every answer."""

    def __init__(
        self,
        rank: RankClient,
        token_bytes: TokenBytes,
        end_tokens: frozenset[int],
        metrics: EngineMetrics,
        observations: ObservationRing,
    ) -> None:
        self._rank = rank
        self._token_bytes = token_bytes
        self._end_tokens = end_tokens
        self._metrics = metrics
        self._observations = observations

    async def answer(self, question: Question) -> AsyncGenerator[Piece]:
        """Pieces until the end. Close it early and the request is aborted. Raises RankError."""
        times = _Times(arrival=time.monotonic())
        finish: FinishReason | None = None
        error: str | None = None
        self._metrics.prompt_tokens.inc(len(question.prompt))
        try:
            async with aclosing(self._pieces(question, times)) as pieces:
                async for piece in pieces:
                    # Before the piece leaves: whoever reads the last one may never come back.
                    finish = piece.finish
                    yield piece
        except RankError:
            error = "engine_failed"
            raise
        finally:
            self._record(question, times, finish, error)

    async def _pieces(self, question: Question, times: _Times) -> AsyncGenerator[Piece]:
        text = TextStream(self._token_bytes, question.stops)
        request = Request(
            id=secrets.token_hex(12),
            prompt=question.prompt,
            max_tokens=question.max_tokens,
            sampling=question.sampling,
            end_tokens=self._end_tokens,
        )
        async with self._rank.generate(request) as stream:
            async for progress in stream:
                self._count(times)
                finish = progress.finish
                # The token that ends an answer is not part of its text.
                new = "" if finish is FinishReason.STOP else text.push(progress.token)
                if text.is_stopped:
                    finish = FinishReason.STOP
                if finish is not None:
                    new += text.finish()
                    if text.is_stopped:
                        finish = FinishReason.STOP
                yield Piece(new, times.num_tokens, finish)
                if finish is not None:
                    return

    def _count(self, times: _Times) -> None:
        now = time.monotonic()
        if times.last is None:
            times.first = now
            self._metrics.ttft_s.observe(now - times.arrival)
        else:
            self._metrics.inter_token_s.observe(now - times.last)
        times.last = now
        times.num_tokens += 1
        self._metrics.generation_tokens.inc()

    def _record(
        self, question: Question, times: _Times, finish: FinishReason | None, error: str | None
    ) -> None:
        tpot_s = None
        if times.first is not None and times.last is not None and times.num_tokens > 1:
            tpot_s = (times.last - times.first) / (times.num_tokens - 1)
        if error is None:
            self._metrics.success[finish or FinishReason.ABORT].inc()
        if finish is not None:
            self._metrics.e2e_s.observe(time.monotonic() - times.arrival)
            if tpot_s is not None:
                self._metrics.tpot_s.observe(tpot_s)
        self._observations.add(
            Observation(
                finished_at_unix_s=time.time(),
                session=question.session,
                prompt_tokens=len(question.prompt),
                completion_tokens=times.num_tokens,
                ttft_s=None if times.first is None else times.first - times.arrival,
                tpot_s=tpot_s,
                finish_reason=None if finish is None else finish.value,
                error_class=error,
                is_disconnect=finish is None and error is None,
            )
        )
