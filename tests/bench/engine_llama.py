"""llama.cpp as a process that generates, by its C API: one batch for all sequences, as it is meant.

python -m tests.bench.engine_llama ANSWERS_FD MODEL.gguf NUM_THREADS
"""

import sys
import time
from typing import Any

import llama_cpp as llama  # type: ignore[import-not-found]

from tests.bench import engine_job
from tests.bench.engine_job import Job, Timing

_CONTEXT_TOKENS = 4096
_NUM_SEQUENCES = 8


class Llama:
    """Its defaults, but for the threads and room for eight sequences in one unified KV cache."""

    def __init__(self, path: str, num_threads: int) -> None:
        llama.llama_backend_init()
        model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        params.n_ctx = _CONTEXT_TOKENS
        params.n_seq_max = _NUM_SEQUENCES
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = num_threads
        params.no_perf = True
        self._context = llama.llama_init_from_model(model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._batch: Any = llama.llama_batch_init(params.n_batch, 0, 1)
        self._capacity = int(params.n_batch)
        self._sampler = llama.llama_sampler_init_greedy()

    def generate(self, job: Job) -> Timing:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), False)
        begun_s = time.perf_counter()
        tokens = self._read(job.prompts)
        first_s = time.perf_counter() - begun_s
        num_tokens = len(tokens)
        lengths = [len(prompt) for prompt in job.prompts]
        for step in range(job.num_tokens - 1):
            self._batch.n_tokens = 0
            for sequence, token in enumerate(tokens):
                self._add(token, lengths[sequence] + step, sequence, is_wanted=True)
            self._run()
            tokens = [self._draw(row) for row in range(len(tokens))]
            num_tokens += len(tokens)
        return Timing(first_s, time.perf_counter() - begun_s, num_tokens)

    def _read(self, prompts: list[list[int]]) -> list[int]:
        """The first token after each prompt; the prompts fill as few batches as they can."""
        drawn: list[int] = []
        rows: list[int] = []
        self._batch.n_tokens = 0
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                if self._batch.n_tokens == self._capacity:
                    drawn += self._finish(rows)
                is_last = position == len(prompt) - 1
                if is_last:
                    rows.append(self._batch.n_tokens)
                self._add(token, position, sequence, is_wanted=is_last)
        return drawn + self._finish(rows)

    def _finish(self, rows: list[int]) -> list[int]:
        self._run()
        drawn = [self._draw(row) for row in rows]
        rows.clear()
        self._batch.n_tokens = 0
        return drawn

    def _add(self, token: int, position: int, sequence: int, *, is_wanted: bool) -> None:
        batch = self._batch
        row = batch.n_tokens
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = is_wanted
        batch.n_tokens = row + 1

    def _run(self) -> None:
        status = llama.llama_decode(self._context, self._batch)
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")

    def _draw(self, row: int) -> int:
        return int(llama.llama_sampler_sample(self._sampler, self._context, row))


if __name__ == "__main__":
    peer = Llama(sys.argv[2], int(sys.argv[3]))
    system = " ".join(llama.llama_print_system_info().decode().split())
    versions = {"llama-cpp-python": llama.__version__, "llama.cpp": system}
    engine_job.serve(versions, Job, peer.generate)
