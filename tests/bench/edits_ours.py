"""Our engine as a process that drafts or does not: two loops over one runner, without HTTP.

python -m tests.bench.edits_ours ANSWERS_FD ENGINE_JSON

Both loops have the same weights, threads and pages, of which one has need at a time: what differs
is what is drafted. A job's `drafts` is a method of `SpeculatorSpec`.
"""

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from slipstream_api import config as configs
from slipstream_api.config import EngineConfig
from slipstream_engine import loading, sampler
from slipstream_engine.batch import Batch, Sampled
from slipstream_engine.guides.compiled import Compiler
from slipstream_engine.guides.matcher import Matchers
from slipstream_engine.loading import Part
from slipstream_engine.loop import EngineLoop
from slipstream_engine.messages import Step, Submit
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.split import Split
from slipstream_kvstore.keys import KEY_BYTES
from tests.bench import engine_job
from tests.bench.engine_job import Drafted, DraftedJob

# Above every logit.
_CERTAIN = 1e9
# More than a draft has.
_MORE_TOKENS = 128


class Forcing:
    """A runner that can be made to draw one answer: of one request, one sample.

    Drafts are not cut: what is drafted and wrong is computed, drawn from and refused as ever. The
    cost of forcing is one number a row.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._answer: Sequence[int] = ()
        self._start = 0

    def force(self, answer: Sequence[int], start: int) -> None:
        """`start`: the position of its first token. Nothing: whatever the model says."""
        self._answer, self._start = answer, start

    def run(self, batch: Batch) -> list[Sampled]:
        if not self._answer:
            return self._runner.run(batch)
        if batch.moves or batch.copies or len(batch.chunks) != 1:
            raise ValueError("only one chain of drafts is forced")
        draws = batch.chunks[0].draws
        logits = self._runner.logits(batch)
        # Behind the answer's end nothing is wanted.
        places = [draw.position - self._start for draw in draws]
        tokens = [self._answer[place] for place in places if place < len(self._answer)]
        with torch.inference_mode():
            logits[torch.arange(len(tokens)), torch.tensor(tokens, dtype=torch.long)] = _CERTAIN
        return sampler.sample(logits, range(len(draws)), draws)


class Ours:
    def __init__(self, config: EngineConfig) -> None:
        part = loading.load(config, Split(), "")
        self._forcing = Forcing(part.runner)
        self._loops = {method: self._loop(part, method) for method in ("auto", "none")}
        self._ids = itertools.count(1)

    def generate(self, job: DraftedJob) -> Drafted:
        loop = self._loops[job.drafts]
        sampling = SamplingParams(temperature=0.0 if job.answer else 1.0)
        self._forcing.force(job.answer, len(job.prompts[0]))
        begun_s = time.perf_counter()
        answers: dict[str, list[int]] = {}
        for seed, prompt in enumerate(job.prompts, job.seed):
            number = next(self._ids)
            asked = Request(
                id=str(number),
                prompt=tuple(prompt),
                # A forced answer ends by its end token, others with their length alone: no draft
                # knows where that is.
                max_tokens=job.num_tokens + (_MORE_TOKENS if job.answer else 0),
                sampling=replace(sampling, seed=seed),
                end_tokens=frozenset(job.answer[-1:]),
                # A tenant of its own: an answer that was given in an earlier round is no help.
                root_key=number.to_bytes(KEY_BYTES, "big"),
                prediction=tuple(job.prediction),
                is_predicted=bool(job.prediction),
            )
            answers[asked.id] = []
            loop.take(Submit(asked))
        first_s, last_s = 0.0, 0.0
        counted: list[Step] = []
        while not loop.is_idle:
            step = loop.step()
            for one in step.progress:
                answers[one.request_id].append(one.sampled.token)
            if first_s and not last_s:
                counted.append(step)
            if not first_s and step.progress:
                first_s = time.perf_counter() - begun_s
            if not last_s and any(one.finish for one in step.progress):
                last_s = time.perf_counter() - begun_s
        outcomes = [one for step in counted for one in step.outcomes]
        return Drafted(
            first_s,
            last_s,
            list(answers.values()),
            num_tokens=sum(len(step.progress) for step in counted),
            num_steps=len(counted),
            num_drafted=sum(one.num_drafted for one in outcomes),
            num_accepted=sum(one.num_accepted for one in outcomes),
        )

    def _loop(self, part: Part, method: str) -> EngineLoop:
        spec = part.config.speculator.model_copy(update={"method": method})
        config = part.config.model_copy(update={"speculator": spec})
        guides = Matchers(Compiler())
        return replace(part, config=config).loop(self._forcing, guides)


if __name__ == "__main__":
    ours = Ours(configs.load(EngineConfig, Path(sys.argv[2])))
    engine_job.serve({"torch": torch.__version__}, DraftedJob, ours.generate)
