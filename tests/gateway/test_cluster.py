"""Gateways against a real API server: what they take over, what they say, what they survive."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slipstream_api import names
from slipstream_api.config import GatewayConfig
from slipstream_gateway.cluster import Identity
from slipstream_gateway.process import Gateway
from slipstream_local.cluster import ControlPlane
from tests.controlplane.operator_kit import Api, make_namespace, prepare
from tests.gateway.place import Place, machine_address
from tests.gateway.support import CHAT, DONE, WAIT_S, Engine, begin_stream, engine, event

pytestmark = [pytest.mark.controlplane, pytest.mark.asyncio]

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    with closing(Api(control_plane.kubeconfig)) as made:
        prepare(made)
        yield made


@pytest.fixture
def place(
    api: Api, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    namespace = make_namespace(api, f"gateway-{uuid.uuid4().hex[:8]}")
    yield Place(api, namespace)
    api.send("DELETE", f"/api/v1/namespaces/{namespace}")


async def eventually(condition: Callable[[], Any], what: str) -> None:
    """Ask (the API server, in a thread) until it is so."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110  (a remote state)
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {LIMIT_S} s: {what}")


@dataclass
class Running:
    gateway: Gateway
    name: str
    stop: asyncio.Event
    task: "asyncio.Task[None]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"


@asynccontextmanager
async def running(place: Place, name: str, **config: Any) -> AsyncIterator[Running]:
    settings = GatewayConfig(
        schema_version=1,
        port=0,
        **{"namespaces": [place.namespace], "drain_timeout_s": 5, "lease_duration_s": 6, **config},
    )
    gateway = Gateway(settings, Identity(name, place.namespace), unready_grace_s=0)
    stop = asyncio.Event()
    task = asyncio.create_task(gateway.run(stop))
    made = Running(gateway, name, stop, task)
    try:
        await asyncio.wait_for(gateway.is_listening.wait(), WAIT_S)
        await eventually(lambda: gateway.view.is_in_use, "the gateway has listed the cluster")
        yield made
    finally:
        stop.set()
        await asyncio.wait_for(task, LIMIT_S)


async def ask(client: aiohttp.ClientSession, url: str, session: int = 0) -> int:
    headers = {"x-slipstream-session": str(session)}
    async with client.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers) as answer:
        await answer.read()
        return answer.status


@asynccontextmanager
async def reachable_engine(name: str) -> AsyncIterator[Engine]:
    async with engine(name, host=machine_address()) as made:
        yield made


async def test_two_gateways_take_over_and_acknowledge_every_generation(place: Place) -> None:
    async with reachable_engine("a") as a, reachable_engine("b") as b:
        place.put_token(current="one")
        place.put_slice("stable", {"a": a.port, "b": b.port})
        place.put_route({"stable": 10_000})
        async with (
            running(place, "gw-1") as first,
            running(place, "gw-2") as second,
            aiohttp.ClientSession() as client,
        ):
            await eventually(
                lambda: place.acknowledged() == {"gw-1": 1, "gw-2": 1}, "both acknowledge"
            )
            for session in range(10):
                assert await ask(client, first.url, session) == 200
                assert await ask(client, second.url, session) == 200
            assert {len(a.seen), len(b.seen)} != {0, 20}
            for header, value in (
                ("x-slipstream-token", "one"),
                ("x-slipstream-model", f"{place.namespace}/coder"),
            ):
                assert a.seen[0][0][header] == value
            sessions = {seen[0]["x-slipstream-session"] for seen in a.seen + b.seen}
            assert len(sessions) == 10, "both gateways name a session alike"

            generation = place.put_route({"stable": 10_000}, draining=("a",))
            assert generation == 2
            await eventually(
                lambda: place.acknowledged() == {"gw-1": 2, "gw-2": 2}, "both acknowledge again"
            )
            before = len(a.seen)
            for session in range(10):
                assert await ask(client, first.url, session) == 200
                assert await ask(client, second.url, session) == 200
            assert len(a.seen) == before, "what was acknowledged is in use"

            lease = place.lease("gw-1")
            assert lease is not None
            assert lease["spec"]["leaseDurationSeconds"] == 6
            assert lease["metadata"]["labels"][names.LABEL_COMPONENT] == "gateway"
            renewed = lease["spec"]["renewTime"]
            await eventually(
                lambda: (place.lease("gw-1") or lease)["spec"]["renewTime"] > renewed, "renewed"
            )

            first.stop.set()
            await asyncio.wait_for(first.task, LIMIT_S)
            assert place.lease("gw-1") is None
            assert place.acknowledged() == {"gw-2": 2}
            assert await ask(client, second.url) == 200


