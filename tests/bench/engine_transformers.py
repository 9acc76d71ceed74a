"""transformers' `generate` in float32 as a process that generates one sequence.

python -m tests.bench.engine_transformers ANSWERS_FD MODEL_FOLDER NUM_THREADS
"""

import sys
import time
from typing import Any

import torch
import transformers

from tests.bench import engine_job
from tests.bench.engine_job import Job, Timing


class Stamps:
    """Stands where a streamer may: it is handed the prompt first, then every token."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, value: Any) -> None:
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        pass


class Transformers:
    def __init__(self, folder: str) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        # The answer has its full length, whatever the model says.
        self._model.generation_config.eos_token_id = None

    def generate(self, job: Job) -> Timing:
        prompt = torch.tensor(job.prompts)
        stamps = Stamps()
        begun_s = time.perf_counter()
        self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=job.num_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=stamps,
        )
        first_s, last_s = (stamps.times_s[index] - begun_s for index in (1, -1))
        return Timing(first_s, last_s, len(stamps.times_s) - 1)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    engine_job.serve(versions, Job, Transformers(sys.argv[2]).generate)
