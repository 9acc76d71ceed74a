"""`slipstream crds …`: the CustomResourceDefinitions, written from the models."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Generate the CustomResourceDefinitions.")


@app.command()
def generate(
    root: Annotated[Path, typer.Option(help="The repository's root.")] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when a file is not current.")
    ] = False,
) -> None:
    """Write crds/ and the chart's copy. Example: slipstream crds generate --check"""
    from slipstream_api import crds

    chart = root / "charts/slipstream/Chart.yaml"
    if not chart.is_file():
        typer.echo(
            f"{root.resolve()} is not the repository's root: there is no {chart.resolve()}."
            " The files are crds/*.yaml and charts/slipstream/templates/crds/*.yaml below it;"
            " run this there, or say --root",
            err=True,
        )
        raise typer.Exit(1)
    files: dict[Path, str] = {}
    for name, text in crds.generate().items():
        files[root / "crds" / name] = text
        files[root / "charts/slipstream/templates/crds" / name] = crds.chart_template(text)
    stale = [path for path, text in files.items() if _read(path) != text]
    for path in stale:
        typer.echo(f"{'stale' if check else 'wrote'} {path}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
    if check and stale:
        typer.echo("run `slipstream crds generate` and commit the result", err=True)
        raise typer.Exit(1)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
