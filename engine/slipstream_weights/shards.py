"""All safetensors files of a folder as one list of tensors: a single file, or shards by index."""

from pathlib import Path

from slipstream_weights import documents, safetensors_header
from slipstream_weights.errors import ModelInvalid, ModelNotFound
from slipstream_weights.safetensors_header import StoredTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read(folder: Path) -> list[StoredTensor]:
    """Raises ModelNotFound (no such file), ModelInvalid (index and files do not agree)."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise ModelNotFound(f"the folder has neither {SINGLE} nor {INDEX}", str(folder))
        return safetensors_header.read(folder / SINGLE)
    weight_map = documents.read(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelInvalid("the index has no weight_map", str(index))
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise ModelInvalid(f"the index names {file!r} as a file", str(index), name)
    # Insertion order: shards are read in the order of the index.
    files = dict.fromkeys(weight_map.values())
    tensors = {name: _shard(folder, name, str(index)) for name in files}
    _check_index(weight_map, tensors, str(index))
    return [tensor for found in tensors.values() for tensor in found]


def _shard(folder: Path, name: str, index: str) -> list[StoredTensor]:
    # A plain name: nothing that leads out of the folder, on any system.
    if set(name) & set("/\\\0"):
        raise ModelInvalid(f"the index names a file outside its folder: {name}", index)
    try:
        is_there = (folder / name).is_file()
    except OSError as error:
        raise ModelInvalid(f"{name} cannot be looked at: {error.strerror}", index) from error
    if not is_there:
        raise ModelInvalid(f"the index names {name}, which is not there", index)
    return safetensors_header.read(folder / name)


def _check_index(
    weight_map: dict[str, str], tensors: dict[str, list[StoredTensor]], index: str
) -> None:
    held = {tensor.name for found in tensors.values() for tensor in found}
    for name in weight_map:
        if name not in held:
            raise ModelInvalid("a tensor of the index is in no file", index, name)
    for file, found in tensors.items():
        for tensor in found:
            said = weight_map.get(tensor.name)
            if said is None:
                fault = f"{file} holds a tensor that the index does not name"
                raise ModelInvalid(fault, index, tensor.name)
            if said != file:
                fault = f"{file} holds a tensor that the index expects in {said}"
                raise ModelInvalid(fault, index, tensor.name)
