"""Which of a namespace's two internal tokens is sent to its engines. Pure; `now_s` is monotonic."""

from dataclasses import dataclass, field, replace

# The kubelet brings a changed Secret into a Pod's files within about two minutes.
SETTLE_S = 150.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The internal token of one namespace: `accepted` holds both halves of a rotation."""

    namespace: str
    current: str | None = field(repr=False)
    accepted: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class InUse:
    """The token that is sent, and since when `current` is the Secret's newest."""

    value: str | None = field(repr=False)
    current: str | None = field(repr=False)
    since_s: float


def next_in_use(tokens: Tokens, before: InUse | None, now_s: float) -> InUse:
    """What is sent from now on.

    A watch is faster than the files in the engines' Pods: after a rotation the token of before,
    which old and new files accept, is sent until the new one has surely arrived.
    """
    if before is None:
        return InUse(tokens.current, tokens.current, now_s)
    if before.current != tokens.current:
        is_kept = before.value in tokens.accepted
        return InUse(before.value if is_kept else tokens.current, tokens.current, now_s)
    has_settled = now_s - before.since_s >= SETTLE_S or before.value not in tokens.accepted
    return replace(before, value=tokens.current) if has_settled else before
