"""`slipstream plan`: which parallel layout a model would get on which GPUs, and why not another."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_WHICH = "Which GPUs"
_LOAD = "What it is to serve"
_ENGINE = "How the engine uses a GPU"


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


def plan(
    file: Annotated[
        Path | None,
        typer.Option(
            "-f",
            "--file",
            exists=True,
            dir_okay=False,
            help="An InferenceModel; its file:// checkpoint is read where this runs.",
        ),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A record of the checkpoint's facts instead of the checkpoint itself.",
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROFILE=COUNT",
            rich_help_panel=_WHICH,
            help="Nodes of a simulated machine; may be said more than once.",
        ),
    ] = None,
    from_cluster: Annotated[
        bool,
        typer.Option(
            "--from-cluster",
            rich_help_panel=_WHICH,
            help="The free GPUs of the cluster that the kubeconfig names, and its GPUClasses.",
        ),
    ] = False,
    gpu_class: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME",
            rich_help_panel=_WHICH,
            help="This class only. With --nodes: the card that is in the slots (default: the"
            " profile's own, as the samples in crds/examples/gpuclasses describe it).",
        ),
    ] = None,
    sequences: Annotated[
        int, typer.Option(min=1, rich_help_panel=_LOAD, help="At once, in each replica.")
    ] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=_LOAD)] = 4096,
    output_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=_LOAD)] = 512,
    max_context: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_LOAD,
            help="Longest prompt plus output (default: the model's maxContext, else all).",
        ),
    ] = None,
    ttft_ms: Annotated[
        float | None,
        typer.Option(min=0.001, rich_help_panel=_LOAD, help="Objective: time to first token."),
    ] = None,
    tpot_ms: Annotated[
        float | None,
        typer.Option(min=0.001, rich_help_panel=_LOAD, help="Objective: time per output token."),
    ] = None,
    memory_percent: Annotated[
        int, typer.Option(min=10, max=98, rich_help_panel=_ENGINE, help="Of a GPU's memory.")
    ] = 90,
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, rich_help_panel=_ENGINE, help="Of a prompt in one step (default: the engine's)."
        ),
    ] = None,
    output: Annotated[Output, typer.Option("-o", "--output")] = Output.TABLE,
    show_all: Annotated[
        bool, typer.Option("--all", help="Every number of stages, not only powers of two.")
    ] = False,
    root: Annotated[Path, typer.Option(help="The repository's root: the samples.")] = Path(),
) -> None:
    """Print every layout of a model on some GPUs, the chosen one, and why each other one lost.

    Nothing is applied and nothing is measured: times are predicted from the card's figures. Exit
    code 1: no layout will do.

    Example: slipstream plan -f model.yaml --nodes dual-socket-four-pairs=2 --tpot-ms 40

    Example: slipstream plan -f model.yaml --facts facts.yaml --from-cluster
    """
    from slipstream_api.config import EngineLimits
    from slipstream_cli import planinput, plantable
    from slipstream_cli.kubectl import CommandError
    from slipstream_operator.planner import choice
    from slipstream_operator.planner.choice import Objective
    from slipstream_operator.planner.footprint import Use
    from slipstream_operator.planner.layouts import Workload

    try:
        subject = planinput.read_subject(file, facts)
        place = planinput.read_place(nodes or [], gpu_class or [], root, is_cluster=from_cluster)
    except (planinput.InputError, CommandError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    workload = Workload(prompt_tokens, output_tokens, sequences, max_context or subject.max_context)
    use = Use(memory_percent, chunk_tokens or EngineLimits().max_batch_tokens)
    found = choice.plan(
        subject.facts, place.cards, place.boards, workload, Objective(ttft_ms, tpot_ms), use
    )
    notes = (*place.notes, *subject.notes, *found.notes)
    if output is Output.JSON:
        typer.echo(plantable.as_json(subject.facts, found, notes))
    else:
        plantable.show(subject.facts, found, notes, show_all=show_all)
    if found.chosen is None:
        raise typer.Exit(1)
