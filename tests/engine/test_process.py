"""Starting, draining, failing: what the engine's processes do when the world is not kind."""

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slipstream_api.conditions import Reason
from tests.engine import served, tiny

pytestmark = pytest.mark.slow  # a process a test

_CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = tiny.config(max_position_embeddings=4096)
    return tiny.write(tmp_path_factory.mktemp("model"), document)


def _body(max_tokens: int = 3000) -> dict[str, object]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Write."}],
        "temperature": 0,
        "stream": True,
        "max_tokens": max_tokens,
    }


class _Stream(threading.Thread):
    """A client that reads one stream to its end."""

    def __init__(self, url: str, max_tokens: int = 3000) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._max_tokens = max_tokens
        self.status: int | None = None
        self.lines: list[str] = []
        self.started = threading.Event()
        self.is_cut = False

    def run(self) -> None:
        try:
            self._read()
        except httpx.RemoteProtocolError:
            self.is_cut = True

    def _read(self) -> None:
        body = _body(self._max_tokens)
        with (
            httpx.Client(base_url=self._url, timeout=120) as client,
            client.stream("POST", _CHAT, json=body) as response,
        ):
            self.status = response.status_code
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.lines.append(line.removeprefix("data: "))
                    if len(self.lines) > 2:
                        self.started.set()


@pytest.mark.slow
def test_the_queue_is_bounded_and_sigterm_lets_streams_finish(model: Path, tmp_path: Path) -> None:
    limits = {"maxRunningSequences": 1, "maxWaitingRequests": 1}
    with served.serving(served.config(model, limits=limits), tmp_path) as engine:
        streams = [_Stream(engine.url), _Stream(engine.url, 5)]
        streams[0].start()
        assert streams[0].started.wait(30)
        streams[1].start()
        served.wait_for(lambda: engine.load()["waiting"] == 1, "a waiting request")
        with engine.client() as client:
            refused = client.post(_CHAT, json=_body())
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
            assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
            engine.process.send_signal(signal.SIGTERM)
            served.wait_for(lambda: client.get("/ready").status_code == 503, "draining")
            assert client.get("/health").status_code == 200
            late = client.post(_CHAT, json=_body())
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert int(late.headers["retry-after"]) > 0
        assert engine.exit_code(90) == 0
        for stream in streams:
            stream.join(10)
            assert stream.status == 200
            assert stream.lines[-1] == "[DONE]"
        assert len(streams[0].lines) > 100
        assert not served.is_running(engine.rank_pid())


@pytest.mark.slow
def test_draining_by_request_refuses_new_work_and_a_deadline_ends_the_rest(
    model: Path, tmp_path: Path
) -> None:
    document = served.config(model, server={"drainTimeoutS": 1})
    with served.serving(document, tmp_path) as engine, engine.client() as client:
        stream = _Stream(engine.url, 4000)
        stream.start()
        assert stream.started.wait(30)
        answer = client.post("/internal/v1/drain")
        assert (answer.status_code, answer.json()["state"]) == (200, "draining")
        assert client.get("/ready").status_code == 503
        assert client.post(_CHAT, json=_body()).status_code == 503
        assert engine.process.poll() is None
        began = time.monotonic()
        engine.process.send_signal(signal.SIGTERM)
        assert engine.exit_code() == 0
        assert time.monotonic() - began < 20
        stream.join(10)
        # A proxy must not take it for a whole answer, nor a client.
        assert stream.is_cut
        assert json.loads(stream.lines[-1])["error"]["code"] == "draining"


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_every_request_and_the_process(
    model: Path, tmp_path: Path
) -> None:
    with served.serving(served.config(model), tmp_path) as engine:
        streams = [_Stream(engine.url) for _ in range(3)]
        for stream in streams:
            stream.start()
        assert all(stream.started.wait(30) for stream in streams)
        os.kill(engine.rank_pid(), signal.SIGKILL)
        assert engine.exit_code(20) == 1
        for stream in streams:
            stream.join(10)
            assert stream.is_cut
            error = json.loads(stream.lines[-1])["error"]
            assert error["type"] == "server_error"
            assert "SIGKILL" in error["message"]
        last = engine.last_failure()
        assert last is not None
        assert "SIGKILL" in last.message


def _with_head(model: Path, folder: Path, value: float) -> Path:
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][7] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.slow
def test_a_request_whose_logits_are_no_numbers_ends_alone_and_is_counted(
    model: Path, tmp_path: Path
) -> None:
    """Finite weights, each of them too large to be added up."""
    broken = _with_head(model, tmp_path / "broken", 3e38)
    with served.serving(served.config(broken), tmp_path) as engine, engine.client() as client:
        for count, temperature in enumerate((0, 1, 0), 1):
            asked = client.post(
                _CHAT, json={**_body(), "stream": False, "temperature": temperature}
            )
            assert asked.status_code == 500
            assert asked.json()["error"]["code"] == "draw_failed"
            assert "the largest logit is" in asked.json()["error"]["message"]
            metrics = client.get("/metrics").text
            assert f'slipstream_draw_failures_total{{model_name="tiny"}} {count}.0' in metrics
        assert client.get("/ready").status_code == 200
        assert 'vllm:num_requests_running{model_name="tiny"} 0.0' in client.get("/metrics").text


