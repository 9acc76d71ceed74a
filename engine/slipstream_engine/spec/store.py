"""What a tenant was answered before, as a source of drafts: whole answers in a bounded store.

A tenant never drafts from what another was answered: how fast an answer comes would tell what the
other one's were. What is stored can be deleted at any time, and goes when the store is full.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream_engine.spec import chances
from slipstream_engine.spec.automaton import Automaton, Trail
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject

# Stands before each answer; no token has this number.
_START = -1
# How much of an output is looked up in a part that is new to its sequence.
_LOOK_BACK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """With all of them used a million tokens, half a gigabyte (`automaton`)."""

    tenant_tokens: int = 32_768
    tenants: int = 32


@dataclass(slots=True)
class _Part:
    text: list[int] = field(default_factory=list)
    automaton: Automaton = field(default_factory=Automaton)

    def add(self, tokens: Sequence[int]) -> None:
        self.text += (_START, *tokens)
        self.automaton.grow((_START, *tokens))


class Store:
    """Answers by tenant, in two parts each: when the newer one is full the older one goes, so that
    what goes is what was said longest ago. Of the tenants the least recently used one goes."""

    def __init__(self, limits: StoreLimits) -> None:
        """Raises ValueError for limits within which nothing can be stored."""
        if limits.tenant_tokens < 4 or limits.tenants < 1:
            raise ValueError(f"a store within {limits} holds nothing")
        self._part_tokens = limits.tenant_tokens // 2
        self._most_tenants = limits.tenants
        self._tenants: OrderedDict[bytes, list[_Part]] = OrderedDict()

    @property
    def num_tenants(self) -> int:
        return len(self._tenants)

    @property
    def num_tokens(self) -> int:
        return sum(len(part.text) for parts in self._tenants.values() for part in parts)

    def parts(self, tenant: bytes) -> list[_Part]:
        """The newest first."""
        return self._tenants.get(tenant, [])

    def use(self, tenant: bytes) -> None:
        if tenant in self._tenants:
            self._tenants.move_to_end(tenant)

    def add(self, tenant: bytes, tokens: Sequence[int]) -> None:
        """Of an answer that is longer than a part its end."""
        kept = tokens[-(self._part_tokens - 1) :]
        parts = self._tenants.setdefault(tenant, [_Part()])
        if len(parts[0].text) + 1 + len(kept) > self._part_tokens:
            parts[:] = [_Part(), parts[0]]
        parts[0].add(kept)
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > self._most_tenants:
            self._tenants.popitem(last=False)

    def forget(self, tenant: bytes) -> None:
        self._tenants.pop(tenant, None)


@dataclass(slots=True)
class _Sequence:
    """`trails`: through the parts of its tenant, by their identity; a part that has gone is kept
    until the next commit and drafted from no more."""

    tenant: bytes
    output: list[int] = field(default_factory=list)
    trails: list[tuple[_Part, Trail]] = field(default_factory=list)
    is_forgotten: bool = False


class StoreDrafter:
    """A `Drafter`."""

    name = "store"
    features: tuple[int, ...] = ()

    def __init__(self, limits: StoreLimits = StoreLimits()) -> None:
        self._store = Store(limits)
        self._sequences: dict[Key, _Sequence] = {}

    @property
    def num_tenants(self) -> int:
        return self._store.num_tenants

    @property
    def num_tokens(self) -> int:
        return self._store.num_tokens

    def start(self, subject: Subject) -> None:
        self._store.use(subject.tenant)
        self._sequences[subject.key] = _Sequence(subject.tenant)

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [self._draft(self._sequences[key], budget) for key, budget in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        sequence = self._sequences[key]
        sequence.output += tokens
        known = sequence.trails
        sequence.trails = []
        for part in self._store.parts(sequence.tenant):
            trail = next((it for other, it in known if other is part), None)
            if trail is None:
                trail = Trail()
                part.automaton.follow(trail, [_START, *sequence.output][-_LOOK_BACK_TOKENS:])
            else:
                part.automaton.follow(trail, tokens)
            sequence.trails.append((part, trail))

    def stop(self, key: Key, finished: bool) -> None:
        """Only an answer that is whole is stored."""
        sequence = self._sequences.pop(key, None)
        if sequence is None or not sequence.output:
            return
        if finished and not sequence.is_forgotten:
            self._store.add(sequence.tenant, sequence.output)

    def forget(self, tenant: bytes) -> None:
        """Delete what the tenant was answered, and store nothing of what it is being answered."""
        self._store.forget(tenant)
        for sequence in self._sequences.values():
            if sequence.tenant == tenant:
                sequence.is_forgotten = True
                sequence.trails = []

    def _draft(self, sequence: _Sequence, budget: int) -> Draft:
        parts = self._store.parts(sequence.tenant)
        found = [
            (trail.length, part.text[trail.after : trail.after + budget])
            for part, trail in sequence.trails
            if trail.length and any(part is it for it in parts)
        ]
        # Of two that are as long the first one, which was said later.
        length, tokens = max(found, key=lambda it: it[0], default=(0, []))
        if _START in tokens:
            tokens = tokens[: tokens.index(_START)]
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), (), chances.after_match(length, len(tokens)), self.name)
