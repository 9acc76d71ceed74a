"""llama.cpp as a process that drafts or does not: by its C API, and as llama-cpp-python drafts.

python -m tests.bench.edits_llama ANSWERS_FD MODEL.gguf NUM_THREADS

A job's `drafts` is `none`, or `lookup` and the most tokens of a prompt-lookup draft: `lookup 10`.
"""

import sys
import time
from typing import Any

import llama_cpp as llama  # type: ignore[import-not-found]
from llama_cpp.llama_speculative import (  # type: ignore[import-not-found]
    LlamaPromptLookupDecoding,
)

from tests.bench import engine_job, engine_llama
from tests.bench.engine_job import Drafted, DraftedJob, Job

_CONTEXT_TOKENS = 4096
# Above every logit.
_CERTAIN = 1e9


class Forced:
    """The answer's next token, for every token that is drawn: whoever draws gets it and goes on."""

    def __init__(self, answer: list[int]) -> None:
        self.said: list[int] = []
        self._answer = answer

    def raise_logit(self, context: Any, row: int) -> None:
        """Of a row of the last batch, before it is drawn from."""
        logits = llama.llama_get_logits_ith(context, row)
        logits[self._answer[len(self.said)]] = _CERTAIN


class Plain(engine_llama.Llama):
    """A token a step, the library's fastest way."""

    def answer(self, job: DraftedJob) -> Drafted:
        self._forced = Forced(job.answer)
        timing = self.generate(Job(job.prompts, job.num_tokens))
        said = self._forced.said
        return Drafted(timing.first_s, timing.last_s, [said], len(said) - 1, len(said) - 1, 0, 0)

    def _draw(self, row: int) -> int:
        self._forced.raise_logit(self._context, row)
        token = super()._draw(row)
        self._forced.said.append(token)
        return token


class Lookup(LlamaPromptLookupDecoding):  # type: ignore[misc]
    """The library's own, counted."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = self.num_drafted = 0

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        found = super().__call__(input_ids, **kwargs)
        self.num_calls += 1
        self.num_drafted += len(found)
        return found


class Drafting(llama.Llama):  # type: ignore[misc]
    """`Llama.generate` with a draft model: each row of a draft is drawn from in turn.

    A logits processor would be called for each of them too, but with the whole draft in what it is
    told of the tokens so far, and with a copy of all logits. This costs one number a row, as ours.
    """

    def __init__(self, path: str, num_threads: int) -> None:
        self.lookup = Lookup()
        super().__init__(
            model_path=path,
            n_ctx=_CONTEXT_TOKENS,
            n_threads=num_threads,
            n_threads_batch=num_threads,
            draft_model=self.lookup,
            # A draft model needs all rows; without this there is room for one batch of them.
            logits_all=True,
            verbose=False,
        )

    def answer(self, job: DraftedJob, num_pred_tokens: int) -> Drafted:
        lookup = self.lookup
        lookup.num_pred_tokens = num_pred_tokens
        lookup.num_calls = lookup.num_drafted = 0
        self._forced = Forced(job.answer)
        # Nothing of an earlier prompt is reused.
        self.reset()
        begun_s = time.perf_counter()
        first_s, said = 0.0, list[int]()
        for token in self.generate(job.prompts[0], temp=0.0):
            first_s = first_s or time.perf_counter() - begun_s
            said.append(token)
            if len(said) == job.num_tokens:
                break
        last_s = time.perf_counter() - begun_s
        num_steps = lookup.num_calls
        accepted = len(said) - 1 - num_steps
        return Drafted(
            first_s, last_s, [said], len(said) - 1, num_steps, lookup.num_drafted, accepted
        )

    def sample(self, *arguments: Any, idx: int | None = None, **options: Any) -> int:
        row = -1 if idx is None else idx - self.n_tokens
        self._forced.raise_logit(self.ctx, row)
        token = int(super().sample(*arguments, idx=idx, **options))
        self._forced.said.append(token)
        return token


class Peer:
    def __init__(self, path: str, num_threads: int) -> None:
        self._plain = Plain(path, num_threads)
        self._drafting = Drafting(path, num_threads)

    def generate(self, job: DraftedJob) -> Drafted:
        how, _, most = job.drafts.partition(" ")
        if how == "none":
            return self._plain.answer(job)
        return self._drafting.answer(job, int(most))


if __name__ == "__main__":
    peer = Peer(sys.argv[2], int(sys.argv[3]))
    system = " ".join(llama.llama_print_system_info().decode().split())
    versions = {"llama-cpp-python": llama.__version__, "llama.cpp": system}
    engine_job.serve(versions, DraftedJob, peer.generate)
