"""One rank as a process: loads its part of the model, then steps while the serving process lives.

Started as `python -m slipstream_engine.rank <descriptor of its socket>`; the only kind of process
that imports torch. On rank 0 a thread reads commands and the main thread steps and answers; the
others do what rank 0 tells them.
"""

import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from slipstream_api import config as configs
from slipstream_api.conditions import Reason
from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import loading, messages, ranks
from slipstream_engine.group import HEARTBEAT_S, PeerLostError
from slipstream_engine.guides.compiled import Compiler
from slipstream_engine.guides.interface import Guides
from slipstream_engine.guides.matcher import Matchers
from slipstream_engine.intake import Intake
from slipstream_engine.loading import Part
from slipstream_engine.loop import EngineLoop
from slipstream_engine.messages import (
    Abort,
    AbortSample,
    Failed,
    Forget,
    FromRank,
    Start,
    Submit,
    ToRank,
)
from slipstream_engine.ranks import LeadingRunner
from slipstream_engine.split import Split
from slipstream_weights.errors import CheckpointError, ModelNotFound

Commands = queue.SimpleQueue[ToRank | None]


def main() -> int:
    """Exit code 0 only when the serving process closed its end."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        return _serve(connection)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except CheckpointError as error:
        reason = Reason.MODEL_NOT_FOUND if isinstance(error, ModelNotFound) else None
        _say_last(connection, Failed(reason or Reason.MODEL_INVALID, str(error), "model.path"))
    except ConfigError as error:
        _say_last(connection, Failed(Reason.CONFIG_INVALID, error.message, error.field))
    except PeerLostError as error:
        message = f"another rank of the replica is gone: {error}"
        _say_last(connection, Failed(Reason.CONTAINER_FAILED, message, is_consequence=True))
    except Exception as error:
        # The serving process tells the operator; the traceback goes to the log.
        _say_last(connection, Failed(Reason.CONTAINER_FAILED, f"{type(error).__name__}: {error}"))
        raise
    return 1


def _serve(connection: socket.socket) -> int:
    commands: Commands = queue.SimpleQueue()
    compiler = Compiler()
    intake = Intake(commands.put, compiler)
    threading.Thread(target=_read, args=(connection, intake.take), daemon=True).start()
    start = commands.get()
    if not isinstance(start, Start):
        raise TypeError(f"the first message is {start!r}")
    config = configs.parse(EngineConfig, start.config, origin="the start message")
    parallel = config.parallel
    split = Split(parallel.tensor, parallel.pipeline, start.rank)
    part = loading.load(config, split, start.rendezvous)
    if split.rank > 0:
        _watch(commands)
        ranks.follow(part.runner, part.group, split)
        return 0
    return _lead(connection, commands, part, split, Matchers(compiler))


def _lead(
    connection: socket.socket, commands: Commands, part: Part, split: Split, guides: Guides
) -> int:
    """Schedule, run everywhere, commit, tell; rank 0 only."""
    leading = LeadingRunner(part.runner, part.group, split) if split.num_ranks > 1 else None
    loop = part.loop(leading or part.runner, guides)
    _send(connection, part.loaded())
    while True:
        taken = _take(commands, loop, leading)
        if None in taken:
            if leading is not None:
                leading.end()
            return 0
        for command in taken:
            if isinstance(command, Submit | Abort | AbortSample | Forget):
                loop.take(command)
        _send(connection, loop.step())


def _take(
    commands: Commands, loop: EngineLoop, leading: LeadingRunner | None
) -> list[ToRank | None]:
    """Everything that was asked meanwhile; an idle rank waits for the first of it."""
    taken: list[ToRank | None] = []
    while loop.is_idle and not taken:
        try:
            taken.append(commands.get(timeout=None if leading is None else HEARTBEAT_S))
        except queue.Empty:
            if leading is not None:
                leading.beat()
    while not commands.empty():
        taken.append(commands.get())
    return taken


def _watch(commands: Commands) -> None:
    """End with the serving process, also while waiting for another rank."""

    def wait() -> None:
        while commands.get() is not None:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _read(connection: socket.socket, take: Callable[[ToRank | None], None]) -> None:
    """None is the end: the serving process has closed its side or died."""
    with connection.makefile("rb") as stream:
        while True:
            head = stream.read(messages.LENGTH.size)
            if len(head) < messages.LENGTH.size:
                take(None)
                return
            body = stream.read(messages.LENGTH.unpack(head)[0])
            take(messages.decode_to_rank(body))


def _send(connection: socket.socket, message: FromRank) -> None:
    connection.sendall(messages.encode(message))


def _say_last(connection: socket.socket, words: Failed) -> None:
    """Nobody may listen any more: another rank that failed earlier has ended the replica."""
    with suppress(OSError):
        _send(connection, words)


if __name__ == "__main__":
    sys.exit(main())
