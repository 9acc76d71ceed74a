"""`slipstream local`: a real Kubernetes on this machine, without Docker."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream_local.layout import DEFAULT_NAME

app = typer.Typer(no_args_is_help=True, help="A real Kubernetes on this machine, without Docker.")
nodes_app = typer.Typer(no_args_is_help=True, help="Simulated GPU nodes (needs `up --kwok`).")
app.add_typer(nodes_app, name="nodes")

Name = Annotated[str, typer.Option("--name", help="Name of the local cluster.")]
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def _fail(error: Exception) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(1)


@app.command()
def up(
    name: Name = DEFAULT_NAME,
    control_plane_only: Annotated[
        bool, typer.Option("--control-plane-only", help="No node: API server and scheduler only.")
    ] = False,
    gpu_profile: Annotated[
        str | None,
        typer.Option(help="Simulated GPUs of the real node; `none` removes them. See `profiles`."),
    ] = None,
    kwok: Annotated[
        bool | None, typer.Option("--kwok/--no-kwok", help="Play simulated nodes with KWOK.")
    ] = None,
) -> None:
    """Start the cluster, or repair the one that is there. Example: slipstream local up"""
    from slipstream_local import cluster
    from slipstream_local.errors import LocalClusterError
    from slipstream_local.progress import Progress

    options = cluster.Options(node=not control_plane_only, kwok=kwok, gpu_profile=gpu_profile)
    try:
        layout = cluster.up(name, options, Progress())
    except (LocalClusterError, ValueError) as error:
        raise _fail(error) from error
    typer.echo(f"cluster {name} is ready: export KUBECONFIG={layout.kubeconfig}")


@app.command()
def down(name: Name = DEFAULT_NAME) -> None:
    """Stop the cluster and remove all that it left on this machine."""
    from slipstream_local import cluster
    from slipstream_local.errors import LocalClusterError
    from slipstream_local.progress import Progress

    try:
        was_there = cluster.down(name, Progress())
    except (LocalClusterError, ValueError) as error:
        raise _fail(error) from error
    typer.echo(f"cluster {name} is gone" if was_there else f"there is no cluster {name}")


@app.command()
def status(name: Name = DEFAULT_NAME) -> None:
    """Show every component; exit code 1 when one is not running."""
    from rich.console import Console
    from rich.table import Table

    from slipstream_local import cluster
    from slipstream_local.errors import LocalClusterError

    try:
        rows = cluster.status(name)
    except (LocalClusterError, ValueError) as error:
        raise _fail(error) from error
    table = Table("component", "pid", "state", "last log line")
    for row in rows:
        table.add_row(row.name, str(row.pid or "-"), row.state, row.last_log_line)
    Console().print(table)
    if any(row.state != "Running" for row in rows):
        typer.echo("`slipstream local up` starts what has ended", err=True)
        raise typer.Exit(1)


@app.command("load-image")
def load_image(
    archive: Annotated[Path, typer.Argument(help="An OCI or Docker image archive (tar).")],
    name: Name = DEFAULT_NAME,
) -> None:
    """Import an image archive into the node. Example: slipstream local load-image engine.tar"""
    from slipstream_local import cluster
    from slipstream_local.errors import LocalClusterError

    try:
        imported = cluster.load_image(name, archive)
    except (LocalClusterError, ValueError) as error:
        raise _fail(error) from error
    typer.echo("\n".join(imported))


@app.command()
def kubeconfig(
    name: Name = DEFAULT_NAME,
    raw: Annotated[bool, typer.Option("--raw", help="Print the content, not the path.")] = False,
) -> None:
    """Print where the administrator's kubeconfig is."""
    from slipstream_local import cluster
    from slipstream_local.errors import LocalClusterError

    try:
        path = cluster.require(name).layout.kubeconfig
    except (LocalClusterError, ValueError) as error:
        raise _fail(error) from error
    typer.echo(path.read_text() if raw else path)


@app.command()
def values(
    mount: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH: also mount this folder read-only; repeatable."),
    ] = None,
    sample: Annotated[
        bool,
        typer.Option("--sample/--no-sample", help="Mount the weights that crds/examples name."),
    ] = True,
) -> None:
    """Print Helm values that run the chart from this machine's files, without images."""
    from slipstream_cli import install
    from slipstream_local import values as local_values

    try:
        extra = local_values.parse_mounts(mount or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--mount") from error
    make = install.local_values if sample else local_values.values
    try:
        document = make(extra)
    except install.InstallError as error:
        raise _fail(install.InstallError(f"{error}, or say --no-sample")) from error
    typer.echo(local_values.to_yaml(document), nl=False)


@app.command(context_settings=PASS_THROUGH, add_help_option=False)
def kubectl(context: typer.Context, name: Name = DEFAULT_NAME) -> None:
    """Run kubectl on this cluster. Example: slipstream local kubectl -- get pods -A"""
    from slipstream_local import build

    _become(name, [str(build.path_of("kube")), "kubectl", *context.args])


@app.command(context_settings=PASS_THROUGH, add_help_option=False)
def helm(context: typer.Context, name: Name = DEFAULT_NAME) -> None:
    """Run helm on this cluster. Example: slipstream local helm -- list -A"""
    from slipstream_local import build
    from slipstream_local.errors import LocalClusterError
    from slipstream_local.progress import Progress

    try:
        program = build.ensure(["helm"], Progress())["helm"]
    except LocalClusterError as error:
        raise _fail(error) from error
    _become(name, [str(program), *context.args])


def _become(name: str, argv: list[str]) -> None:
    """Replace this process, so that signals, terminal and exit code are the program's own."""
    from slipstream_local import cluster
    from slipstream_local.errors import LocalClusterError

    try:
        path = cluster.require(name).layout.kubeconfig
    except (LocalClusterError, ValueError) as error:
        raise _fail(error) from error
    sys.stdout.flush()
    os.execve(argv[0], argv, {**os.environ, "KUBECONFIG": str(path)})  # noqa: S606


@app.command()
def profiles() -> None:
    """List the simulated GPU machines."""
    from rich.console import Console
    from rich.table import Table

    from slipstream_local import topology

    table = Table("profile", "GPUs", "roots", "NUMA nodes", "what it is")
    for profile in topology.PROFILES.values():
        counts = (profile.num_gpus, len(profile.roots), profile.num_numa_nodes)
        table.add_row(profile.name, *(str(count) for count in counts), profile.description)
    Console().print(table)


@nodes_app.command("create")
def create_nodes(
    profile: Annotated[str, typer.Option(help="Which machine; see `slipstream local profiles`.")],
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many nodes.")] = 1,
    numa: Annotated[
        bool, typer.Option("--numa/--no-numa", help="Publish the NUMA node of each GPU.")
    ] = True,
    name: Name = DEFAULT_NAME,
) -> None:
    """Create simulated GPU nodes. Example: slipstream local nodes create --profile desktop-pair"""
    from slipstream_local import cluster
    from slipstream_local.errors import LocalClusterError

    try:
        created = cluster.create_nodes(name, profile, count, numa=numa)
    except (LocalClusterError, ValueError) as error:
        raise _fail(error) from error
    typer.echo("\n".join(created))
