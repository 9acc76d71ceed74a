"""How a process that cannot start says why: one JSON object in the termination log.

The operator reads it from the container's status and shows it in a condition.
"""

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipstream_api import names

# The kubelet keeps at most this much of a termination message.
_MAX_BYTES = 4096
# The reason of what nobody foresaw.
UNEXPECTED = "Unexpected"


@dataclass(frozen=True, slots=True)
class StartupFailure:
    """`reason`: a CamelCase word, a `conditions.Reason` where one fits; `field`: a config path."""

    reason: str
    message: str
    field: str = ""

    def dump(self) -> str:
        """The JSON object, cut to what the kubelet keeps."""
        message = self.message
        while True:
            text = json.dumps({"reason": self.reason, "message": message, "field": self.field})
            if len(text.encode()) <= _MAX_BYTES or not message:
                return text
            message = message[: len(message) * 3 // 4]


def write(failure: StartupFailure, path: Path = Path(names.TERMINATION_LOG)) -> None:
    """Write the termination log; outside a container (no such file may be made) do nothing."""
    try:
        path.write_text(failure.dump(), encoding="utf-8")
    except OSError:
        return


def guard(serve: Callable[[], int], path: Path = Path(names.TERMINATION_LOG)) -> int:
    """Run a process to its exit code; an exception that nobody caught is told like every other
    failure, and is 1. Exits and interrupts pass through."""
    try:
        return serve()
    except Exception as error:
        traceback.print_exc()
        told = StartupFailure(UNEXPECTED, _words(error))
        write(told, path)
        # The last line of the log too: Kubernetes falls back to it.
        print(told.dump(), file=sys.stderr, flush=True)
        return 1


def _words(error: BaseException) -> str:
    """The first exception of a group of tasks, which by itself says nothing."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def parse(text: str) -> StartupFailure | None:
    """The failure in a termination message, or None when the text is something else."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("reason"), str):
        return None
    return StartupFailure(
        reason=document["reason"],
        message=str(document.get("message", "")),
        field=str(document.get("field", "")),
    )
