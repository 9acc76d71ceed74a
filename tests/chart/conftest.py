"""helm, built where it is not yet, and our chart."""

from pathlib import Path

import pytest

from slipstream_local import build
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
