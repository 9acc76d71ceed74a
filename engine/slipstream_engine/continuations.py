"""What may follow each sequence, what probably will, and what becomes of it: guides and drafts."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, Protocol

from slipstream_engine.batch import Cause, Chunk, Failure, Sampled
from slipstream_engine.guides.interface import Guides
from slipstream_engine.request import Request
from slipstream_engine.sequences import Sequence, Taken
from slipstream_engine.spec import verify
from slipstream_engine.spec.draft import Draft
from slipstream_engine.spec.speculation import Speculation


class Rows(Protocol):
    """What the model made of each token of a batch: a tensor, of which only rows are taken here."""

    def __getitem__(self, rows: Any) -> Any: ...


class Continuations:
    """Between the scheduler, which knows sequences, and what knows keys: speculation, guides."""

    def __init__(self, speculation: Speculation | None, guides: Guides | None) -> None:
        self._speculation = speculation
        self._guides = guides
        self._flaws: dict[str, str] = {}
        # Of the batch that is committed: the rows of each chunk that decodes.
        self._seen: dict[Sequence, Any] = {}

    def submit(self, request: Request) -> None:
        """Raises ValueError for a request with a guide where there are none, GuideError."""
        if request.guide is None:
            return
        if self._guides is None:
            raise ValueError("a request with a guide")
        self._guides.start(request.id, request.guide, request.end_tokens, request.min_tokens)

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
        legal = None
        if self._guides is not None and any(one.request.guide is not None for one in begun):
            legal = self._guides.legal
        drafts = self._speculation.propose(asked, min(prompt_tokens, budget), budget, legal)
        return dict(zip(begun, drafts, strict=True))

    def allowed(self, sequence: Sequence, count: int, draft: Draft) -> tuple[bytes, ...]:
        """What may be drawn after its next `count` tokens and after each of the draft's.

        Nothing where all may be, or nothing is drawn yet.
        """
        if self._guides is None or sequence.request.guide is None:
            return ()
        if count < sequence.num_uncomputed:
            return ()
        return self._guides.masks(sequence.spec_key, draft)

    def begin(self, sequence: Sequence, firsts: Iterable[tuple[int, int]]) -> None:
        """Samples with the first token of each."""
        firsts = tuple(firsts)
        if self._guides is not None and sequence.request.guide is not None:
            for sample, token in firsts:
                self._guides.commit((sequence.request.id, sample), [token])
        if self._speculation is not None:
            for sample, token in firsts:
                self._speculation.start(sequence.subject(sample), [token])

    def see(self, scheduled: Seq[Sequence], chunks: Seq[Chunk], features: Rows | None) -> None:
        """What the model made of a batch, for drafters that want it."""
        self._seen = {}
        if self._speculation is None or features is None:
            return
        start = 0
        for sequence, chunk in zip(scheduled, chunks, strict=True):
            rows = features[start : start + len(chunk.tokens)]
            start += len(chunk.tokens)
            if not sequence.is_running:
                continue
            self._seen[sequence] = rows
            if sequence.num_generated == 0:
                self._speculation.prefill(sequence.request.id, chunk.start, rows)

    def take(
        self,
        sequence: Sequence,
        chunk: Chunk,
        draft: Draft,
        sampled: Seq[Sampled],
        max_context: int,
    ) -> Taken:
        """Append what was drawn after a sequence's last token, and tell whom it concerns."""
        key, offered = sequence.spec_key, draft
        synthetic = None if self._speculation is None else self._speculation.synthetic
        if synthetic is not None and draft.tokens:
            count = synthetic.accepted(key, len(sequence.tokens), len(draft.tokens))
            draft = verify.cut(draft, count)
            pairs = zip(sampled, draft.tokens, strict=False)
            sampled = [*(replace(one, token=token) for one, token in pairs), *sampled[count:]]
        taken = sequence.take(chunk, draft, sampled, max_context)
        if taken.flaw:
            self._flaws[sequence.request.id] = taken.flaw
            return taken
        if self._guides is not None and taken.finish is None:
            self._guides.commit(key, taken.tokens)
        if self._speculation is not None:
            seen, first = self._seen.get(sequence), chunk.draws[0].row
            rows = None if seen is None else seen[[first + row for row in taken.rows]]
            self._speculation.commit(key, taken.tokens, offered, taken.num_accepted, rows)
        return taken

    def stop(self, sequence: Sequence, *, finished: bool) -> None:
        """`finished`: its text is whole; else nobody wants it any more."""
        if self._speculation is not None:
            self._speculation.stop(sequence.spec_key, finished=finished)

    def end(self, request_id: str) -> None:
        """None of its samples goes on."""
        if self._guides is not None:
            self._guides.stop(request_id)

    def fails(self, request_id: str, sampled: Seq[Sampled]) -> bool:
        """Whether nothing could be drawn for one of its samples: that is the end of all."""
        flaw = next((one.flaw for one in sampled if one.flaw), "")
        if flaw:
            self._flaws[request_id] = flaw
        return bool(flaw)

    def take_failures(self) -> list[Failure]:
        """Requests that failed since this was last asked, each once."""
        flaws, self._flaws = self._flaws, {}
        failed = {} if self._guides is None else self._guides.take_failures()
        failures = [Failure(id_, message) for id_, message in failed.items()]
        return failures + [
            Failure(id_, flaw, Cause.DRAW) for id_, flaw in flaws.items() if id_ not in failed
        ]
