"""The operator: turns InferenceModels into engine Pods, routes and conditions."""

import signal
import sys
from pathlib import Path


def serve(config: Path) -> int:
    """Run until SIGTERM; the exit code. A configuration that cannot be used is told and is 1."""
    # kopf takes the signal over once it runs. Before that a container's first process would
    # ignore it, for as long as the API server or our kinds are not there.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from slipstream_operator import main

    return main.serve(config)
