"""Our engine as a process that generates: its own scheduler, runner and loop, without HTTP.

python -m tests.bench.engine_ours ANSWERS_FD ENGINE_JSON
"""

import itertools
import sys
import time
from pathlib import Path

import torch

from slipstream_api import config as configs
from slipstream_api.config import EngineConfig
from slipstream_engine import loading
from slipstream_engine.guides.compiled import Compiler
from slipstream_engine.guides.matcher import Matchers
from slipstream_engine.messages import Submit
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.split import Split
from tests.bench import engine_job
from tests.bench.engine_job import Job, Timing

_GREEDY = SamplingParams(temperature=0.0)


class Ours:
    def __init__(self, config: EngineConfig) -> None:
        part = loading.load(config, Split(), "")
        self._loop = part.loop(part.runner, Matchers(Compiler()))
        self._ids = itertools.count()

    def generate(self, job: Job) -> Timing:
        loop = self._loop
        begun_s = time.perf_counter()
        for prompt in job.prompts:
            id_ = str(next(self._ids))
            # No end tokens: the answer has its full length, whatever the model says.
            asked = Request(id_, tuple(prompt), job.num_tokens, _GREEDY, frozenset())
            loop.take(Submit(asked))
        first_s, num_tokens = 0.0, 0
        while not loop.is_idle:
            step = loop.step()
            if step.progress and num_tokens == 0:
                first_s = time.perf_counter() - begun_s
            num_tokens += len(step.progress)
        return Timing(first_s, time.perf_counter() - begun_s, num_tokens)


if __name__ == "__main__":
    ours = Ours(configs.load(EngineConfig, Path(sys.argv[2])))
    engine_job.serve({"torch": torch.__version__}, Job, ours.generate)
