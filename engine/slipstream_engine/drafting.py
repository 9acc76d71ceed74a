"""From a configuration to what drafts: the drafters, the costs of verifying, the limits."""

import logging
from collections.abc import Callable
from dataclasses import replace

from slipstream_api.speculator import SpeculatorSpec
from slipstream_engine import costs
from slipstream_engine.costs import Runs
from slipstream_engine.scheduler import Limits
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import Drafter, Key
from slipstream_engine.spec.edit import EditDrafter
from slipstream_engine.spec.lengths import CostTable
from slipstream_engine.spec.lookup import LookupDrafter
from slipstream_engine.spec.speculation import Speculation
from slipstream_engine.spec.store import StoreDrafter, StoreLimits
from slipstream_engine.spec.suffix import SuffixDrafter
from slipstream_engine.spec.synthetic import Synthetic, SyntheticDrafter

_log = logging.getLogger(__name__)


def make(
    spec: SpeculatorSpec,
    runner: Runs,
    limits: Limits,
    clock: Callable[[], float],
    model: Member | None = None,
) -> Speculation | None:
    """What the scheduler drafts with; None where nothing does.

    Runs a few steps to measure them, where lengths or a draft model depend on what they cost.
    `model`: the draft model with the seconds of a token of it as its cost.
    """
    if not spec.is_drafting:
        return None
    measured_s: dict[int, float] = {}
    if spec.adaptive or model is not None:
        measured_s = costs.measure(
            runner, limits.page_tokens, limits.max_batch_tokens, limits.max_context, clock
        )
    cost = CostTable(measured_s) if spec.adaptive else None
    synthetic = None
    store = _store(spec) if spec.synthetic_acceptance is None else None
    if spec.synthetic_acceptance is not None:
        wanted = spec.synthetic_acceptance
        synthetic = Synthetic.of_length(wanted.length_milli / 1000, wanted.seed)
        members = [Member(SyntheticDrafter(synthetic))]
        _log.warning("drafts count as accepted whatever the model says: for load tests alone")
    else:
        members = _members(spec, store)
    if model is not None:
        members.append(replace(model, cost=model.cost / measured_s[1]))
    chooser = Chooser(members, _report, cost)
    return Speculation(
        chooser,
        spec.max_draft_tokens,
        cost,
        clock,
        synthetic,
        forget=(lambda tenant: None) if store is None else store.forget,
        num_failures=lambda: chooser.num_failures,
    )


def names(spec: SpeculatorSpec) -> tuple[str, ...]:
    """Of the drafters that a configuration has, for the metrics of each."""
    if not spec.is_drafting:
        return ()
    if spec.synthetic_acceptance is not None:
        return (SyntheticDrafter.name,)
    model = ("model",) if spec.draft is not None else ()
    return (*(member.drafter.name for member in _members(spec, _store(spec))), *model)


def _store(spec: SpeculatorSpec) -> StoreDrafter | None:
    limits = spec.suffix
    if spec.method not in ("auto", "suffix") or limits.max_tokens_per_tenant == 0:
        return None
    return StoreDrafter(StoreLimits(limits.max_tokens_per_tenant, limits.max_tenants))


def _members(spec: SpeculatorSpec, store: StoreDrafter | None) -> list[Member]:
    suffix: list[Drafter] = [SuffixDrafter()]
    if store is not None:
        suffix.append(store)
    drafters: dict[str, list[Drafter]] = {
        "auto": [EditDrafter(), *suffix],
        "edit": [EditDrafter()],
        "suffix": suffix,
        "lookup": [LookupDrafter()],
        "model": [],
        "none": [],
    }
    return [Member(drafter) for drafter in drafters[spec.method]]


def _report(drafter: str, key: Key, error: Exception) -> None:
    """The exception's kind alone: its words may hold tokens of a prompt."""
    _log.warning(
        "the drafter %s failed (%s): request %s goes on without its drafts",
        drafter,
        type(error).__name__,
        key[0],
    )
