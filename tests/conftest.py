"""Options and fixtures of every test: golden files, depth, and the shared local clusters."""

import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["tests.fixtures_local"]

hypothesis.settings.register_profile(
    "normal", deadline=None, max_examples=200, print_blob=True, derandomize=True
)
hypothesis.settings.register_profile("full", deadline=None, max_examples=10_000, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", default=False, help="write golden files anew"
    )
    parser.addoption(
        "--depth",
        choices=("normal", "full"),
        default="normal",
        help="full: ten thousand generated cases instead of hundreds",
    )


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile(config.getoption("--depth"))
    # Two cores: more threads than that only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout that is tested."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a golden file; `--update-golden` writes it instead."""
    update = bool(request.config.getoption("--update-golden"))

    def compare(path: Path, text: str) -> None:
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} is missing: run pytest with --update-golden and read the result")
        assert text == path.read_text(encoding="utf-8")

    return compare
