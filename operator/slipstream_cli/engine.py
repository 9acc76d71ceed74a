"""`slipstream engine …`: start the engine."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Run the engine.")


@app.callback()
def _group() -> None:
    """Keeps `serve` a subcommand although it is the only one."""


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="The mounted configuration file.")] = Path(
        "/etc/slipstream/engine.json"
    ),
) -> None:
    """Serve until SIGTERM. Example: slipstream engine serve --config ./engine.json"""
    import slipstream_engine

    raise typer.Exit(slipstream_engine.serve(config))
