"""The command line's one door to a cluster: kubectl and helm as programs, with deadlines.

Knows no Slipstream object; whichever cluster the kubeconfig names is the one that is meant.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CommandError(Exception):
    """A program said no: its own words."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the cluster is and which programs talk to it."""

    kubeconfig: Path
    kubectl: tuple[str, ...]
    helm: tuple[str, ...]

    def run_kubectl(
        self, *arguments: str, document: str | None = None, timeout_s: float = 60
    ) -> str:
        """Run kubectl; `document` goes to its standard input. Raises CommandError."""
        return self._run((*self.kubectl, *arguments), document, timeout_s)

    def run_helm(self, *arguments: str, timeout_s: float = 300) -> str:
        """Run helm. Raises CommandError."""
        return self._run((*self.helm, *arguments), None, timeout_s)

    def get(self, *arguments: str) -> dict[str, Any] | None:
        """One object or one list as JSON; None when it does not exist."""
        text = self.run_kubectl("get", *arguments, "-o", "json", "--ignore-not-found")
        if not text.strip():
            return None
        document: dict[str, Any] = json.loads(text)
        return document

    @contextmanager
    def forward(self, namespace: str, target: str, port: int) -> Iterator[int]:
        """A local port that leads to `target` (as svc/NAME or pod/NAME) for as long as needed."""
        process = subprocess.Popen(
            (*self.kubectl, "-n", namespace, "port-forward", target, f":{port}"),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield _forwarded_port(process)
        finally:
            process.terminate()
            process.wait(timeout=10)
            if process.stdout is not None:
                process.stdout.close()

    def _run(self, command: tuple[str, ...], document: str | None, timeout_s: float) -> str:
        try:
            result = subprocess.run(
                command,
                input=document,
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"no answer in {timeout_s:.0f} s: {' '.join(command)}") from error
        if result.returncode != 0:
            words = (result.stderr or result.stdout).strip()
            raise CommandError(f"{' '.join(command)}\n{words}")
        return result.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}


def _forwarded_port(process: subprocess.Popen[str]) -> int:
    """kubectl's first line says which port it took; it fails by ending, which ends the read."""
    if process.stdout is None:
        raise CommandError("port-forward has no output")
    line = process.stdout.readline()
    match = re.search(r"127\.0\.0\.1:(\d+) ->", line)
    if match is None:
        raise CommandError(f"port-forward failed: {line}{process.stdout.read()}".strip())
    return int(match.group(1))
