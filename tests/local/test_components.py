"""Command lines and documents of every component, as a function of the layout."""

import json
import random
import socket
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream_local import components, documents, layout, network, ports, provision
from slipstream_local.certificates import Pair
from slipstream_local.layout import Layout, Ports

GOLDEN = Path(__file__).parent / "golden"
PORTS = Ports(**{field.name: 20001 + index for index, field in enumerate(fields(Ports))})
CONTROL_PLANE = Layout("test", Path("/state/test"), PORTS, node=False, kwok=True)
NODE = Layout("test", Path("/state/test"), PORTS, node=True, gpu_profile="desktop-pair")
PROGRAMS = {name: Path("/programs") / name for name in ("kube", "kwok", "containerd", "coredns")}


@pytest.mark.parametrize("kind", ["control-plane", "node"])
def test_the_command_lines_are_the_ones_written_down(
    kind: str, golden: Callable[[Path, str], None]
) -> None:
    wanted = components.wanted(NODE if kind == "node" else CONTROL_PLANE, PROGRAMS)
    text = "\n".join(
        f"# {component.name}, phase {component.phase}\n" + "\n".join(component.argv) + "\n"
        for component in wanted
    )
    golden(GOLDEN / f"commands-{kind}.txt", text)


def test_the_documents_are_the_ones_written_down(golden: Callable[[Path, str], None]) -> None:
    made = {
        "kubelet": documents.kubelet(NODE),
        "proxy": documents.proxy(NODE),
        "scheduler": documents.scheduler(NODE),
        "cni": documents.cni(NODE),
        "audit": documents.audit_policy(),
    }
    golden(GOLDEN / "documents.yaml", yaml.safe_dump(made, sort_keys=True))
    text = documents.containerd(NODE, Path("/usr/sbin/runc"), Path("/usr/lib/cni"))
    golden(GOLDEN / "containerd.toml", text)
    golden(GOLDEN / "Corefile", documents.corefile(NODE, has_upstream=True))


def test_the_containerd_configuration_is_toml_and_holds_what_a_small_machine_needs() -> None:
    text = documents.containerd(NODE, Path("/usr/sbin/runc"), Path("/usr/lib/cni"))
    plugins: dict[str, Any] = tomllib.loads(text)["plugins"]
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cdi_spec_dirs"] == [str(NODE.cdi)]
    runc = runtime["containerd"]["runtimes"]["runc"]
    # A shim named by its path is not found again when containerd restarts.
    assert "runtime_path" not in runc
    assert runc["options"]["SystemdCgroup"] is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nameserver 1.1.1.1\n", True),
        ("search a\n nameserver\t::1\n", True),
        ("# nameserver 1.1.1.1\n", False),
        ("", False),
        (None, False),
    ],
    ids=["one", "indented", "comment", "empty", "no file"],
)
def test_dns_is_forwarded_only_where_there_is_a_server(
    tmp_path: Path, text: str | None, expected: bool
) -> None:
    path = tmp_path / "resolv.conf"
    if text is not None:
        path.write_text(text)
    assert provision.has_name_server(path) is expected
    assert ("forward ." in documents.corefile(NODE, has_upstream=expected)) is expected


def test_every_component_has_its_own_ports() -> None:
    for made in (CONTROL_PLANE, NODE):
        used = [
            port
            for component in components.wanted(made, PROGRAMS)
            for argument in component.argv
            for port in vars_of_ports()
            if argument.endswith(f"-port={port}")
        ]
        assert len(used) == len(set(used))


def vars_of_ports() -> list[int]:
    return [getattr(PORTS, field.name) for field in fields(Ports)]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (replace(CONTROL_PLANE, kwok=False), {"kube"}),
        (CONTROL_PLANE, {"kube", "kwok"}),
        (NODE, {"kube", "pause", "containerd", "containerd-shim-runc-v2", "ctr", "coredns"}),
    ],
    ids=["control-plane", "control-plane-with-kwok", "node"],
)
def test_only_the_programs_that_are_needed_are_built(made: Layout, expected: set[str]) -> None:
    assert set(components.wanted_programs(made)) == expected


