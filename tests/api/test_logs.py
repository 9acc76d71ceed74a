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


QUOTING = """
import asyncio, logging
from slipstream_api import logs
logs.set_up()

def fail():
    try:
        raise KeyError("SECRET 1")
    except KeyError as error:
        raise ValueError("400, message: SECRET 2") from error

for number in range(200):
    try:
        fail()
    except ValueError:
        log = logging.getLogger("aiohttp.server")
        log.exception("Error handling request from %s", "SECRET 3")
loop = asyncio.new_event_loop()
for number in range(200):
    try:
        fail()
    except ValueError as error:
        context = {"message": "no descriptors", "exception": error, "protocol": "SECRET 4"}
        loop.call_exception_handler(context)
loop.close()
logging.getLogger("slipstream.test").error("other words")
"""


def test_what_libraries_quote_is_not_written_and_the_same_words_once_in_a_while() -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUOTING], capture_output=True, text=True, timeout=60, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["message"] for line in lines] == [
        "Error handling request from %s",
        "no descriptors",
        "other words",
    ]
    assert "SECRET" not in done.stderr
    for line in lines[:2]:
        assert line["exception"].splitlines()[-1] == "ValueError"
        assert "KeyError" in line["exception"]


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
