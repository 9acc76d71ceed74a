"""Make OCI image archives without a container engine; pure bytes, knows no cluster."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAUSE_IMAGE = "slipstream.dev/local/pause:latest"
THIN_IMAGE = "slipstream.dev/local/thin:latest"
NONROOT_ID = 65532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a layer: a folder, a file (`data`) or a symbolic link (`link`)."""

    path: str
    mode: int = 0o755
    data: bytes | None = None
    link: str | None = None
    owner: int = 0


def _add(archive: tarfile.TarFile, entry: Entry) -> None:
    member = tarfile.TarInfo(entry.path)
    member.mode, member.uid, member.gid = entry.mode, entry.owner, entry.owner
    if entry.link is not None:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
    elif entry.data is None:
        member.type = tarfile.DIRTYPE
    else:
        member.size = len(entry.data)
    archive.addfile(member, io.BytesIO(entry.data or b""))


def pack(entries: Sequence[Entry]) -> bytes:
    """A tar archive with fixed times, so that equal entries give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            _add(archive, entry)
    return buffer.getvalue()


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(blob).hexdigest()
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(blob)}


def archive(name: str, layer: Sequence[Entry], settings: Mapping[str, Any], machine: str) -> bytes:
    """An OCI layout archive with one image of one layer; `settings` is the image's `config`."""
    layer_blob = pack(layer)
    layer_digest = hashlib.sha256(layer_blob).hexdigest()
    config = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": dict(settings),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }
    config_blob = json.dumps(config).encode()
    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": _descriptor(f"{oci}.config.v1+json", config_blob),
        "layers": [_descriptor(f"{oci}.layer.v1.tar", layer_blob)],
    }
    manifest_blob = json.dumps(manifest).encode()
    reference = _descriptor(f"{oci}.manifest.v1+json", manifest_blob)
    reference["annotations"] = {"io.containerd.image.name": name}
    index = {"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": [reference]}
    blobs = [
        Entry(f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", 0o644, blob)
        for blob in (layer_blob, config_blob, manifest_blob)
    ]
    return pack(
        [
            Entry("oci-layout", 0o644, b'{"imageLayoutVersion":"1.0.0"}'),
            Entry("index.json", 0o644, json.dumps(index).encode()),
            *blobs,
        ]
    )


def pause_archive(program: bytes, machine: str) -> bytes:
    settings = {"Entrypoint": ["/pause"], "User": f"{NONROOT_ID}:{NONROOT_ID}"}
    return archive(PAUSE_IMAGE, [Entry("pause", 0o755, program)], settings, machine)


def host_links(root: Path = Path("/")) -> dict[str, str]:
    """The links that make /bin, /lib and so on part of /usr, as this machine has them."""
    names = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
    return {name: str((root / name).readlink()) for name in names if (root / name).is_symlink()}


def thin_archive(links: Mapping[str, str], machine: str) -> bytes:
    """Empty folders and user names; pods mount the machine's own programs over them."""
    nonroot = f"nonroot:x:{NONROOT_ID}:{NONROOT_ID}::/home/nonroot:/bin/sh"
    users = f"root:x:0:0:root:/root:/bin/sh\n{nonroot}\n"
    groups = f"root:x:0:\nnonroot:x:{NONROOT_ID}:\n"
    folders = ("dev", "etc", "home", "proc", "run", "sys", "usr", "var")
    unlinked = (name for name in ("bin", "lib", "lib64", "sbin") if name not in links)
    entries = [
        *(Entry(name) for name in (*folders, *unlinked)),
        *(Entry(name, 0o777, link=target) for name, target in links.items()),
        Entry("tmp", 0o1777),
        Entry("var/tmp", 0o1777),
        Entry("home/nonroot", 0o700, owner=NONROOT_ID),
        Entry("etc/passwd", 0o644, users.encode()),
        Entry("etc/group", 0o644, groups.encode()),
        Entry("etc/nsswitch.conf", 0o644, b"passwd: files\ngroup: files\nhosts: files dns\n"),
    ]
    settings = {
        "User": f"{NONROOT_ID}:{NONROOT_ID}",
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        "WorkingDir": "/home/nonroot",
    }
    return archive(THIN_IMAGE, entries, settings, machine)
