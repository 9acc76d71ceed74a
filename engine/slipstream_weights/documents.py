"""The JSON files of a checkpoint folder."""

import json
from pathlib import Path
from typing import Any

from slipstream_weights.errors import ModelInvalid


def read(path: Path) -> dict[str, Any]:
    """One JSON object. Raises ModelInvalid."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelInvalid(f"cannot be read: {error}", str(path)) from error
    if not isinstance(document, dict):
        raise ModelInvalid("not a JSON object", str(path))
    return document
