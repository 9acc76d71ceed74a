"""The engine's step: take what was asked, schedule, run, commit, tell.

Knows no sockets, no tensors and no time: the runner and the clock are given to it.
"""

from collections.abc import Callable
from typing import Protocol

from slipstream_engine.batch import Batch, Failure, Sampled
from slipstream_engine.continuations import Rows
from slipstream_engine.guides.spec import GuideError
from slipstream_engine.messages import Abort, AbortSample, Forget, Step, Submit
from slipstream_engine.scheduler import Scheduler
from slipstream_engine.spec.speculation import Outcome


class Runner(Protocol):
    def run(self, batch: Batch) -> list[Sampled]:
        """One forward pass: a token for every draw of the batch, in their order."""
        ...


class Drafting(Protocol):
    """What is told of drafts after each step, and what they may be told."""

    def take_outcomes(self) -> tuple[Outcome, ...]: ...

    def take_draft_s(self) -> float: ...

    def num_failures(self) -> dict[str, int]: ...

    def forget(self, tenant: bytes) -> None: ...


class EngineLoop:
    """`clock`: seconds from anywhere, only ever growing."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        drafting: Drafting | None = None,
        features: Callable[[], Rows | None] = lambda: None,
    ) -> None:
        """`features`: what the model made of the last batch's tokens, where drafters want it."""
        self._features = features
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._failures: list[Failure] = []
        self._drafting = drafting

    @property
    def is_idle(self) -> bool:
        """Whether a step would find nothing to run."""
        return self._scheduler.is_idle

    def take(self, command: Submit | Abort | AbortSample | Forget) -> None:
        """Raises ValueError for a request that can never run; its sender should have known."""
        match command:
            case Submit(request):
                try:
                    self._scheduler.submit(request)
                except GuideError as error:
                    self._failures.append(Failure(request.id, str(error)))
            case Abort(request_id):
                self._scheduler.abort(request_id)
            case AbortSample(request_id, sample):
                self._scheduler.abort_sample(request_id, sample)
            case Forget(root_key):
                if self._drafting is not None:
                    self._drafting.forget(root_key)

    def step(self) -> Step:
        """One forward pass where there is work; always the load, so that gauges follow aborts."""
        batch = self._scheduler.schedule()
        if batch is None:
            return Step((), self._scheduler.load(), failures=self._take_failures())
        began = self._clock()
        sampled = self._runner.run(batch)
        run_s = self._clock() - began
        # Before the commit: no token is told that nobody has checked.
        self._end_failed()
        progress = tuple(self._scheduler.commit(batch, sampled, self._features()))
        self._end_failed()
        drafting = self._drafting
        return Step(
            progress,
            self._scheduler.load(),
            batch.num_prefill_tokens,
            run_s,
            self._scheduler.take_admitted(),
            self._take_failures(),
            () if drafting is None else drafting.take_outcomes(),
            0.0 if drafting is None else drafting.take_draft_s(),
            {} if drafting is None else drafting.num_failures(),
        )

    def _end_failed(self) -> None:
        self._failures += self._scheduler.take_failures()

    def _take_failures(self) -> tuple[Failure, ...]:
        failures, self._failures = tuple(self._failures), []
        return failures
