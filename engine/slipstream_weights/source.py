"""Opens whatever stands at a path; knows which file formats there are and nothing in them."""

from pathlib import Path

from slipstream_weights.checkpoint import OpenCheckpoint
from slipstream_weights.errors import ModelInvalid, ModelNotFound


def open_checkpoint(path: Path) -> OpenCheckpoint:
    """A .gguf file or a Hugging Face folder. Raises ModelNotFound or ModelInvalid."""
    from slipstream_weights.gguf_checkpoint import GgufCheckpoint
    from slipstream_weights.huggingface_folder import HuggingFaceCheckpoint

    try:
        is_there = path.exists()
    except OSError as error:
        raise ModelInvalid(f"cannot be looked at: {error.strerror}", str(path)) from error
    if not is_there:
        raise ModelNotFound("there is no such file or folder", str(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound("the folder has no config.json", str(path))
        return HuggingFaceCheckpoint(path)
    if path.suffix != ".gguf":
        raise ModelInvalid("neither a folder nor a .gguf file", str(path))
    return GgufCheckpoint(path)
