"""What will probably follow each sequence: its draft, and what becomes of it."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from slipstream_engine.sequences import Sequence, Taken
from slipstream_engine.spec.draft import Draft
from slipstream_engine.spec.speculation import Speculation


class Continuations:
    """Between the scheduler, which knows sequences, and speculation, which knows keys."""

    def __init__(self, speculation: Speculation | None) -> None:
        self._speculation = speculation

    def drafts(
        self, decoding: Seq[Sequence], max_context: int, prompt_tokens: int, budget: int
    ) -> dict[Sequence, Draft]:
        """For each sequence that has begun its answer a draft; maybe none.

        `budget`: drafted tokens that fit into the batch. `prompt_tokens` wait for it too, and
        leave drafts half of it.
        """
        begun = [one for one in decoding if one.num_generated]
        if self._speculation is None or not begun:
            return {}
        if prompt_tokens:
            budget //= 2
        asked = [(one.spec_key, one.room(max_context)) for one in begun]
        drafts = self._speculation.propose(asked, min(prompt_tokens, budget), budget)
        return dict(zip(begun, drafts, strict=True))

    def begin(self, sequence: Sequence, firsts: Iterable[tuple[int, int]]) -> None:
        """Samples with the first token of each."""
        if self._speculation is not None:
            for sample, token in firsts:
                self._speculation.start(sequence.subject(sample), [token])

    def commit(self, sequence: Sequence, taken: Taken, draft: Draft) -> None:
        if self._speculation is not None:
            key = sequence.spec_key
            self._speculation.commit(key, taken.tokens, draft, taken.num_accepted)

    def stop(self, sequence: Sequence, *, finished: bool) -> None:
        """`finished`: its text is whole; else nobody wants it any more."""
        if self._speculation is not None:
            self._speculation.stop(sequence.spec_key, finished=finished)
