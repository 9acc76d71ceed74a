"""Write the go.mod of every tool module from versions.toml; knows no build flags."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

GO_DIR = Path(__file__).parent / "go"
MODULE_PREFIX = "slipstream.dev/local/"


def staging_modules(upstream_go_mod: str) -> list[str]:
    """The modules that Kubernetes keeps in its own tree and requires at the empty version."""
    return sorted(set(re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0$", upstream_go_mod, re.MULTILINE)))


def staging_version(kubernetes_version: str) -> str:
    """v1.36.3 is published together with v0.36.3 of each staging module."""
    return re.sub(r"^v1\.", "v0.", kubernetes_version)


def required_version(upstream_go_mod: str, module: str) -> str:
    found = re.search(rf"^\s+{re.escape(module)} (v\S+)", upstream_go_mod, re.MULTILINE)
    if found is None:
        raise ValueError(f"{module} is not required by the upstream go.mod")
    return found.group(1)


def render(name: str, module: dict[str, Any], go_version: str, upstream_go_mod: str) -> str:
    lines = [f"module {MODULE_PREFIX}{name}", "", f"go {go_version}"]
    godebug = re.search(r"^godebug .*$", upstream_go_mod, re.MULTILINE)
    if godebug is not None:  # only the main module's setting counts
        lines += ["", godebug.group(0)]
    tools: list[str] = module.get("tools", [])
    if tools:
        lines += ["", "tool (", *(f"\t{tool}" for tool in tools), ")"]
    if "main" in module:
        lines += ["", "require (", f"\t{module['main']} {module['version']}"]
        if "etcd_server" in module:
            client_version = required_version(upstream_go_mod, module["etcd_client"])
            lines.append(f"\t{module['etcd_server']} {client_version}")
        lines.append(")")
        version = staging_version(module["version"])
        staging = staging_modules(upstream_go_mod)
        if staging:
            lines += ["", "replace (", *(f"\t{s} => {s} {version}" for s in staging), ")"]
    return "\n".join(lines) + "\n"


def upstream_go_mod(module: dict[str, Any]) -> str:
    if "main" not in module:
        return ""
    query = f"{module['main']}@{module['version']}"
    answer = subprocess.run(
        ["go", "mod", "download", "-json", query], check=True, capture_output=True, text=True
    )
    return Path(json.loads(answer.stdout)["GoMod"]).read_text()


def main() -> int:
    versions = tomllib.loads((GO_DIR / "versions.toml").read_text())
    for name, module in versions["modules"].items():
        print(f"{name}: go.mod and go.sum", flush=True)
        upstream = upstream_go_mod(module)
        directory = GO_DIR / name
        (directory / "go.mod").write_text(render(name, module, versions["go"], upstream))
        subprocess.run(["go", "mod", "tidy"], check=True, cwd=directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
