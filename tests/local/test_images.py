"""Images are OCI layouts whose digests are true and whose bytes do not depend on the clock."""

import hashlib
import io
import json
import tarfile
from typing import Any

import pytest

from slipstream_local import images

LINKS = {"bin": "usr/bin", "lib": "usr/lib"}


def members(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {member.name: member for member in opened.getmembers()}


def content(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = opened.extractfile(name)
        assert found is not None
        return found.read()


def blob(archive: bytes, descriptor: dict[str, Any]) -> bytes:
    data = content(archive, "blobs/" + descriptor["digest"].replace(":", "/"))
    assert hashlib.sha256(data).hexdigest() == descriptor["digest"].partition(":")[2]
    assert len(data) == descriptor["size"]
    return data


def opened(archive: bytes) -> tuple[str, dict[str, Any], bytes]:
    """(name, configuration, layer), each digest checked on the way."""
    (reference,) = json.loads(content(archive, "index.json"))["manifests"]
    manifest = json.loads(blob(archive, reference))
    config = json.loads(blob(archive, manifest["config"]))
    layer = blob(archive, manifest["layers"][0])
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
    return reference["annotations"]["io.containerd.image.name"], config, layer


def test_the_thin_image_holds_folders_links_and_a_user_who_is_not_root() -> None:
    name, config, layer = opened(images.thin_archive(LINKS, "x86_64"))
    assert name == images.THIN_IMAGE
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert config["config"]["User"] == "65532:65532"
    entries = members(layer)
    assert entries["bin"].linkname == "usr/bin"
    assert entries["usr"].isdir()
    assert entries["lib64"].isdir(), "a machine without that link mounts its folder"
    assert entries["tmp"].mode == 0o1777
    assert b"nonroot:x:65532:65532:" in content(layer, "etc/passwd")


def test_the_pause_image_starts_the_program_it_was_given() -> None:
    name, config, layer = opened(images.pause_archive(b"\x7fELF", "aarch64"))
    assert name == images.PAUSE_IMAGE
    assert config["architecture"] == "arm64"
    assert config["config"]["Entrypoint"] == ["/pause"]
    assert content(layer, "pause") == b"\x7fELF"
    assert members(layer)["pause"].mode == 0o755


def test_equal_content_gives_equal_bytes() -> None:
    assert images.thin_archive(LINKS, "x86_64") == images.thin_archive(LINKS, "x86_64")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_the_architecture_is_never_empty(machine: str) -> None:
    assert opened(images.thin_archive({}, machine))[1]["architecture"]
