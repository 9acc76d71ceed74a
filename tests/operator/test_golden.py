"""Plans as documents: each folder of golden/ is one situation and what is done about it."""

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream_operator.observed import Refusal
from slipstream_operator.plan import Plan, plan
from tests.operator import world

CASES = Path(__file__).parent / "golden"
NOW = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def readable(decided: Plan) -> str:
    document = {
        "create": list(decided.create),
        "apply": list(decided.apply),
        "delete": [f"{ref} {ref.uid}" for ref in decided.delete],
        **({"withdraw": [str(w) for w in decided.withdraw]} if decided.withdraw else {}),
        "status": decided.status,
        "requeueAfterS": decided.requeue_after_s,
        "events": [asdict(event) for event in decided.events],
    }
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)


def decide(given: dict[str, Any]) -> Plan:
    objects = given["objects"]
    model = objects[0]
    refusals = {
        what: Refusal(refusal["code"], refusal["message"])
        for what, refusal in given.get("refusals", {}).items()
    }
    observed = world.observe(
        objects, model["metadata"]["name"], NOW, given.get("entriesSilentS", {})
    )
    observed = replace(observed, refusals=refusals)
    settings = world.settings(**given.get("settings", {}))
    return plan(model, observed, settings, NOW, world.TOKEN)


def test_a_bad_spec_still_replaces_a_lost_replica_of_what_runs() -> None:
    given = yaml.safe_load(
        (CASES / "invalid-spec-keeps-what-runs" / "input.yaml").read_text(encoding="utf-8")
    )
    given["objects"] = [o for o in given["objects"] if o["kind"] != "Pod"]
    given["objects"][0]["spec"]["scaling"] = {"replicas": 2}
    pods = [d for d in decide(given).apply if d["kind"] == "Pod"]
    assert [p["metadata"]["name"].rpartition("-")[2] for p in pods] == ["0", "1"]


@pytest.mark.parametrize("case", sorted(p.name for p in CASES.iterdir()))
def test_the_plan_is_the_one_on_file(case: str, golden: Callable[[Path, str], None]) -> None:
    given = yaml.safe_load((CASES / case / "input.yaml").read_text(encoding="utf-8"))
    assert given["about"].endswith("."), "every case says in one sentence what it shows"
    golden(CASES / case / "plan.yaml", readable(decide(given)))
