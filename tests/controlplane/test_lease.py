"""Two operators and one Lease: after the new holder's first write the old one writes nothing."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream_local.cluster import ControlPlane
from tests.controlplane import operator_kit as kit
from tests.controlplane.operator_kit import Api, OperatorProcess

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

LEASE_S = 4


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    with kit.prepared(control_plane.kubeconfig) as api:
        yield api


def edit(api: Api, namespace: str, number: int) -> None:
    """Something that an operator must answer with writes."""
    source = f"file:///models/{number}.gguf"
    kit.patch_model(api, namespace, "contested", {"model": {"source": source}})


def handed_over(log: Path, old: str, new: str) -> None:
    """The audit log's verdict."""
    first_of_new = kit.child_writes(log, new)[0]["requestReceivedTimestamp"]
    late = [
        (entry["requestReceivedTimestamp"], entry["verb"], entry["objectRef"])
        for entry in kit.child_writes(log, old)
        if entry["requestReceivedTimestamp"] >= first_of_new
    ]
    assert late == []


def wrote(log: Path, process: OperatorProcess) -> bool:
    return bool(kit.child_writes(log, process.name))


def test_a_stopped_holder_writes_nothing_after_it_wakes_up(
    control_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    namespace = kit.make_namespace(api, "lease-stopped")
    kubeconfig, log = control_plane.kubeconfig, control_plane.audit_log
    shared = {"leaseName": "stopped", "leaseDurationS": LEASE_S}
    with kit.operator(kubeconfig, tmp_path, "stopped-old", [namespace], **shared) as old:
        kit.create_model(api, namespace, kit.model("contested", scaling={"replicas": 3}))
        api.wait_condition(namespace, "contested", "Ready", "True")
        with kit.operator(kubeconfig, tmp_path, "stopped-new", [namespace], **shared) as new:
            kit.wait_for(new.is_warm, "a warm standby")
            # Stopped while it works, so that it wakes up in the middle of a pass.
            for number in range(5):
                edit(api, namespace, number)
            old.signal(signal.SIGSTOP)
            started = time.monotonic()
            for number in range(5, 10):
                edit(api, namespace, number)
            kit.wait_for(lambda: wrote(log, new), "the standby's first write", 6 * LEASE_S)
            assert time.monotonic() - started > LEASE_S / 2
            old.signal(signal.SIGCONT)
            for number in range(10, 20):
                edit(api, namespace, number)
                time.sleep(0.1)
            api.wait_condition(namespace, "contested", "Ready", "True")
            kit.wait_for(lambda: not old.is_leading() and new.is_leading(), "one leader")
            handed_over(log, old.name, new.name)


def test_a_holder_that_is_cut_off_stops_and_comes_back_as_a_standby(
    control_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    namespace = kit.make_namespace(api, "lease-cut")
    kubeconfig, log = control_plane.kubeconfig, control_plane.audit_log
    shared = {"leaseName": "cut", "leaseDurationS": LEASE_S}
    with (
        kit.link(kubeconfig, tmp_path) as (link, behind),
        kit.operator(behind, tmp_path, "cut-old", [namespace], **shared) as old,
    ):
        kit.create_model(api, namespace, kit.model("contested", scaling={"replicas": 3}))
        api.wait_condition(namespace, "contested", "Ready", "True")
        with kit.operator(kubeconfig, tmp_path, "cut-new", [namespace], **shared) as new:
            kit.wait_for(new.is_warm, "a warm standby")
            for number in range(5):
                edit(api, namespace, number)
            link.cut()
            for number in range(5, 10):
                edit(api, namespace, number)
            kit.wait_for(lambda: wrote(log, new), "the standby's first write", 6 * LEASE_S)
            kit.wait_for(lambda: not old.is_leading(), "an old holder that knows")
            link.heal()
            for number in range(10, 20):
                edit(api, namespace, number)
                time.sleep(0.1)
            api.wait_condition(namespace, "contested", "Ready", "True")
            assert new.is_leading()
            handed_over(log, old.name, new.name)
            # The one that came back has caught up and takes over when asked.
            new.stop()
            kit.wait_for(old.is_leading, "the first holder again")
            edit(api, namespace, 21)
            api.wait_condition(namespace, "contested", "Ready", "True")


def test_a_cleanly_ended_holder_hands_over_at_once(
    control_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    namespace = kit.make_namespace(api, "lease-ended")
    kubeconfig, log = control_plane.kubeconfig, control_plane.audit_log
    # Far longer than the test would wait for it to run out.
    shared = {"leaseName": "ended", "leaseDurationS": 60}
    with kit.operator(kubeconfig, tmp_path, "ended-old", [namespace], **shared) as old:
        kit.create_model(api, namespace, kit.model("contested"))
        api.wait_condition(namespace, "contested", "Ready", "True")
        with kit.operator(kubeconfig, tmp_path, "ended-new", [namespace], **shared) as new:
            kit.wait_for(new.is_warm, "a warm standby")
            assert not new.is_leading()
            edit(api, namespace, 1)
            assert old.stop() == 0
            edit(api, namespace, 2)
            kit.wait_for(lambda: wrote(log, new), "the standby's first write", 20.0)
            api.wait_condition(namespace, "contested", "Ready", "True")
            handed_over(log, old.name, new.name)
