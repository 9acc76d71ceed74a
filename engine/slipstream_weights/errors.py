"""What can be wrong with a checkpoint; knows no file format.

CheckpointError
├── ModelNotFound   nothing is there
└── ModelInvalid    something is there and cannot be served
"""


class CheckpointError(Exception):
    """`path`: the file or folder; `tensor`: the tensor at fault, where it is one."""

    def __init__(self, message: str, path: str, tensor: str | None = None) -> None:
        where = f"{path}, tensor {tensor}" if tensor else path
        super().__init__(f"{message} ({where})")
        self.message = message
        self.path = path
        self.tensor = tensor


class ModelNotFound(CheckpointError):  # noqa: N818  (the name of a condition's reason)
    """No file or folder at the path, or no checkpoint in the folder."""


class ModelInvalid(CheckpointError):  # noqa: N818  (the name of a condition's reason)
    """Corrupt, incomplete, or of a kind that is not supported."""
