"""The rank process: loads the model, then steps for as long as the serving process lives.

Started as `python -m slipstream_engine.rank <descriptor of its socket>`; the only process that
imports torch. A thread reads commands; the main thread steps and answers.
"""

import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path

import torch

from slipstream_api import config as configs
from slipstream_api.conditions import Reason
from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import messages, sizing
from slipstream_engine.kvpool import KvPool
from slipstream_engine.loop import EngineLoop
from slipstream_engine.messages import Abort, Failed, FromRank, Loaded, Start, Submit, ToRank
from slipstream_engine.model import Decoder
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from slipstream_weights import source
from slipstream_weights.errors import CheckpointError, ModelNotFound

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> int:
    """Exit code 0 only when the serving process closed its end."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        return _serve(connection)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except CheckpointError as error:
        reason = Reason.MODEL_NOT_FOUND if isinstance(error, ModelNotFound) else None
        _send(connection, Failed(reason or Reason.MODEL_INVALID, str(error), "model.path"))
    except ConfigError as error:
        _send(connection, Failed(Reason.CONFIG_INVALID, error.message, error.field))
    except Exception as error:
        # The serving process tells the operator; the traceback goes to the log.
        _send(connection, Failed(Reason.CONTAINER_FAILED, f"{type(error).__name__}: {error}"))
        raise
    return 1


def _serve(connection: socket.socket) -> int:
    commands: queue.SimpleQueue[ToRank | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, commands), daemon=True).start()
    start = commands.get()
    if not isinstance(start, Start):
        raise TypeError(f"the first message is {start!r}")
    loop, loaded = _load(configs.parse(EngineConfig, start.config, origin="the start message"))
    _send(connection, loaded)
    while True:
        taken = [commands.get()] if loop.is_idle else []
        while not commands.empty():
            taken.append(commands.get())
        for command in taken:
            if command is None:
                return 0
            if isinstance(command, Submit | Abort):
                loop.take(command)
        _send(connection, loop.step())


def _load(config: EngineConfig) -> tuple[EngineLoop, Loaded]:
    began = time.monotonic()
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    opened = source.open_checkpoint(Path(config.model.path))
    sizes = sizing.resolve(config, opened.checkpoint)
    decoder = Decoder(opened.checkpoint, opened.tensors(), _DTYPES[config.dtype])
    pool = KvPool(sizes.layout, sizes.num_pages, torch.device("cpu"))
    limits = Limits(
        max_running_sequences=config.limits.max_running_sequences,
        max_batch_tokens=config.limits.max_batch_tokens,
        page_tokens=config.pages.page_tokens,
        max_context=sizes.max_context,
    )
    loop = EngineLoop(Scheduler(limits, sizes.num_pages), Runner(decoder, pool))
    return loop, Loaded(
        architecture=opened.checkpoint.architecture,
        max_context=sizes.max_context,
        num_pages=sizes.num_pages,
        page_bytes=sizes.layout.page_bytes,
        load_s=time.monotonic() - began,
        threads=threads,
    )


def _read(connection: socket.socket, commands: "queue.SimpleQueue[ToRank | None]") -> None:
    """None is the end: the serving process has closed its side or died."""
    with connection.makefile("rb") as stream:
        while True:
            head = stream.read(messages.LENGTH.size)
            if len(head) < messages.LENGTH.size:
                commands.put(None)
                return
            body = stream.read(messages.LENGTH.unpack(head)[0])
            commands.put(messages.decode_to_rank(body))


def _send(connection: socket.socket, message: FromRank) -> None:
    connection.sendall(messages.encode_from_rank(message))


if __name__ == "__main__":
    sys.exit(main())
