"""What a killed gateway leaves in a route's status, on a real API server.

The hour after which it goes is an argument: the operator's parts get a clock of the test's.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from slipstream_api import names
from slipstream_gateway.cluster import Cluster as GatewayDoor
from slipstream_gateway.cluster import Identity
from slipstream_gateway.view import Acknowledgement
from slipstream_local.cluster import ControlPlane
from slipstream_operator import cluster as clusters
from slipstream_operator import kinds
from slipstream_operator.cache import Cache, Key
from slipstream_operator.cluster import Cluster
from slipstream_operator.gateways import FORGOTTEN_AFTER_S
from slipstream_operator.metrics import Metrics
from slipstream_operator.reconciler import Reconciler
from tests.controlplane import operator_kit as kit
from tests.controlplane.operator_kit import MODELS, Api, Document
from tests.operator import world

pytestmark = [pytest.mark.controlplane, pytest.mark.asyncio]

NAMESPACE = "gateway-entries"
MODEL = "coder"
WRITE_TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    with kit.prepared(control_plane.kubeconfig) as api:
        kit.make_namespace(api, NAMESPACE)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        kit.wait_for(lambda: api.get(account), "the account of Pods")
        kit.create_model(api, NAMESPACE, kit.model(MODEL))
        yield api


@dataclass
class Operator:
    """The operator's parts around the real API server, with a clock of the test's."""

    cluster: Cluster
    now_s: float = 0.0
    cache: Cache = field(init=False)
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.cache = Cache(lambda: self.now_s)
        self.reconciler = Reconciler(
            self.cluster,
            self.cache,
            world.settings(),
            Metrics(),
            instance="test",
            on_written=self._on_written,
        )

    def _on_written(self, _: Key, document: Document) -> None:
        self.cache.feed(kinds.of(document), document)

    async def pass_(self) -> None:
        """What the watches would have brought, then one pass."""
        for kind in kinds.WATCHED:
            items, version = await self.cluster.list(kind, NAMESPACE)
            self.cache.replace(kind, items, version, namespace=NAMESPACE)
        await self.reconciler.reconcile((NAMESPACE, MODEL))


@asynccontextmanager
async def operator() -> AsyncIterator[Operator]:
    cluster = Cluster(
        clusters.load_config(),
        window_s=lambda: WRITE_TIMEOUT_S,
        write_timeout_s=WRITE_TIMEOUT_S,
        metrics=Metrics(),
        user_agent="slipstream-operator/test",
    )
    try:
        yield Operator(cluster)
    finally:
        await cluster.close()


class Gateway:
    """A gateway's own writes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._door = GatewayDoor(Identity(name, NAMESPACE))
        self._renewals = 0

    async def renew(self) -> None:
        self._renewals += 1
        moment = f"2026-11-01T12:00:{self._renewals:02}.000000Z"
        await self._door.write_lease(duration_s=20, acquired_at=moment, renewed_at=moment)

    async def die(self) -> None:
        """Without a word but for the Lease, which its Pod took along."""
        await self._door.delete_lease()

    async def acknowledge(self, generation: int) -> None:
        await self._door.acknowledge(Acknowledgement(NAMESPACE, MODEL, generation))

    async def close(self) -> None:
        await self._door.close()


@asynccontextmanager
async def gateways(*given: str) -> AsyncIterator[list[Gateway]]:
    made = [Gateway(name) for name in given]
    try:
        yield made
    finally:
        await asyncio.gather(*(gateway.close() for gateway in made))


def route(api: Api) -> Document:
    return api.must("GET", f"{MODELS}/namespaces/{NAMESPACE}/modelroutes/{MODEL}")


def entries(api: Api) -> dict[str, int]:
    found = (route(api).get("status") or {}).get("gateways") or []
    return {entry["name"]: entry["observedGeneration"] for entry in found}


async def test_the_entry_of_a_dead_gateway_goes_and_that_of_a_living_one_stays(
    api: Api, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    async with (
        operator() as ours,
        gateways("living", "killed", "vanished", "early") as (living, killed, vanished, early),
    ):
        await ours.pass_()
        for gateway in (living, killed, vanished):
            await gateway.renew()
            await gateway.acknowledge(1)
        await ours.pass_()

        # An hour later: one Lease is as it was, one is gone, and one gateway has just begun.
        ours.now_s = FORGOTTEN_AFTER_S
        await living.renew()
        await vanished.die()
        await early.acknowledge(1)
        await ours.pass_()
        assert entries(api) == {"living": 1, "killed": 1, "vanished": 1, "early": 1}
        ours.now_s += 1
        await ours.pass_()
        assert entries(api) == {"living": 1, "vanished": 1, "early": 1}

        # An hour after that: whoever gave no sign since it was missed.
        ours.now_s += FORGOTTEN_AFTER_S
        await living.renew()
        await ours.pass_()
        assert entries(api) == {"living": 1}
        settled = route(api)
        await ours.pass_()
        assert route(api)["metadata"]["resourceVersion"] == settled["metadata"]["resourceVersion"]
        managers = {entry["manager"] for entry in settled["metadata"]["managedFields"]}
        assert managers == {
            names.FIELD_MANAGER,
            names.gateway_field_manager(NAMESPACE, "living"),
        }

        # One that was taken for dead says so at its next change.
        await killed.acknowledge(2)
        assert entries(api) == {"living": 1, "killed": 2}