async def test_a_route_that_is_deleted_and_made_again_is_never_missed(place: Place) -> None:
    async with reachable_engine("a") as a:
        place.put_token(current="one")
        place.put_slice("stable", {"a": a.port})
        place.put_route({"stable": 10_000})
        async with running(place, "gw-1") as gateway, aiohttp.ClientSession() as client:
            coder = (place.namespace, "coder")
            store = gateway.gateway.view.routes

            def is_gone() -> bool | None:
                seen = store.scopes[place.namespace].get(coder)
                return None if seen is None else seen.route.is_gone

            place.api.send("DELETE", f"{place.routes}/coder")
            await eventually(lambda: is_gone() is True, "the gateway knows")
            assert await ask(client, gateway.url) == 200
            place.put_route({"stable": 10_000})
            await eventually(lambda: is_gone() is False, "it is there again")
            assert await ask(client, gateway.url) == 200
            await eventually(lambda: place.acknowledged() == {"gw-1": 1}, "the new one is known")
            place.api.send("DELETE", f"{place.routes}/coder")
            await eventually(lambda: is_gone() is None, "one that stays away is let go")
            assert await ask(client, gateway.url) == 404


async def test_a_route_that_is_made_anew_is_acknowledged_anew(place: Place) -> None:
    place.put_token(current="one")
    place.put_route({"stable": 10_000})
    async with running(place, "gw-1") as one:
        await eventually(lambda: place.acknowledged() == {"gw-1": 1}, "acknowledged")
        place.api.must("DELETE", f"{place.routes}/coder")
        await eventually(lambda: not one.gateway.view.table.models, "the route is forgotten")
        place.put_route({"stable": 10_000})
        await eventually(lambda: place.acknowledged() == {"gw-1": 1}, "acknowledged again")


async def test_an_entry_that_was_taken_away_by_mistake_is_written_again(place: Place) -> None:
    place.put_token(current="one")
    place.put_route({"stable": 10_000})
    async with running(place, "gw-1"), running(place, "gw-2"):
        await eventually(lambda: place.acknowledged() == {"gw-1": 1, "gw-2": 1}, "acknowledged")
        assert place.take_out("gw-1") == {"gw-2": 1}
        await eventually(lambda: place.acknowledged() == {"gw-1": 1, "gw-2": 1}, "written again")
        place.take_out("gw-1")
        place.put_route({"stable": 10_000}, draining=("a",))
        await eventually(lambda: place.acknowledged() == {"gw-1": 2, "gw-2": 2}, "the next one")


async def test_routing_goes_on_while_the_api_server_is_away(
    place: Place, control_plane: ControlPlane
) -> None:
    async with reachable_engine("a") as a, reachable_engine("b") as b:
        place.put_token(current="one")
        place.put_slice("stable", {"a": a.port})
        place.put_slice("canary", {"b": b.port})
        place.put_route({"stable": 10_000, "canary": 0})
        async with running(place, "gw-1") as one, aiohttp.ClientSession() as client:
            await eventually(lambda: place.acknowledged() == {"gw-1": 1}, "acknowledged")
            control_plane.stop("kube-apiserver", grace_s=1)
            try:
                for session in range(10):
                    assert await ask(client, one.url, session) == 200
                async with client.get(f"{one.url}/ready") as ready:
                    assert ready.status == 200
                failing = "slipstream_gateway_cluster_errors_total"
                value = one.gateway.metrics.registry.get_sample_value
                await eventually(
                    lambda: (value(failing, {"operation": "watch ModelRoute"}) or 0) > 0,
                    "the gateway notices",
                )
            finally:
                # In this thread: what it starts ends with the thread that started it.
                control_plane.start("kube-apiserver")
            assert len(a.seen) == 10
            place.put_route({"stable": 0, "canary": 10_000})
            await eventually(lambda: place.acknowledged() == {"gw-1": 2}, "acknowledged after")
            assert await ask(client, one.url) == 200
            assert len(b.seen) == 1


