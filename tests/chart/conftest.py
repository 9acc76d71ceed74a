"""helm, built where it is not yet, our chart, and an API server to try it on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream_cli.kubectl import Cluster
from slipstream_local import build
from slipstream_local.cluster import control_plane
from slipstream_local.progress import Progress
from tests.chart.helm import Helm


@pytest.fixture(scope="session")
def helm(repository: Path) -> Helm:
    program = build.ensure(("helm",), Progress())["helm"]
    return Helm(program, repository / "charts/slipstream")


@pytest.fixture(scope="session")
def values_dir() -> Path:
    """Values files that stand for the ways the chart is used."""
    return Path(__file__).parent / "values"


@pytest.fixture(scope="session")
def cluster(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without a node: Pods are judged there, and stay pending."""
    with control_plane(tmp_path_factory.mktemp("plane") / "chart") as plane:
        yield Cluster(plane.kubeconfig, (str(plane.kube), "kubectl"), (str(helm.program),))
