"""The operator: turns InferenceModels into engine Pods, routes and conditions."""

from pathlib import Path


def serve(config: Path) -> int:
    """Run until SIGTERM; the exit code. A configuration that cannot be used is told and is 1."""
    from slipstream_operator import main

    return main.serve(config)
