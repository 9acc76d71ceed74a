"""One engine for the whole suite: real processes, a tiny model, a real socket."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine import served, tiny
from tests.engine.conformance.asking import CONTEXT
from tests.engine.served import Served


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("conformance")
    model = tiny.write(folder / "model", tiny.config(max_position_embeddings=CONTEXT))
    with served.serving(served.config(model), folder) as running:
        yield running


@pytest.fixture
def client(engine: Served) -> Iterator[httpx.Client]:
    with engine.client() as made:
        yield made