def test_without_a_profile_there_is_no_driver_and_with_one_it_follows_the_kubelet() -> None:
    without = components.wanted(replace(NODE, gpu_profile=None), PROGRAMS)
    assert "dra-driver" not in {component.name for component in without}
    driver = components.wanted(NODE, PROGRAMS)[-1]
    assert driver.name == "dra-driver"
    assert driver.restart_with == ("kubelet",)
    other = components.wanted(replace(NODE, gpu_profile="dual-socket-direct"), PROGRAMS)[-1]
    assert other.argv != driver.argv, "another profile must restart the driver"


def test_a_layout_survives_its_state_file() -> None:
    for made in (CONTROL_PLANE, NODE):
        stored = json.loads(json.dumps(layout.to_json(made)))
        assert layout.from_json(stored) == made


@pytest.mark.parametrize("name", ["", "Upper", "a" * 21, "-a", "a-", "../up", "a/b", "a b"])
def test_a_name_that_cannot_be_a_folder_and_a_network_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cluster name"):
        layout.root_of(name, {"HOME": "/home/someone"})


def test_the_state_folder_follows_xdg() -> None:
    assert layout.root_of("a", {"XDG_STATE_HOME": "/x"}) == Path("/x/slipstream/a")
    assert layout.root_of("a", {"HOME": "/h"}) == Path("/h/.local/state/slipstream/a")


def test_a_folder_too_long_for_sockets_is_refused_before_anything_starts() -> None:
    layout.check_socket_paths(Path("/home/someone/.local/state/slipstream/slipstream"))
    with pytest.raises(ValueError, match="XDG_STATE_HOME"):
        layout.check_socket_paths(Path("/" + "long/" * 20))


def test_shim_sockets_fit_for_the_longest_name() -> None:
    socket_name = "s/" + "0" * 64
    made = replace(NODE, name="a" * 20)
    assert len(str(made.containerd_state / socket_name)) <= layout.SOCKET_PATH_LIMIT


def test_chosen_ports_are_free_and_nobody_elses() -> None:
    taken = set(range(20000, 25000))
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        assert not ports.is_free(busy.getsockname()[1])
    chosen = ports.choose(taken, random.Random(7))
    numbers = [getattr(chosen, field.name) for field in fields(Ports)]
    assert len(set(numbers)) == len(numbers)
    assert not taken & set(numbers)


@pytest.mark.parametrize(
    ("routes", "found"),
    [
        ([{"dst": "default", "dev": "eth0"}], None),
        ([{"dst": "10.244.0.0/16", "dev": "slipstream0"}], None),
        ([{"dst": "192.168.0.0/16", "dev": "eth0"}], None),
        ([{"dst": "10.244.3.0/24", "dev": "flannel.1"}], "10.244.3.0/24 dev flannel.1"),
        ([{"dst": "10.0.0.0/8", "dev": "vpn0"}], "10.0.0.0/8 dev vpn0"),
        ([{"dst": "10.244.7.7", "dev": "cali1"}], "10.244.7.7 dev cali1"),
    ],
    ids=["default", "our own", "elsewhere", "inside", "around", "one address"],
)
def test_a_route_into_the_pod_network_is_noticed(
    routes: list[dict[str, object]], found: str | None
) -> None:
    assert network.overlapping_route(list(routes)) == found


def test_a_kubeconfig_holds_all_it_needs() -> None:
    made = documents.kubeconfig("https://127.0.0.1:1", b"ca", "me", Pair(b"cert", b"key"))
    assert made["contexts"][0]["context"] == {"cluster": "local", "user": "me"}
    assert made["users"][0]["user"]["client-key-data"] == "a2V5"


def test_certificates_are_made_once_and_completely(tmp_path: Path) -> None:
    made = replace(CONTROL_PLANE, root=tmp_path / "c")
    provision.ensure_certificates(made)
    first = {path.name: path.read_bytes() for path in made.pki.iterdir()}
    assert (made.pki / "ca.key").stat().st_mode & 0o077 == 0
    provision.ensure_certificates(made)
    assert {path.name: path.read_bytes() for path in made.pki.iterdir()} == first
    assert len(first) == 2 * (2 + len(provision.CLIENTS) + 3)
