"""Every line of a log is one JSON object that a collector can read."""

import json
import subprocess
import sys

PROGRAM = """
import logging
from slipstream_api import logs
logs.set_up()
log = logging.getLogger("slipstream.test")
log.info("two\\nlines", extra={"model": "coder", "track": None, "status": 200})
logging.getLogger("httpx2").info("a request a second")
try:
    raise ValueError("boom")
except ValueError:
    log.exception("failed")
"""


def test_fields_become_keys_and_a_line_is_one_object() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    first, second = (json.loads(line) for line in done.stderr.splitlines())
    assert first["message"] == "two\nlines"
    assert (first["level"], first["logger"]) == ("info", "slipstream.test")
    assert (first["model"], first["status"]) == ("coder", 200)
    assert "track" not in first
    assert "ValueError: boom" in second["exception"]
