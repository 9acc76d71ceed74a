"""Small decisions: what `up` makes of its options, what a pod mounts, what kubectl said."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from slipstream_cli.main import app
from slipstream_local import cluster, kubectl, values
from slipstream_local.cluster import Options
from slipstream_local.errors import LocalClusterError
from slipstream_local.layout import Layout


@pytest.mark.parametrize(
    ("before", "options", "expected"),
    [
        (None, Options(), {"node": True, "kwok": False, "gpu_profile": None}),
        (None, Options(node=False), {"node": False, "kwok": False, "gpu_profile": None}),
        (None, Options(kwok=True), {"kwok": True}),
        ({"kwok": True}, Options(), {"kwok": True}),
        ({"kwok": True}, Options(kwok=False), {"kwok": False}),
        ({"node": False}, Options(), {"node": True}),
        ({"gpu_profile": "desktop-pair"}, Options(), {"gpu_profile": "desktop-pair"}),
        ({"gpu_profile": "desktop-pair"}, Options(gpu_profile="none"), {"gpu_profile": None}),
        (
            {"gpu_profile": "desktop-pair"},
            Options(gpu_profile="dual-socket-direct"),
            {"gpu_profile": "dual-socket-direct"},
        ),
    ],
    ids=[
        "new",
        "new without node",
        "new with kwok",
        "kwok stays",
        "kwok goes",
        "a node is added",
        "gpus stay",
        "gpus go",
        "other gpus",
    ],
)
def test_up_changes_what_was_asked_for_and_nothing_else(
    some_layout: Layout,
    before: dict[str, object] | None,
    options: Options,
    expected: dict[str, object],
) -> None:
    base = replace(some_layout, node=True)
    there = None if before is None else replace(base, **before)  # type: ignore[arg-type]
    fresh = replace(base, node=options.node)
    made = cluster.resolve(there, fresh, options)
    assert {name: getattr(made, name) for name in expected} == expected
    assert made.ports == base.ports


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(node=False), "take it down"),
        (Options(gpu_profile="mainframe"), "unknown GPU profile"),
    ],
    ids=["losing the node", "unknown GPUs"],
)
def test_up_refuses_what_it_cannot_do(some_layout: Layout, options: Options, words: str) -> None:
    there = replace(some_layout, node=True)
    with pytest.raises((LocalClusterError, ValueError), match=words):
        cluster.resolve(there, there, options)


def test_gpus_of_the_real_node_need_a_node(some_layout: Layout) -> None:
    with pytest.raises(LocalClusterError, match="nodes create"):
        cluster.resolve(None, some_layout, Options(node=False, gpu_profile="desktop-pair"))


def test_a_folder_inside_another_is_not_mounted_twice() -> None:
    paths = [Path("/usr"), Path("/usr/lib"), Path("/opt/venv"), Path("/usr"), Path("/opt/v")]
    assert values.without_nested(paths) == [Path("/usr"), Path("/opt/venv"), Path("/opt/v")]


def test_links_into_usr_are_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "lib").symlink_to("usr")
    (tmp_path / "lib64").mkdir()
    assert values.system_folders(tmp_path) == [tmp_path / "usr", tmp_path / "lib64"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models", "NAME=PATH"),
        ("Models=/usr", "lower-case"),
        ("=/usr", "lower-case"),
        ("m=relative", "absolute"),
        ("m=/does/not/exist", "exists"),
        ("host-0=/usr", "taken"),
        ("sample-model=/usr", "taken"),
    ],
)
def test_a_mount_that_cannot_work_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        values.parse_mounts([text])


def test_extra_folders_are_mounted_under_their_own_path_and_read_only(tmp_path: Path) -> None:
    made = values.values(values.parse_mounts([f"models={tmp_path}"]))
    for service in ("operator", "gateway"):
        assert {"name": "models", "hostPath": {"path": str(tmp_path)}} in made[service][
            "extraVolumes"
        ]
    spec = made["engine"]["podDefaults"]["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "engine"
    assert {"name": "models", "mountPath": str(tmp_path), "readOnly": True} in container[
        "volumeMounts"
    ]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    named = {volume["name"] for volume in spec["volumes"]}
    assert named == {mount["name"] for mount in container["volumeMounts"]}


def sample_mounts(*words: str) -> list[str]:
    """Where `slipstream local values` mounts the weights of the examples."""
    result = CliRunner().invoke(app, ["local", "values", *words])
    assert result.exit_code == 0, result.output
    spec = yaml.safe_load(result.stdout)["engine"]["podDefaults"]["spec"]
    (container,) = spec["containers"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    return [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "sample-model"]


def test_values_mount_what_the_examples_name(repository: Path) -> None:
    example = (repository / "crds/examples/smollm2.yaml").read_text(encoding="utf-8")
    source = yaml.safe_load(example)["spec"]["model"]["source"]
    (folder,) = sample_mounts()
    assert source.startswith(f"file://{folder}/")
    assert sample_mounts("--no-sample") == []


def test_the_values_file_is_plain_yaml_that_reads_back_as_it_was() -> None:
    made = values.values({})
    text = values.to_yaml(made)
    assert "&id" not in text
    assert yaml.safe_load(text) == made


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", []),
        ('{"kind": "A"}\n', ["A"]),
        ('{"kind": "A"}\n{\n "kind": "B"\n}\n', ["A", "B"]),
    ],
    ids=["nothing", "one", "two"],
)
def test_several_objects_printed_in_a_row_are_read(text: str, kinds: list[str]) -> None:
    assert [document["kind"] for document in kubectl.parse_stream(text)] == kinds
