"""The process before it has a cluster: it waits, says so, and ends when it is asked to."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slipstream_api import failure

LIMIT_S = 60
OPERATOR = (sys.executable, "-m", "slipstream_cli", "operator", "serve")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
def test_sigterm_ends_an_operator_that_still_waits_for_the_api_server(tmp_path: Path) -> None:
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    config = {
        "schemaVersion": 1,
        "engineImage": "engine:1",
        "operatorNamespace": "system",
        "metricsPort": free_port(),
    }
    (tmp_path / "operator.json").write_text(json.dumps(config))
    process = subprocess.Popen(
        [*OPERATOR, "--config", str(tmp_path / "operator.json")],
        env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any("not ready to start" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("component", ["operator", "gateway", "engine"])
@pytest.mark.slow
def test_what_nobody_foresaw_is_told_like_every_other_failure(
    component: str, tmp_path: Path
) -> None:
    """Here: a library that cannot be read. The kubelet shows the last line of the log."""
    (tmp_path / "prometheus_client.py").write_text("raise OSError('the disk is broken')")
    path = tmp_path / "config.json"
    path.write_text("{}")
    before = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [sys.executable, "-m", "slipstream_cli", component, "serve", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{before}"},
    )
    assert done.returncode == 1
    told = failure.parse(done.stderr.splitlines()[-1])
    assert told is not None
    assert "the disk is broken" in told.message


@pytest.mark.skipif(os.geteuid() != 0, reason="a process namespace needs root")
def test_a_containers_first_process_ends_when_it_is_stopped_while_it_still_imports() -> None:
    """The kernel keeps SIGTERM from a namespace's first process that does not handle it."""
    code = "import slipstream_cli, time; print('up', flush=True); time.sleep(60)"
    outer = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )
    with outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == "up\n"
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        os.kill(int(children.read_text(encoding="utf-8")), signal.SIGTERM)
        try:
            assert outer.wait(timeout=10) == 0
        finally:
            outer.kill()
