"""Run helm on our chart: the one door of the chart tests to that program."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

RELEASE = "slipstream"
NAMESPACE = "slipstream-system"
# A program that was built without a stamp believes in an old Kubernetes.
KUBERNETES = "1.36.0"
LIMIT_S = 60
_NOTES_TEMPLATE = """
kind: ConfigMap
metadata: {name: notes}
data:
  notes: {{ tpl (.Files.Get "notes") . | toJson }}
"""


class HelmError(Exception):
    """helm refused: its message."""


@dataclass(frozen=True, slots=True)
class Helm:
    program: Path
    chart: Path

    def lint(self, *arguments: str) -> str:
        return self._run("lint", "--strict", str(self.chart), *arguments)

    def text(self, *arguments: str, release: str = RELEASE) -> str:
        """What helm would send to the API server, and a line that names each template."""
        options = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES)
        return self._run("template", release, str(self.chart), *options, *arguments)

    def documents(self, *arguments: str, release: str = RELEASE) -> list[Document]:
        rendered = yaml.safe_load_all(self.text(*arguments, release=release))
        return [document for document in rendered if document]

    def notes(self, folder: Path, *arguments: str) -> str:
        """What a person reads after the installation.

        helm prints it only where an API server answers, so a copy of the chart in `folder`
        renders it into a ConfigMap.
        """
        chart = folder / "chart"
        shutil.copytree(self.chart, chart)
        (chart / "templates/NOTES.txt").rename(chart / "notes")
        (chart / "templates/notes.yaml").write_text(_NOTES_TEMPLATE, encoding="utf-8")
        (document,) = Helm(self.program, chart).documents("-s", "templates/notes.yaml", *arguments)
        text: str = document["data"]["notes"]
        return text

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.program), *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise HelmError(done.stderr or done.stdout)
        return done.stdout


def select(documents: list[Document], kind: str, name: str | None = None) -> list[Document]:
    return [
        document
        for document in documents
        if document["kind"] == kind and name in (None, document["metadata"]["name"])
    ]


def one(documents: list[Document], kind: str, name: str) -> Document:
    (document,) = select(documents, kind, name)
    return document
