"""Which model owns which client-visible name: pure, from every model in the operator's scope.

A name stays with the model whose route carries it; a free one goes to the oldest claimant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream_api import names
from slipstream_operator import documents


@dataclass(frozen=True, slots=True)
class Claim:
    """One model's wish for names. `held`: the short names its route carries now."""

    namespace: str
    model: str
    created: str
    uid: str
    wanted: tuple[str, ...]
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class Loss:
    """A name that another model owns."""

    field: str
    name: str
    owner: str


def claim(model: Mapping[str, Any], route: Mapping[str, Any] | None) -> Claim:
    """What one InferenceModel claims; reads leniently, since a spec may be invalid."""
    spec = model.get("spec")
    source = spec.get("model") if isinstance(spec, Mapping) else None
    aliases = source.get("aliases") if isinstance(source, Mapping) else None
    wanted = [documents.name(model)]
    for alias in aliases if isinstance(aliases, list) else []:
        if isinstance(alias, str) and alias not in wanted:
            wanted.append(alias)
    held = ((route or {}).get("spec") or {}).get("names") or []
    return Claim(
        namespace=documents.namespace(model),
        model=documents.name(model),
        created=str(model["metadata"].get("creationTimestamp") or ""),
        uid=documents.uid(model),
        wanted=tuple(wanted),
        held=frozenset(held) & frozenset(wanted),
    )


def owner(name: str, claims: Iterable[Claim]) -> Claim | None:
    """Who is served under a name. Every replica of the operator answers alike."""
    everyone = tuple(claims)
    for c in everyone:
        # `namespace/name` always works, so no alias may take it.
        if name == names.qualified_name(c.namespace, c.model):
            return c
    claimants = [c for c in everyone if name in c.wanted]
    return min(
        claimants,
        key=lambda c: (name not in c.held, c.created, c.namespace, c.model, c.uid),
        default=None,
    )


def settle(own: Claim, claims: Iterable[Claim]) -> tuple[tuple[str, ...], tuple[Loss, ...]]:
    """The names that this model's route carries, and those it may not carry."""
    everyone = tuple(claims)
    granted = [names.qualified_name(own.namespace, own.model)]
    losses: list[Loss] = []
    for index, wanted in enumerate(own.wanted):
        winner = owner(wanted, everyone)
        if winner is None or (winner.namespace, winner.model) == (own.namespace, own.model):
            if wanted not in granted:
                granted.append(wanted)
            continue
        field = "metadata.name" if index == 0 else f"spec.model.aliases[{index - 1}]"
        losses.append(Loss(field, wanted, names.qualified_name(winner.namespace, winner.model)))
    return tuple(granted), tuple(losses)
