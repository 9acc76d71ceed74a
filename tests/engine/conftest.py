"""One engine with a tiny model and an internal token, for all tests that only ask it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine import served, tiny
from tests.engine.served import TOKEN, Served


@pytest.fixture(scope="session")
def token_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("token")
    (folder / "current").write_text(TOKEN + "\n")
    (folder / "previous").write_text("the-previous-key")
    return folder


@pytest.fixture(scope="session")
def engine(token_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    document = tiny.config(max_position_embeddings=served.CONTEXT)
    model = tiny.write(tmp_path_factory.mktemp("model"), document)
    sections = served.config(
        model,
        server={"tokenDir": str(token_dir), "maxBodyBytes": 65536},
        pages={"kvBytes": 4 * 1024 * 1024},
    )
    with served.serving(sections, tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def client(engine: Served) -> Iterator[httpx.Client]:
    with engine.client() as made:
        yield made
