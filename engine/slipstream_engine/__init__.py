"""The inference engine: a serving process without torch and a rank process with it."""

from pathlib import Path


def serve(config: Path) -> int:
    """Serve until SIGTERM; the process's exit code. The heavy parts are imported here."""
    from slipstream_engine import process

    return process.run(config)
