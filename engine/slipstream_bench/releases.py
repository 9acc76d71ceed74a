"""Two releases of a public package, as an option names them. Pure."""

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True, slots=True)
class Releases:
    """Two releases of one package."""

    package: str
    old: str
    new: str


def parse(text: str) -> Releases:
    """`NAME:OLD:NEW`. Raises ValueError."""
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError(f"'{text}' is not NAME:OLD:NEW")
    name, old, new = parts
    if not _NAME.fullmatch(name):
        raise ValueError(f"'{name}' is no name of a package")
    for version in (old, new):
        if not _VERSION.fullmatch(version):
            raise ValueError(f"'{version}' is no version")
    if old == new:
        raise ValueError(f"'{text}' names one release twice")
    return Releases(name, old, new)
