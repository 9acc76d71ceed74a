"""One engine for the whole suite: real processes, a tiny model, a real socket.

And for each of two families a model that says what the test wants, in bursts of up to eight tokens.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.engine import fakerank, served, side, speaking, tiny
from tests.engine.conformance.asking import CONTEXT
from tests.engine.served import Served
from tests.engine.side import Side


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("conformance")
    model = tiny.write(folder / "model", tiny.config(max_position_embeddings=CONTEXT))
    # Of a family that calls tools as Hermes does; without tools its prompts are the same.
    tools = "{#- <tool_call> -#}{% if tools %}[{{ tools | length }} tools]{% endif %}"
    (model / "chat_template.jinja").write_text(tools + tiny.CHAT_TEMPLATE)
    with served.serving(served.config(model), folder) as running:
        yield running


@pytest.fixture
def client(engine: Served) -> Iterator[httpx.Client]:
    with engine.client() as made:
        yield made


@pytest.fixture(scope="package", params=["hermes", "qwen3_coder"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="package")
def model(family: str) -> Iterator[Side]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(fakerank.BURST, "8")
        with side.serving_beside(speaking.text_side(family)) as made:
            yield made


@pytest.fixture
def speaker(model: Side) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=model.url, timeout=30) as made:
        yield made


@pytest.fixture
def official_speaker(model: Side) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{model.url}/v1", api_key="unused", max_retries=0) as made:
        yield made
