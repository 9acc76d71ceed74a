"""The node's bridge, its firewall tables and the kernel settings that its programs change."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slipstream_local import prerequisites
from slipstream_local.errors import ComponentError, PrerequisiteError
from slipstream_local.layout import BRIDGE, GATEWAY_IP, GATEWAY_PREFIX_LEN, POD_SUBNET

LIMIT_S = 20
PROXY_TABLES = (("ip", "kube-proxy"), ("ip6", "kube-proxy"))
OUTGOING_TABLE = ("ip", BRIDGE)
# Pods reach the outside under the machine's own address. Replaced as a whole: repeatable.
OUTGOING_RULES = f"""
table ip {BRIDGE}
delete table ip {BRIDGE}
table ip {BRIDGE} {{
  chain outgoing {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {POD_SUBNET} ip daddr != {POD_SUBNET} oifname != "{BRIDGE}" masquerade
  }}
}}
"""
# What kubelet, kube-proxy and the bridge plugin set on a machine; `down` puts the old values back.
SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/bridge/bridge-nf-call-iptables",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def _run(
    program: str, *arguments: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    argv = [prerequisites.which(program) or program, *arguments]
    return subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def _must(program: str, *arguments: str, stdin: str | None = None) -> str:
    done = _run(program, *arguments, stdin=stdin)
    if done.returncode != 0:
        raise ComponentError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def has_bridge() -> bool:
    return _run("ip", "link", "show", "dev", BRIDGE).returncode == 0


def overlapping_route(routes: list[Mapping[str, object]]) -> str | None:
    """A route of another device into our pod network, as the text to show."""
    ours = ipaddress.ip_network(POD_SUBNET)
    for route in routes:
        destination, device = str(route.get("dst", "")), str(route.get("dev", ""))
        if destination == "default" or device == BRIDGE:
            continue
        try:
            network = ipaddress.ip_network(destination)
        except ValueError:
            continue
        if network.version == ours.version and network.overlaps(ours):
            return f"{destination} dev {device}"
    return None


def check_free() -> None:
    """A node cannot share the machine with another Kubernetes node."""
    route = overlapping_route(json.loads(_must("ip", "-json", "route", "show") or "[]"))
    if route is not None:
        raise PrerequisiteError(
            f"this machine already has a route into {POD_SUBNET} ({route}), which the local "
            "cluster uses for pods; remove it or use --control-plane-only."
        )
    tables = _must("nft", "list", "tables")
    if any(f"table {family} {name}" in tables.splitlines() for family, name in PROXY_TABLES):
        raise PrerequisiteError(
            "another kube-proxy works on this machine (nft table kube-proxy exists); "
            "run `slipstream local down` for its cluster, or use --control-plane-only."
        )


def _forward_rules() -> list[tuple[str, ...]]:
    return [("FORWARD", option, BRIDGE, "-j", "ACCEPT") for option in ("-i", "-o")]


def _ensure_forwarding() -> None:
    """Docker drops what others forward; the machine's own default lets everything pass."""
    if prerequisites.which("iptables") is None:
        return
    if "-P FORWARD DROP" not in _run("iptables", "-S", "FORWARD").stdout:
        return
    for rule in _forward_rules():
        if _run("iptables", "-C", *rule).returncode != 0:
            _must("iptables", "-I", *rule)


def remove_forwarding() -> None:
    if prerequisites.which("iptables") is None or not _has_iptables_rules():
        return
    for rule in _forward_rules():
        _run("iptables", "-D", *rule)


def _has_iptables_rules() -> bool:
    """Asked first, because even a vain `iptables -D` makes empty tables."""
    return BRIDGE in _run("iptables-save", "-t", "filter").stdout


def ensure_bridge() -> None:
    if not has_bridge():
        _must("ip", "link", "add", BRIDGE, "type", "bridge")
    address = f"{GATEWAY_IP}/{GATEWAY_PREFIX_LEN}"
    if GATEWAY_IP not in _must("ip", "-4", "addr", "show", "dev", BRIDGE):
        _must("ip", "addr", "add", address, "dev", BRIDGE)
    _must("ip", "link", "set", BRIDGE, "up")
    # Answers between pods of one bridge must pass the service translation on their way back.
    bridge_filter = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not bridge_filter.exists():
        _run("modprobe", "br_netfilter")
    if bridge_filter.exists():
        bridge_filter.write_text("1\n")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    _ensure_forwarding()
    _must("nft", "-f", "-", stdin=OUTGOING_RULES)


def remove_bridge() -> None:
    if not has_bridge():
        return
    for port in json.loads(_must("ip", "-json", "link", "show", "master", BRIDGE) or "[]"):
        _run("ip", "link", "del", "dev", port["ifname"])
    _must("ip", "link", "del", BRIDGE)


def remove_nft_tables() -> None:
    if prerequisites.which("nft") is None:
        return
    for family, name in (*PROXY_TABLES, OUTGOING_TABLE):
        _run("nft", "delete", "table", family, name)


def read_sysctls() -> dict[str, str]:
    paths = {name: Path("/proc/sys") / name for name in SYSCTLS}
    return {name: path.read_text().strip() for name, path in paths.items() if path.exists()}


def restore_sysctls(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        path = Path("/proc/sys") / name
        if name in SYSCTLS and path.exists() and path.read_text().strip() != value:
            path.write_text(value + "\n")
