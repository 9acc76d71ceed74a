"""Several ranks as real processes joined by gloo: equal answers, clear refusals, no hanging."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream_api.conditions import Reason
from slipstream_cli import install
from slipstream_engine.split import Split, check, possible
from slipstream_weights import source
from tests.engine import served, tiny
from tests.engine.served import Served

pytestmark = pytest.mark.slow

_SHAPE = tiny.config(
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    num_hidden_layers=3,
    max_position_embeddings=4096,
)
_PROMPTS = [[(7 * i + k) % 300 for i in range(length)] for k, length in enumerate((3, 17, 90))]
# A dead rank is noticed by its closed connections; a machine under load still needs some seconds.
_NOTICED_S = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"), _SHAPE)


def _answers(engine: Served, prompts: list[list[int]], count: int) -> list[list[str]]:
    """Greedy tokens by their logprobs' texts, and one seeded answer."""
    found = []
    with engine.client() as client:
        for prompt in prompts:
            form = {"structured_outputs": {"regex": "([a-z]{2,9} ){2,9}"}}
            # Of the twenty likeliest: at the far end of 49,152 tokens one is drawn instead of
            # another by less than ranks round (1e-6 of the sum), which says nothing of ranks.
            drawn: dict[str, Any] = {"temperature": 1, "seed": 5, "top_k": 20}
            for sampling in ({"temperature": 0}, drawn, {**drawn, **form}):
                body = {
                    "model": "tiny",
                    "prompt": prompt,
                    "max_tokens": count,
                    "ignore_eos": True,
                    "logprobs": 0,
                    **sampling,
                }
                response = client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                found.append(response.json()["choices"][0]["logprobs"]["tokens"])
    return found


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    with served.serving(served.config(folder), tmp_path_factory.mktemp("alone")) as engine:
        return _answers(engine, _PROMPTS, 16)


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_ranks_in_processes_answer_as_one(
    folder: Path, alone: list[list[str]], tmp_path: Path, tensor: int, pipeline: int
) -> None:
    document = served.config(folder, parallel={"tensor": tensor, "pipeline": pipeline})
    with served.serving(document, tmp_path) as engine:
        assert _answers(engine, _PROMPTS, 16) == alone


def test_three_ranks_of_the_real_model_answer_as_one(tmp_path: Path) -> None:
    path = next(install.sample_folder().glob("*.gguf"))
    answers = []
    for tensor in (1, 3):
        document = served.config(path, parallel={"tensor": tensor})
        document["quantization"] = "none"
        with served.serving(document, tmp_path / str(tensor)) as engine:
            answers.append(_answers(engine, [[504, 253, 2000, 17], [9, 8, 7]], 12))
    assert answers[0] == answers[1]
    assert len({token for answer in answers[0] for token in answer}) > 10


@pytest.mark.parametrize(
    ("parallel", "field", "words"),
    [
        ({"tensor": 3}, "parallel.tensor", "3 tensor ranks cannot share 8 query heads"),
        ({"tensor": 8}, "parallel.tensor", "8 tensor ranks cannot share 4 KV heads"),
        ({"pipeline": 4}, "parallel.pipeline", "4 stages for 3 layers"),
    ],
    ids=str,
)
def test_a_layout_that_the_model_does_not_allow_is_refused_by_name(
    folder: Path, tmp_path: Path, parallel: dict[str, int], field: str, words: str
) -> None:
    engine = served.start(served.config(folder, parallel=parallel), tmp_path)
    try:
        assert engine.exit_code(served.START_S) == 1
        failure = engine.last_failure()
        assert failure is not None
        assert failure.reason == Reason.CONFIG_INVALID
        assert failure.field == field
        assert words in failure.message
    finally:
        served.end(engine)


def test_what_is_possible_is_named(folder: Path) -> None:
    checkpoint = source.open_checkpoint(folder).checkpoint
    assert possible(checkpoint) == [1, 2, 4]
    for tensor in possible(checkpoint):
        check(checkpoint, Split(tensor))


@pytest.mark.parametrize("victim", [0, 1, 2], ids=lambda rank: f"rank {rank}")
@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
def test_a_rank_that_dies_ends_the_replica_with_a_message(
    folder: Path, tmp_path: Path, victim: int, is_busy: bool
) -> None:
    document = served.config(folder, parallel={"tensor": 2, "pipeline": 2})
    with served.serving(document, tmp_path) as engine:
        told = re.search(r"rank process ([\d ]+)", engine.log())
        assert told is not None, engine.log()
        pids = [int(pid) for pid in told[1].split()]
        assert len(pids) == 4
        if is_busy:
            _begin_long_answer(engine)
        began = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        assert engine.exit_code(_NOTICED_S) == 1
        assert time.monotonic() - began < _NOTICED_S
        failure = engine.last_failure()
        assert failure is not None
        assert failure.reason == Reason.CONTAINER_FAILED
        assert "rank" in failure.message
        served.wait_for(lambda: not any(map(served.is_running, pids)), "end of all ranks")


def _begin_long_answer(engine: Served) -> None:
    """A stream that is under way when this returns; its connection is given up."""
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": [3, 4, 5],
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": True,
    }
    with engine.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        assert next(response.iter_lines()).startswith("data: ")
