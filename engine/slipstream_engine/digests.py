"""The digest of a checkpoint, found out beside everything else: a large one takes minutes."""

import hashlib
import threading
from pathlib import Path


def checkpoint_digest(path: Path) -> str:
    """`sha256:…` of a file, or of a folder's files.

    A folder's is the sha256 of one line a file: its own sha256, two spaces, its name, a line
    feed, sorted by name; what `sha256sum *` prints in that folder. Raises OSError.
    """
    if path.is_file():
        return f"sha256:{_file_digest(path)}"
    names = sorted(one.name for one in path.iterdir() if one.is_file() and one.name[0] != ".")
    lines = "".join(f"{_file_digest(path / name)}  {name}\n" for name in names)
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DigestOf:
    """The digest of one path. `value` is None until it is known, and for good if it cannot be."""

    def __init__(self, path: Path) -> None:
        self.value: str | None = None
        self._path = path
        # A daemon: reading a terabyte must not keep the process from ending.
        self.thread = threading.Thread(target=self._find_out, daemon=True)
        self.thread.start()

    def _find_out(self) -> None:
        try:
            self.value = checkpoint_digest(self._path)
        except OSError:
            return
