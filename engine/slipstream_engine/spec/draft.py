"""What a draft is and what drafts; integers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

# The id of a request and the index of a sample of it.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The distribution that a drafted token was really drawn from.

    `tokens` are all that could be drawn, `probs` their probabilities, which add up to 1.
    """

    tokens: tuple[int, ...]
    probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next; none is a draft too.

    A chain, or a tree in topological order: `parents[i]` < i is the token before token i, and -1
    the sequence's last token; () is a chain. `accept[i]` estimates the chance that token i is the
    model's, given that its parent is. `proposals`: only of a draft whose tokens were drawn; by
    `accept` drafts are chosen and cut, so it must not depend on what was: whoever verifies a drawn
    token only where it is a likely one, has the likely ones too often in the answer.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    accept: tuple[float, ...] = ()
    source: str = "none"
    proposals: tuple[Proposal, ...] = ()

    def parent(self, index: int) -> int:
        return self.parents[index] if self.parents else index - 1


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Subject:
    """What there is to draft from when a sequence starts.

    `prediction`: what the answer will probably repeat, from the request's own field or from the
    code in its prompt. `tenant`: whose past answers may be drafted from. `temperature` and `seed`
    are the request's: drafts may be drawn as its tokens are; 0 where they may not.
    """

    key: Key
    prompt: tuple[int, ...]
    prediction: tuple[int, ...] = ()
    tenant: bytes = b""
    temperature: float = 0.0
    seed: int = 0


class Drafter(Protocol):
    """Only `commit` moves its state, and `propose` changes nothing that it answers later."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> tuple[int, ...]:
        """Residual boundaries of the target that it wants (`FeatureDrafter`); () is none.

        Boundary b is the residual stream before layer b; with N layers N is the last one.
        """
        ...

    def start(self, subject: Subject) -> None: ...

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        """For each sequence a draft of at most so many tokens."""
        ...

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        """Exactly the tokens that became output.

        features: [tokens, boundaries x hidden] of a drafter that wants them: what the model made of
        the token before each of them, from which that one was drawn; None otherwise, and for an
        answer's first tokens, whose prompt was told before.
        """
        ...

    def stop(self, key: Key, finished: bool) -> None:
        """`finished`: the output is whole and may be learnt from. Of a `FeatureDrafter` also what
        never started: nobody waited for the end of its prompt."""
        ...


@runtime_checkable
class FeatureDrafter(Drafter, Protocol):
    """Drafts from what the target makes of its tokens (EAGLE-3, block drafts)."""

    def prefill(self, request_id: str, start: int, features: object) -> None:
        """What was made of the prompt from token `start` on, chunk by chunk.

        A request whose first chunk begins later was found in the prefix cache so far: it is cold,
        and is not drafted for unless what is missing can be had elsewhere. A chunk may come twice:
        a sequence that was preempted is computed again.
        """
        ...
