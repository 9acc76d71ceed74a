"""`slipstream`: one program; each command group stands in its own file.

Heavy imports stand inside the commands, so that every image can show every group's help.
"""

from importlib import metadata
from typing import Annotated

import typer

from slipstream_cli import bench, cache, crds, engine, gateway, local, operator
from slipstream_cli.demo import demo
from slipstream_cli.plan import plan

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve open coding models to coding agents on Kubernetes.",
)


def _say_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"slipstream {metadata.version('slipstream')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command()(plan)
app.add_typer(local.app, name="local")
app.add_typer(crds.app, name="crds")
app.add_typer(operator.app, name="operator")
app.add_typer(gateway.app, name="gateway")
app.add_typer(engine.app, name="engine")
app.add_typer(cache.app, name="cache")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Entry point of the `slipstream` command."""
    app()


if __name__ == "__main__":
    main()
