"""`slipstream`: one program; each command group stands in its own file.

Heavy imports stand inside the commands, so that every image can show every group's help.
"""

import typer

from slipstream_cli import bench, cache, crds, engine, gateway, local, operator
from slipstream_cli.demo import demo

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve open coding models to coding agents on Kubernetes.",
)
app.command()(demo)
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
