"""`slipstream operator …`: start the operator."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream_api import failure

app = typer.Typer(no_args_is_help=True, help="Run the operator.")


@app.callback()
def _group() -> None:
    """Keeps `serve` a subcommand although it is the only one."""


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="The mounted configuration file.")] = Path(
        "/etc/slipstream/operator.json"
    ),
) -> None:
    """Serve until SIGTERM. Example: slipstream operator serve --config ./operator.json"""

    def run() -> int:
        import slipstream_operator

        return slipstream_operator.serve(config)

    raise typer.Exit(failure.guard(run))
