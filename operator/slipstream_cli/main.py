"""`slipstream`: one program; each command group stands in its own file and loads its parts late."""

import importlib

import typer

from slipstream_cli import crds

# Their heavy imports stand inside the commands, so every image can list every group.
_GROUPS = {
    "local": "slipstream_cli.local",
    "operator": "slipstream_cli.operator",
    "gateway": "slipstream_cli.gateway",
    "engine": "slipstream_cli.engine",
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve open coding models to coding agents on Kubernetes.",
)
app.add_typer(crds.app, name="crds")
for _name, _module in _GROUPS.items():
    app.add_typer(importlib.import_module(_module).app, name=_name)


def main() -> None:
    """Entry point of the `slipstream` command."""
    app()
