"""One answer from prompt tokens to pieces of text, with its times and counts; knows no HTTP."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from slipstream_api.config import EngineConfig
from slipstream_api.observation import ErrorClass, Observation, Ring, ToolCallClass
from slipstream_engine import apierror
from slipstream_engine.apierror import ApiError
from slipstream_engine.batch import Progress
from slipstream_engine.choices import Asked, Choice, Piece, Spoken
from slipstream_engine.metrics import EngineMetrics
from slipstream_engine.questions import Question
from slipstream_engine.rankclient import Mailbox, RankClient, RankError
from slipstream_engine.request import FinishReason
from slipstream_engine.spec.speculation import Outcome
from slipstream_engine.text import TextStream, TokenBytes

_WORST_FIRST = (
    ToolCallClass.INVALID_JSON,
    ToolCallClass.UNKNOWN_NAME,
    ToolCallClass.VALID,
    ToolCallClass.NONE,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Prompts are counted once, whatever the number of samples."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    num_reasoning_tokens: int = 0
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0


class Answer:
    """An answer under way: take its pieces until it is complete."""

    def __init__(
        self,
        question: Question,
        mailbox: Mailbox,
        rank: RankClient,
        token_bytes: TokenBytes,
        metrics: EngineMetrics,
    ) -> None:
        self.question = question
        self._mailbox = mailbox
        self._rank = rank
        self._metrics = metrics
        self.arrival_s = question.origin.arrival_s
        self._asked = [Asked(request) for request in question.requests]
        self.choices = [
            Choice(
                index * question.num_samples + sample,
                asked,
                TextStream(token_bytes, question.stops, asked.request.min_tokens),
                None
                if question.form.is_plain
                else Spoken(question.form, is_forced_call=question.is_forced_call),
            )
            for index, asked in enumerate(self._asked)
            for sample in range(question.num_samples)
        ]
        self._by_sample = {
            (choice.asked.request.id, choice.index % question.num_samples): choice
            for choice in self.choices
        }
        self._num_open = len(self.choices)

    @property
    def is_complete(self) -> bool:
        return self._num_open == 0

    @property
    def first_s(self) -> float | None:
        """When the first token of any choice came."""
        return min((a.first_s for a in self._asked if a.first_s is not None), default=None)

    @property
    def tool_call_class(self) -> ToolCallClass | None:
        """The worst of all choices."""
        classes = {c.spoken.tool_call_class for c in self.choices if c.spoken is not None}
        return next((one for one in _WORST_FIRST if one in classes), None)

    def usage(self) -> Usage:
        agreements = [one.agreement for one in self.choices if one.agreement is not None]
        return Usage(
            self.question.num_prompt_tokens,
            sum(asked.num_cached for asked in self._asked),
            sum(choice.num_tokens for choice in self.choices),
            sum(
                choice.spoken.num_reasoning for choice in self.choices if choice.spoken is not None
            ),
            sum(one.num_accepted for one in agreements),
            sum(one.num_rejected for one in agreements),
        )

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """Of all drafts so far."""
        return self._mailbox.outcomes

    async def take(self) -> list[Piece]:
        """What has come since the last time, at most one piece a choice; waits for the first.

        Raises RankError, or ApiError when the answer was given up.
        """
        touched: dict[int, Choice] = {}
        arrived = await self._mailbox.take()
        self._metrics.generation_tokens.inc(len(arrived))
        for now_s, progress in arrived:
            choice = self._by_sample[progress.request_id, progress.sample]
            if choice.finish is not None:
                continue
            self._count(choice, progress, now_s)
            choice.add(progress)
            touched[choice.index] = choice
            if choice.finish is not None:
                self._num_open -= 1
                if progress.finish is None:
                    self._rank.end_sample(progress.request_id, progress.sample)
        return [choice.piece() for choice in touched.values()]

    def _count(self, choice: Choice, progress: Progress, now_s: float) -> None:
        asked, metrics = choice.asked, self._metrics
        if choice.last_s is not None:
            metrics.inter_token_s.observe(now_s - choice.last_s)
        elif asked.first_s is None:
            asked.first_s = now_s
            asked.num_cached = progress.num_cached_tokens
            metrics.ttft_s.observe(now_s - self.arrival_s)
        choice.last_s = asked.last_s = now_s

    def record(self, *, is_engine_gone: bool) -> None:
        """The metrics of a whole answer, complete or not."""
        now_s, metrics = time.monotonic(), self._metrics
        for choice in self.choices:
            if choice.finish is not None or not is_engine_gone:
                metrics.success[choice.finish or FinishReason.ABORT].inc()
        if self.is_complete:
            metrics.e2e_s.observe(now_s - self.arrival_s)
        if (tpot_s := self.tpot_s()) is not None and self.is_complete:
            metrics.tpot_s.observe(tpot_s)
        for asked in self._asked:
            admitted_s = self._mailbox.admitted_s.get(asked.request.id)
            if admitted_s is not None:
                metrics.queue_s.observe(max(0.0, admitted_s - self.arrival_s))
                if asked.first_s is not None:
                    metrics.prefill_s.observe(asked.first_s - admitted_s)
            if asked.first_s is not None and asked.last_s is not None:
                metrics.decode_s.observe(asked.last_s - asked.first_s)

    def tpot_s(self) -> float | None:
        """Mean time between two tokens of a choice; None where no choice has two."""
        spans = [
            (choice.last_s - choice.asked.first_s, choice.num_tokens - 1)
            for choice in self.choices
            if choice.last_s is not None
            and choice.asked.first_s is not None
            and choice.num_tokens > 1
        ]
        num_steps = sum(count for _, count in spans)
        return sum(span for span, _ in spans) / num_steps if num_steps else None


class Answerer:
    """Asks the rank, turns tokens into text, and keeps the books of every answer."""

    def __init__(
        self,
        config: EngineConfig,
        rank: RankClient,
        token_bytes: TokenBytes,
        metrics: EngineMetrics,
        observations: Ring,
    ) -> None:
        self._config = config
        self._rank = rank
        self._token_bytes = token_bytes
        self._metrics = metrics
        self._observations = observations

    @contextmanager
    def ask(self, question: Question) -> Iterator[Answer]:
        """Leave early and what is left is aborted. Raises RankError, or ApiError in a drain."""
        with self._rank.ask(question.requests) as mailbox:
            answer = Answer(question, mailbox, self._rank, self._token_bytes, self._metrics)
            self._metrics.prompt_tokens.inc(question.num_prompt_tokens)
            timer = asyncio.get_running_loop().call_later(
                max(0.0, question.deadline_s - time.monotonic()),
                self._rank.give_up,
                mailbox,
                apierror.deadline_exceeded(),
            )
            error: BaseException | None = None
            try:
                yield answer
            except BaseException as raised:
                error = raised
                raise
            finally:
                timer.cancel()
                answer.record(is_engine_gone=isinstance(error, RankError))
                self._observations.append(self._observation(answer, error))

    def _observation(self, answer: Answer, error: BaseException | None) -> Observation:
        question, usage, first_s = answer.question, answer.usage(), answer.first_s
        arrival_s, tpot_s = question.origin.arrival_s, answer.tpot_s()
        status, error_class = (200, None) if answer.is_complete else _outcome(error)
        return Observation(
            time_unix_s=time.time(),
            disconnect=error_class is ErrorClass.CLIENT_DISCONNECT,
            namespace=self._config.model.namespace,
            model=self._config.model.name,
            track=question.origin.track,
            revision=self._config.revision,
            session=question.origin.session,
            status=status,
            streamed=question.is_streamed,
            duration_ms=(time.monotonic() - arrival_s) * 1000,
            ttft_ms=None if first_s is None else (first_s - arrival_s) * 1000,
            tpot_ms=None if tpot_s is None else tpot_s * 1000,
            input_tokens=usage.num_prompt_tokens,
            output_tokens=usage.num_completion_tokens,
            cached_tokens=usage.num_cached_tokens,
            finish_reason=answer.choices[0].reason,
            tool_call_class=answer.tool_call_class if answer.is_complete else None,
            error_class=error_class,
        )


def _outcome(error: BaseException | None) -> tuple[int, ErrorClass]:
    """The status of an answer that has no end, and whose fault that is."""
    match error:
        case None | asyncio.CancelledError() | ConnectionError():
            return 499, ErrorClass.CLIENT_DISCONNECT
        case ApiError(status=504):
            return 504, ErrorClass.ENGINE_TIMEOUT
        case ApiError():
            return error.status, ErrorClass.ENGINE_BROKE
        case _:
            return 500, ErrorClass.ENGINE_FAILED
