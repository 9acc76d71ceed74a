"""The engine's step: take what was asked, schedule, run, commit, tell. Knows no sockets."""

from slipstream_engine.messages import Abort, Step, Submit
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Scheduler


class EngineLoop:
    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self._scheduler = scheduler
        self._runner = runner

    @property
    def is_idle(self) -> bool:
        load = self._scheduler.load()
        return load.num_running == 0 and load.num_waiting == 0

    def take(self, command: Submit | Abort) -> None:
        match command:
            case Submit(request):
                self._scheduler.submit(request)
            case Abort(request_id):
                self._scheduler.abort(request_id)

    def step(self) -> Step:
        """One forward pass where there is work; always the load, so that gauges follow aborts."""
        batch = self._scheduler.schedule()
        if batch is None:
            return Step((), self._scheduler.load())
        progress = self._scheduler.commit(batch, self._runner.run(batch))
        return Step(tuple(progress), self._scheduler.load())
