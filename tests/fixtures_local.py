"""Clusters that tests share; each is made when the first test asks for it.

With SLIPSTREAM_KUBECONFIG set, tests marked `cluster` use the cluster it names.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream_local import cluster, layout
from slipstream_local.cluster import ControlPlane, Options
from slipstream_local.progress import Progress

KUBECONFIG_VARIABLE = "SLIPSTREAM_KUBECONFIG"
GPU_PROFILE = "dual-socket-four-pairs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take the machine's one node cluster down come last: others still use it."""
    items.sort(key=lambda item: "machine_without_node" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """API server, scheduler and controllers with KWOK, for this test session alone."""
    directory = tmp_path_factory.mktemp("control-plane")
    with cluster.control_plane(directory, kwok=True) as plane:
        yield plane


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[Path]:
    """The kubeconfig of a cluster with a node; one that was there before is left running."""
    given = os.environ.get(KUBECONFIG_VARIABLE)
    if given:
        yield Path(given)
        return
    was_there = (layout.root_of(layout.DEFAULT_NAME) / "cluster.json").exists()
    made = cluster.up(layout.DEFAULT_NAME, Options(gpu_profile=GPU_PROFILE), Progress())
    yield made.kubeconfig
    if not was_there:
        cluster.down(layout.DEFAULT_NAME, Progress())


@pytest.fixture
def local_node(node_cluster: Path) -> Path:
    """The same, for tests that look at the machine's own node."""
    if KUBECONFIG_VARIABLE in os.environ:
        pytest.skip(f"{KUBECONFIG_VARIABLE} names a cluster that is not on this machine")
    return node_cluster


@pytest.fixture
def machine_without_node() -> Iterator[None]:
    """No node cluster during the test; one that was there is brought back, empty."""
    if KUBECONFIG_VARIABLE in os.environ:
        pytest.skip(f"{KUBECONFIG_VARIABLE} names a cluster that is not on this machine")
    before = cluster.all_states().get(layout.DEFAULT_NAME)
    cluster.down(layout.DEFAULT_NAME, Progress())
    yield
    cluster.down(layout.DEFAULT_NAME, Progress())
    if before is not None:
        options = Options(before.layout.node, before.layout.kwok, before.layout.gpu_profile)
        cluster.up(layout.DEFAULT_NAME, options, Progress())
