"""`slipstream demo`, as a new user runs it, on the cluster that the other tests use."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream_cli import install
from slipstream_cli.demo import MODEL, NAMESPACE
from slipstream_cli.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
LIMIT_S = 300.0


def test_the_demo_ends_with_an_answer_of_the_model(
    installed: Cluster, node_cluster: Path, repository: Path
) -> None:
    arguments = (sys.executable, "-m", "slipstream_cli", "demo", "--cluster", "current")
    try:
        done = subprocess.run(
            (*arguments, "--root", str(repository)),
            cwd=repository,
            env={**os.environ, "KUBECONFIG": str(node_cluster), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        sample = ("inferencemodel", MODEL, "--ignore-not-found", "--timeout=60s")
        installed.run_kubectl("-n", NAMESPACE, "delete", *sample, timeout_s=70)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "def " in done.stdout, "a coding question was answered without code"
    told = re.search(r"(\d+) tokens, first after [\d.]+ s, then [\d.]+ tokens/s", done.stdout)
    assert told is not None, done.stdout
    assert int(told[1]) > 20
    assert install.GATEWAY_TARGET in done.stdout, "nothing is said about what to try next"
