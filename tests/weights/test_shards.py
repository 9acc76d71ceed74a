"""Folders of several safetensors files: the index and the files must say the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from slipstream_weights import source
from slipstream_weights.errors import CheckpointError, ModelInvalid
from tests.depth import cases
from tests.engine import tiny

_INDEX = "model.safetensors.index.json"
_NAMES = ("a.safetensors", "b.safetensors", "c.safetensors")


def _split(folder: Path) -> Path:
    """The tensors of a tiny model in three files."""
    tiny.write(folder)
    single = folder / "model.safetensors"
    tensors = load_file(str(single))
    single.unlink()
    weight_map: dict[str, str] = {}
    for index, file in enumerate(_NAMES):
        part = {name: tensors[name] for name in sorted(tensors)[index :: len(_NAMES)]}
        save_file(part, str(folder / file))
        weight_map |= dict.fromkeys(part, file)
    _write_index(folder, weight_map)
    return folder


def _weight_map(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / _INDEX).read_text())["weight_map"]
    return found


def _write_index(folder: Path, weight_map: object) -> None:
    (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _split(tmp_path / "model")


def test_shards_hold_what_one_file_would(folder: Path, tmp_path: Path) -> None:
    single = dict(source.open_checkpoint(tiny.write(tmp_path / "single")).tensors())
    found = dict(source.open_checkpoint(folder).tensors())
    assert found.keys() == single.keys()
    assert all(np.array_equal(found[name], single[name]) for name in single)


def test_the_index_comes_before_a_single_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"rest of a download")
    assert len(dict(source.open_checkpoint(folder).tensors())) == len(_weight_map(folder))


def test_a_shard_may_be_a_link_as_in_the_cache_of_hugging_face(folder: Path) -> None:
    blob = folder.parent / "blob"
    (folder / "b.safetensors").rename(blob)
    (folder / "b.safetensors").symlink_to(blob)
    source.open_checkpoint(folder)


_FIRST = "lm_head.weight"


def _point(file: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        _write_index(folder, _weight_map(folder) | {_FIRST: file})

    return damage


def _without_a_shard(folder: Path) -> None:
    (folder / "b.safetensors").unlink()


def _a_folder_for_a_shard(folder: Path) -> None:
    _without_a_shard(folder)
    (folder / "b.safetensors").mkdir()


def _in_two_shards(folder: Path) -> None:
    shard = folder / "b.safetensors"
    more = load_file(str(folder / "a.safetensors"))[_FIRST]
    save_file(load_file(str(shard)) | {_FIRST: more}, str(shard))


def _not_in_the_index(folder: Path) -> None:
    weight_map = _weight_map(folder)
    del weight_map[_FIRST]
    _write_index(folder, weight_map)


def _in_no_file(folder: Path) -> None:
    _write_index(folder, _weight_map(folder) | {"model.new.weight": "a.safetensors"})


_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a shard that is missing": (_without_a_shard, "names b.safetensors, which is not there"),
    "a folder where a shard should be": (_a_folder_for_a_shard, "which is not there"),
    "a tensor in two shards": (_in_two_shards, f"expects in a.safetensors .*{_FIRST}"),
    "a tensor in another shard": (_point("b.safetensors"), f"a.safetensors holds .*{_FIRST}"),
    "a tensor that the index lacks": (_not_in_the_index, f"index does not name .*{_FIRST}"),
    "a tensor of no file": (_in_no_file, "is in no file .*model.new.weight"),
    "the folder above": (_point("../a.safetensors"), "outside its folder: ../a"),
    "a folder below": (_point("x/a.safetensors"), "outside its folder"),
    "an absolute path": (_point("/etc/passwd"), "outside its folder: /etc/passwd"),
    "a path of another system": (_point("..\\\\a.safetensors"), "outside its folder"),
    "a NUL": (_point("a\0.safetensors"), "outside its folder"),
    "a long name": (_point("x" * 5000), "File name too long"),
    "only dots": (_point(".."), "which is not there"),
    "nothing": (_point(""), "which is not there"),
    "a number": (_point(7), f"names 7 as a file .*{_FIRST}"),
    "a list": (_point(["a.safetensors"]), "as a file"),
    "an index of nothing": (lambda f: _write_index(f, {}), "no weight_map"),
    "an index that is a list": (lambda f: _write_index(f, []), "no weight_map"),
    "an index that is no JSON": (lambda f: (f / _INDEX).write_text("{"), "cannot be read"),
    "an index too deep to parse": (
        lambda f: (f / _INDEX).write_text("[" * 100_000),
        "cannot be read",
    ),
}


@pytest.mark.parametrize(("damage", "message"), _DAMAGE.values(), ids=_DAMAGE)
def test_an_index_that_does_not_fit_its_files_is_refused(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(ModelInvalid, match=message) as caught:
        source.open_checkpoint(folder)
    assert str(folder) in caught.value.path


def _with_header(path: Path, header: bytes, data: bytes = b"") -> None:
    path.unlink(missing_ok=True)  # the last one may still be mapped: never truncate it
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


_ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
_HEADERS: dict[str, tuple[str, str]] = {
    "a hole": (json.dumps({"a": _ENTRY | {"data_offsets": [4, 20]}}), "do not follow"),
    "two tensors in one place": (json.dumps({"a": _ENTRY, "b": _ENTRY}), "do not follow"),
    "bytes of no tensor": (json.dumps({"a": _ENTRY}), "4 bytes at the end"),
    "a name twice": (
        '{{"a": {0}, "a": {0}}}'.format(json.dumps(_ENTRY)),
        "header is damaged: a name stands there twice",
    ),
    "bytes that do not fit": (
        json.dumps({"a": _ENTRY | {"data_offsets": [0, 20]}}),
        "do not fit its shape",
    ),
    "a negative shape": (json.dumps({"a": _ENTRY | {"shape": [-2, -2]}}), "no shape or place"),
    "a shape of fractions": (json.dumps({"a": _ENTRY | {"shape": [2.0, 2]}}), "no shape or place"),
    "a shape of truths": (json.dumps({"a": _ENTRY | {"shape": [True, 4]}}), "no shape or place"),
    "a negative place": (
        json.dumps({"a": _ENTRY | {"data_offsets": [-16, 0]}}),
        "no shape or place",
    ),
    "a place of three": (
        json.dumps({"a": _ENTRY | {"data_offsets": [0, 8, 16]}}),
        "no shape or place",
    ),
    "no dtype": (json.dumps({"a": {"shape": [1]}}), "header is damaged"),
    "no entry": (json.dumps({"a": 3}), "header is damaged"),
    "a list": ("[]", "header is damaged"),
    "too deep to parse": ("[" * 100_000, "header is damaged"),
    "no UTF-8": ('{"a\udcff": 1}', "header is damaged"),
}


@pytest.mark.parametrize(("header", "message"), _HEADERS.values(), ids=_HEADERS)
def test_a_damaged_header_is_refused(tmp_path: Path, header: str, message: str) -> None:
    folder = tiny.write(tmp_path / "model")
    path = folder / "model.safetensors"
    _with_header(path, header.encode("utf-8", "surrogateescape"), b"\0" * 20)
    with pytest.raises(ModelInvalid, match=message) as caught:
        source.open_checkpoint(folder)
    assert caught.value.path == str(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("whole") / "model", tiny.config("glm4_moe"))


_SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_DOCUMENTS = st.recursive(
    _SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(("dtype", "shape", "data_offsets", "a")), inner)
    ),
    max_leaves=12,
)


@cases(200)
@given(document=_DOCUMENTS, data=st.binary(max_size=32))
def test_any_header_is_read_or_refused(whole: Path, document: object, data: bytes) -> None:
    path = whole / "model.safetensors"
    kept = path.read_bytes()
    try:
        _with_header(path, json.dumps({"lm_head.weight": document}).encode(), data)
        with pytest.raises(CheckpointError):
            source.open_checkpoint(whole)
    finally:
        path.unlink()
        path.write_bytes(kept)


@cases(200)
@given(data=st.data())
def test_a_changed_byte_of_a_header_is_read_or_refused(whole: Path, data: st.DataObject) -> None:
    path = whole / "model.safetensors"
    kept = path.read_bytes()
    damaged = bytearray(kept)
    size = int.from_bytes(kept[:8], "little")
    damaged[data.draw(st.integers(0, 8 + size - 1))] ^= data.draw(st.integers(1, 255))
    path.unlink()
    path.write_bytes(damaged)
    try:
        opened = source.open_checkpoint(whole)
    except ModelInvalid:
        return
    else:
        # Nothing but the metadata and white space may differ unseen.
        assert len(dict(opened.tensors())) > 10
    finally:
        path.unlink()
        path.write_bytes(kept)


@cases(50)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(whole: Path, data: st.DataObject) -> None:
    path = whole / "model.safetensors"
    kept = path.read_bytes()
    path.unlink()
    path.write_bytes(kept[: data.draw(st.integers(0, len(kept) - 1))])
    try:
        with pytest.raises(ModelInvalid):
            source.open_checkpoint(whole)
    finally:
        path.unlink()
        path.write_bytes(kept)
