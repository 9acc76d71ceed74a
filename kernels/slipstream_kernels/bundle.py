"""A bundle of kernels: a folder with `manifest.json` and sources, known by its digest.

A bundle is executable code: who may publish one is decided before its digest reaches this module.
"""

import hashlib
import importlib.abc
import importlib.util
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream_kernels.definitions import DEFINITIONS
from slipstream_kernels.verify import VerificationError, verify

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class BundleError(Exception):
    """Why a bundle is not used; the message names the folder or the operation."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Entry(_Strict):
    """One operation: a function in a file, and the shapes and types that it is made for."""

    file: str
    function: str
    shapes: list[dict[str, Annotated[int, Field(ge=1, le=1_048_576)]]] = Field(min_length=1)
    dtypes: list[Literal["float32", "bfloat16", "float16"]] = Field(min_length=1)


class Manifest(_Strict):
    """`manifest.json`."""

    schemaVersion: Literal[1]  # noqa: N815  (the document's own spelling)
    name: str = Field(min_length=1, max_length=128)
    operations: dict[str, Entry] = Field(min_length=1)


def read(folder: Path) -> dict[str, bytes]:
    """Every file by its path in the folder. Raises BundleError: not a folder, or a special file."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a folder")
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise BundleError(f"{path} is not a plain file")
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over every file's path and bytes, each with its length before it."""
    sha = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            sha.update(struct.pack(">Q", len(part)) + part)
    return sha.hexdigest()


def load(
    folder: Path, sha256: str, known: Sequence[str], device: torch.device
) -> dict[str, Callable[..., Any]]:
    """The bundle's operations, every one verified on every shape of the manifest.

    Raises BundleError: nothing of a bundle is used when any part of it is wrong.
    """
    files = read(folder)
    found = digest(files)
    if found != sha256:
        raise BundleError(f"{folder} has the digest {found}, expected {sha256}")
    manifest = _manifest(files, folder)
    unknown = sorted(set(manifest.operations) - set(known))
    if unknown:
        raise BundleError(f"{folder}: no operation is called {', '.join(unknown)}")
    implementations = {}
    for operation, entry in manifest.operations.items():
        function = _function(files, operation, entry, f"{manifest.name}@{sha256[:12]}")
        _check(operation, entry, function, device)
        implementations[operation] = function
    return implementations


def _manifest(files: Mapping[str, bytes], folder: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(files["manifest.json"])
    except KeyError as error:
        raise BundleError(f"{folder} has no manifest.json") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BundleError(f"{folder}/manifest.json: {field}: {first['msg']}") from error


class _Loader(importlib.abc.SourceLoader):
    """Runs the very bytes whose digest was checked: no second look at the disk, no cached code."""

    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        self._content = content

    def get_filename(self, fullname: str) -> str:
        return self._name

    def get_data(self, path: str | bytes) -> bytes:
        if path != self._name:
            raise OSError(path)
        return self._content


def _function(
    files: Mapping[str, bytes], operation: str, entry: Entry, source: str
) -> Callable[..., Any]:
    if entry.file not in files:
        raise BundleError(f"{operation}: the bundle has no file {entry.file!r}")
    name = f"slipstream_bundle_{re.sub('[^0-9A-Za-z]', '_', f'{source}_{entry.file}')}"
    spec = importlib.util.spec_from_loader(name, _Loader(entry.file, files[entry.file]))
    if spec is None or spec.loader is None:
        raise BundleError(f"{operation}: {entry.file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # Foreign code: whatever it raises is a reason to refuse it.
        raise BundleError(f"{operation}: {entry.file}: {type(error).__name__}: {error}") from error
    function = getattr(module, entry.function, None)
    if not callable(function):
        raise BundleError(f"{operation}: {entry.file} has no function {entry.function}")

    def sourced(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    sourced.__slipstream_source__ = source  # type: ignore[attr-defined]
    return sourced


def _check(
    operation: str, entry: Entry, function: Callable[..., Any], device: torch.device
) -> None:
    dimensions = DEFINITIONS[operation].dimensions
    for shape in entry.shapes:
        if set(shape) != set(dimensions):
            raise BundleError(
                f"{operation}: a shape has {', '.join(sorted(shape))}, expected"
                f" {', '.join(dimensions)}"
            )
        for dtype in entry.dtypes:
            try:
                verify(operation, function, shape, _DTYPES[dtype], device)
            except VerificationError as error:
                raise BundleError(str(error)) from error
