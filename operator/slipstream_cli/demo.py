"""`slipstream demo`: from nothing to a streamed answer, each step shown as it happens.

Every step can be repeated: what is there already is left as it is.
"""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from slipstream_cli import install
from slipstream_cli.kubectl import Cluster, CommandError

NAMESPACE = "default"
MODEL = "smollm2"
QUESTION = "Write a Python function that checks whether a string is a palindrome."
READY_LIMIT_S = 180
ANSWER_LIMIT_S = 120
MAX_TOKENS = 160


class Where(StrEnum):
    LOCAL = "local"
    KIND = "kind"
    CURRENT = "current"


def demo(
    cluster: Annotated[
        Where, typer.Option(help="local: made here; kind: by Docker; current: your kubeconfig.")
    ] = Where.LOCAL,
    root: Annotated[Path, typer.Option(help="The repository's root.")] = Path(),
    question: Annotated[str, typer.Option(help="What to ask the model.")] = QUESTION,
    install_only: Annotated[
        bool, typer.Option("--install-only", help="Stop before applying a model.")
    ] = False,
) -> None:
    """Cluster up, helm install, apply a model, ask it a question. Example: slipstream demo"""
    console = Console()
    begun = time.monotonic()
    try:
        with _step(console, f"cluster ({cluster.value})"):
            target, values = install.prepare(cluster.value, root)
        with _step(console, "helm install slipstream"):
            install.install(target, root / "charts/slipstream", values)
        if install_only:
            return
        example = root / "crds/examples/smollm2.yaml"
        with _step(console, f"kubectl apply -f {example}"):
            target.run_kubectl("-n", NAMESPACE, "apply", "-f", str(example))
        _wait_ready(console, target)
        with target.forward(install.NAMESPACE, install.GATEWAY_TARGET, 80) as port:
            _ask(console, f"http://127.0.0.1:{port}/v1", question)
    except (CommandError, install.InstallError) as error:
        console.print(f"[red]failed:[/red] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    console.print(f"\ndone in {time.monotonic() - begun:.0f} s")
    _next_steps(console, cluster)


class _step:  # noqa: N801  (reads as a statement)
    """One line a step: what, then how long it took."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._begun = console, title, time.monotonic()

    def __enter__(self) -> None:
        self._console.print(f"[bold]•[/bold] {self._title}", highlight=False)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            took_s = time.monotonic() - self._begun
            self._console.print(f"  [green]ok[/green] {took_s:.1f} s", highlight=False)


def _wait_ready(console: Console, target: Cluster) -> None:
    """Show the model's conditions until it is Ready at the generation that was applied."""
    console.print(f"[bold]•[/bold] waiting for inferencemodel/{MODEL}", highlight=False)
    deadline = time.monotonic() + READY_LIMIT_S
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            model = target.get("-n", NAMESPACE, "inferencemodel", MODEL)
            conditions = (model or {}).get("status", {}).get("conditions", [])
            live.update(_table(conditions))
            is_ready = model is not None and _is_ready(model)
            if is_ready or time.monotonic() > deadline:
                break
            time.sleep(0.5)
    if not console.is_terminal:
        console.print()  # Live ends its last frame without a line end where nothing can be redrawn
    if is_ready:
        return
    words = "; ".join(f"{c['type']}={c['status']} {c['reason']}" for c in conditions)
    raise CommandError(
        f"{MODEL} is not Ready after {READY_LIMIT_S} s ({words or 'no conditions yet'}).\n"
        f"Look: kubectl -n {NAMESPACE} describe inferencemodel {MODEL}"
    )


def _is_ready(model: dict[str, Any]) -> bool:
    generation = model["metadata"]["generation"]
    return any(
        c["type"] == "Ready" and c["status"] == "True" and c["observedGeneration"] == generation
        for c in model.get("status", {}).get("conditions", [])
    )


def _table(conditions: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("  condition", "status", "reason", "message"):
        table.add_column(heading, overflow="fold")
    for condition in conditions:
        table.add_row(
            "  " + condition["type"],
            condition["status"],
            condition["reason"],
            condition["message"],
        )
    return table


def _ask(console: Console, url: str, question: str) -> None:
    """Stream one answer with the official client; count what the engine says it generated."""
    import openai

    console.print(f"[bold]•[/bold] asking {MODEL}: {question}\n", highlight=False)
    client = openai.OpenAI(base_url=url, api_key="unused", timeout=ANSWER_LIMIT_S)
    begun = time.monotonic()
    first: float | None = None
    tokens = 0
    try:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
            if chunk.choices and chunk.choices[0].delta.content:
                first = first or time.monotonic()
                console.print(chunk.choices[0].delta.content, end="", markup=False, highlight=False)
    except openai.OpenAIError as error:
        raise CommandError(f"the gateway did not answer: {error}") from error
    ended = time.monotonic()
    if first is None or tokens == 0:
        raise CommandError("the model gave an empty answer")
    rate = (tokens - 1) / (ended - first) if tokens > 1 else 0.0
    console.print(
        f"\n\n{tokens} tokens, first after {first - begun:.2f} s, then {rate:.1f} tokens/s",
        highlight=False,
    )


def _next_steps(console: Console, cluster: Where) -> None:
    prefix = "build/venv/bin/slipstream local " if cluster is Where.LOCAL else ""
    separator = " --" if prefix else ""
    forward = f"-n {install.NAMESPACE} port-forward {install.GATEWAY_TARGET} 8080:80"
    lines = (
        f"{prefix}kubectl{separator} get inferencemodels",
        f"{prefix}kubectl{separator} scale inferencemodel {MODEL} --replicas=2",
        f"{prefix}kubectl{separator} {forward}",
        "curl -s http://127.0.0.1:8080/v1/models",
    )
    console.print("\nNext:", highlight=False)
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    if cluster is Where.LOCAL:
        console.print("  build/venv/bin/slipstream local down   # leaves nothing", highlight=False)
