"""The OpenAI-compatible front door: model names, tracks, replicas, streams, cancellation."""

from pathlib import Path


def serve(config: Path) -> int:
    """Serve until SIGTERM; the exit code of the process."""
    from slipstream_api import logs
    from slipstream_gateway import process

    logs.set_up()
    return process.serve(config)
