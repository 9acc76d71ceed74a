"""`slipstream engine …`: start the engine."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream_api import failure

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

    def run() -> int:
        import slipstream_engine

        return slipstream_engine.serve(config)

    raise typer.Exit(failure.guard(run))