async def test_a_rotation_interrupts_nobody(place: Place) -> None:
    """The operator's steps; the engines' files may be one step behind what the gateway sees."""
    steps = (
        {"current": "one"},
        {"current": "one", "next": "two"},
        {"current": "two", "previous": "one"},
        {"current": "two"},
    )
    async with reachable_engine("a") as a:
        place.put_token(**steps[0])
        place.put_slice("stable", {"a": a.port})
        place.put_route({"stable": 10_000})
        async with running(place, "gw-1") as one, aiohttp.ClientSession() as client:
            view = one.gateway.view

            async def step(keys: dict[str, str]) -> str:
                """Exchange the keys; what an engine is sent once they are here."""

                def is_here() -> bool:
                    known = {k for k in ("one", "two", "new") if view.namespaces_of_token(k)}
                    is_sent = view.token(place.namespace) == keys["current"]
                    return is_sent and known == set(keys.values())

                place.put_token(**keys)
                await eventually(is_here, f"{keys} are here")
                assert await ask(client, one.url) == 200
                return str(a.seen[-1][0]["x-slipstream-token"])

            for before, now in zip((steps[0], *steps), steps, strict=False):
                sent = await step(now)
                assert sent == now["current"]
                assert sent in before.values(), "late files know it"
                for token in ("one", "two", "other"):
                    async with client.get(
                        f"{one.url}/internal/v1/observations", headers={"x-slipstream-token": token}
                    ) as answer:
                        assert answer.status == (200 if token in now.values() else 401)
            assert await step({"current": "new"}) == "new", "the Secret was made anew"


async def test_slices_that_kubernetes_itself_makes_are_found_in_every_namespace(
    place: Place,
) -> None:
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_MODEL: "coder"}
    port = {"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}
    place.api.must(
        "POST",
        place.path("services"),
        {
            "metadata": {"name": "coder-stable", "labels": labels},
            "spec": {"clusterIP": "None", "selector": labels, "ports": [port]},
        },
    )
    container = {"name": "engine", "image": "none", "ports": [{"name": "http", "containerPort": 7}]}
    place.api.must(
        "POST",
        place.path("serviceaccounts"),
        {"metadata": {"name": "pods"}},
    )
    place.api.must(
        "POST",
        place.path("pods"),
        {
            "metadata": {"name": "pod-0", "labels": labels},
            "spec": {
                "nodeName": "simulated",
                "serviceAccountName": "pods",
                "containers": [container],
            },
        },
    )
    place.put_route({"stable": 10_000})

    def ports(one: Running) -> list[tuple[str, int]]:
        return [
            (replica.pod, replica.port)
            for model in one.gateway.view.table.models
            if model.namespace == place.namespace
            for replica in model.tracks[0].replicas
        ]

    async with running(place, "gw-1", namespaces=None) as one:
        await eventually(lambda: ports(one) == [("pod-0", 7)], "the Pod is in the table")
        place.api.must("DELETE", place.path("pods", "pod-0"))
        await eventually(lambda: ports(one) == [], "the Pod is out of the table")


async def test_the_process_drains_on_sigterm_and_leaves_nothing(
    place: Place, control_plane: ControlPlane, tmp_path: Path
) -> None:
    go_on = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(event("one"))
        await asyncio.wait_for(go_on.wait(), LIMIT_S)
        await response.write(DONE)
        return response

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {"schemaVersion": 1, "port": port, "namespaces": [place.namespace]}
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps(config))
    async with reachable_engine("a") as a, aiohttp.ClientSession() as client:
        a.behaviour = slowly
        place.put_token(current="one")
        place.put_slice("stable", {"a": a.port})
        place.put_route({"stable": 10_000})
        process = subprocess.Popen(  # noqa: ASYNC220  (starting is quick)
            [sys.executable, "-m", "slipstream_cli", "gateway", "serve", "--config", str(file)],
            env={**os.environ, "POD_NAME": "gw-p", "POD_NAMESPACE": place.namespace},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            await eventually(lambda: place.acknowledged() == {"gw-p": 1}, "acknowledged")
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            answer = await client.post(url, json={**CHAT, "stream": True})
            assert await answer.content.readany() == event("one")
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(1)
            assert process.poll() is None
            assert place.lease("gw-p") is not None, "a gateway that still routes is waited for"
            go_on.set()
            assert await answer.content.read() == DONE
            await eventually(lambda: process.poll() is not None, "the process ends")
        finally:
            process.kill()
            _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
        assert place.lease("gw-p") is None
        assert place.acknowledged() == {}
        lines = [json.loads(line) for line in errors.splitlines()]
        [request] = [line for line in lines if line["message"] == "request"]
        assert (request["model"], request["status"]) == (f"{place.namespace}/coder", 200)