@pytest.mark.slow
def test_weights_with_what_is_no_number_are_refused_at_the_start(
    model: Path, tmp_path: Path
) -> None:
    broken = _with_head(model, tmp_path / "broken", np.nan)
    engine = served.start(served.config(broken), tmp_path)
    assert engine.exit_code(served.START_S) == 1
    last = engine.last_failure()
    assert last is not None
    assert (last.reason, last.field) == ("ModelInvalid", "model.path")
    assert "lm_head.weight" in last.message


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"pipeline": 2}], ids=str)
def test_the_death_of_one_of_several_ranks_ends_the_replica_with_its_name(
    model: Path, tmp_path: Path, parallel: dict[str, int]
) -> None:
    with served.serving(served.config(model, parallel=parallel), tmp_path) as engine:
        stream = _Stream(engine.url)
        stream.start()
        assert stream.started.wait(60)
        os.kill(engine.rank_pids()[1], signal.SIGKILL)
        assert engine.exit_code(20) == 1
        stream.join(10)
        assert stream.is_cut
        last = engine.last_failure()
        assert last is not None
        assert last.message == "rank 1: the rank process was ended by SIGKILL"
        assert not any(served.is_running(pid) for pid in engine.rank_pids())


@pytest.mark.slow
def test_a_serving_process_that_is_killed_takes_its_rank_along(model: Path, tmp_path: Path) -> None:
    with served.serving(served.config(model), tmp_path) as engine:
        rank = engine.rank_pid()
        engine.process.kill()
        served.wait_for(lambda: not served.is_running(rank), "end of the rank")


def test_health_is_answered_while_the_model_is_loading(model: Path, tmp_path: Path) -> None:
    engine = served.start(served.config(model), tmp_path)
    try:
        served.wait_listening(engine)
        with engine.client() as client:
            # Importing torch alone takes longer than this.
            assert client.get("/health").status_code == 200
            assert client.get("/ready").json()["status"] == "loading"
            early = client.post(_CHAT, json=_body())
            assert (early.status_code, early.json()["error"]["code"]) == (503, "loading")
            assert "vllm:num_requests_running" in client.get("/metrics").text
    finally:
        engine.process.send_signal(signal.SIGTERM)
        assert engine.exit_code() == 0


def _corrupt(path: Path) -> Path:
    path.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 64)
    return path


_FAILURES = {
    "a file that does not exist": ("missing.gguf", {}, Reason.MODEL_NOT_FOUND, "model.path"),
    "a corrupt file": ("corrupt.gguf", {}, Reason.MODEL_INVALID, "model.path"),
    "an empty folder": (".", {}, Reason.MODEL_NOT_FOUND, "model.path"),
    "a token folder that does not exist": (
        "missing.gguf",
        {"server": {"tokenDir": "/nowhere/at/all"}},
        Reason.CONFIG_INVALID,
        "server.tokenDir",
    ),
    "an unknown key": (
        "missing.gguf",
        {"limits": {"maxRuning": 1}},
        Reason.CONFIG_INVALID,
        "limits.maxRuning",
    ),
}


@pytest.mark.parametrize(("name", "sections", "reason", "field"), _FAILURES.values(), ids=_FAILURES)
def test_an_engine_that_cannot_start_says_why_and_ends(
    tmp_path: Path, name: str, sections: dict[str, object], reason: Reason, field: str
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    _corrupt(folder / "corrupt.gguf")
    document = served.config(folder / name, **sections)
    engine = served.start(document, tmp_path)
    assert engine.exit_code(served.START_S) == 1
    last = engine.last_failure()
    assert last is not None
    assert (last.reason, last.field) == (reason, field)
    assert last.message


@pytest.mark.slow
def test_a_context_that_the_model_was_not_made_for_is_refused_by_its_field(
    model: Path, tmp_path: Path
) -> None:
    document = served.config(model, model={"maxContext": 8192})
    engine = served.start(document, tmp_path)
    assert engine.exit_code(served.START_S) == 1
    last = engine.last_failure()
    assert last is not None
    assert (last.reason, last.field) == (Reason.CONFIG_INVALID, "model.maxContext")


@pytest.mark.parametrize(
    ("parallel", "field"),
    [({"pipeline": 31}, "parallel.pipeline"), ({"tensor": 7}, "parallel.tensor")],
    ids=str,
)
def test_a_split_that_the_model_does_not_allow_is_refused_before_any_rank_starts(
    model: Path, tmp_path: Path, parallel: dict[str, int], field: str
) -> None:
    engine = served.start(served.config(model, parallel=parallel), tmp_path)
    assert engine.exit_code(served.START_S) == 1
    last = engine.last_failure()
    assert last is not None
    assert (last.reason, last.field) == (Reason.CONFIG_INVALID, field)
    assert "rank process" not in engine.log()


def test_more_pages_than_there_is_memory_are_refused_by_their_field(
    model: Path, tmp_path: Path
) -> None:
    engine = served.start(served.config(model, pages={"kvBytes": 10**18}), tmp_path)
    assert engine.exit_code(served.START_S) == 1
    last = engine.last_failure()
    assert last is not None
    assert (last.reason, last.field) == (Reason.CONFIG_INVALID, "pages.kvBytes")
    assert "no memory for" in last.message


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_one_is_refused_by_its_field(
    model: Path, tmp_path: Path, host: str
) -> None:
    engine = served.start(served.config(model, server={"host": host}), tmp_path)
    assert engine.exit_code(served.START_S) == 1
    last = engine.last_failure()
    assert last is not None
    assert (last.reason, last.field) == (Reason.CONFIG_INVALID, "server.host")


def test_a_port_that_is_taken_is_refused_by_its_field(model: Path, tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        document = served.config(model, server={"port": taken.getsockname()[1]})
        engine = served.start(document, tmp_path)
        assert engine.exit_code(served.START_S) == 1
    last = engine.last_failure()
    assert last is not None
    assert (last.reason, last.field) == (Reason.CONFIG_INVALID, "server.port")
