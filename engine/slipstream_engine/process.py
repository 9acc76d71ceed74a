"""The serving process from its configuration file to its exit code.

Listens before the model is loaded, so that liveness can be asked; ends by SIGTERM after a drain,
or because the rank is gone, with the rank's last words as its own.
"""

import asyncio
import errno
import logging
import signal
import socket
import sys
from pathlib import Path

from aiohttp import web

from slipstream_api import config as configs
from slipstream_api import failure, logs
from slipstream_api.conditions import Reason
from slipstream_api.config import ConfigError, EngineConfig
from slipstream_api.failure import StartupFailure
from slipstream_engine import apierror, connections, server, sizing
from slipstream_engine.chat import TemplateError
from slipstream_engine.engine import Engine
from slipstream_engine.messages import Failed
from slipstream_engine.questions import TextSide
from slipstream_engine.rankclient import RankClient
from slipstream_engine.split import Split
from slipstream_engine.tokens import InternalTokens
from slipstream_engine.tracing import Tracing
from slipstream_weights import source
from slipstream_weights.errors import CheckpointError, ModelNotFound

_log = logging.getLogger(__name__)
# How long error events may take to reach the clients of a rank that died.
_FLUSH_S = 2.0


def run(config_path: Path) -> int:
    """Serve until SIGTERM. 0 after a drain; 1 when it could not start or the rank died."""
    logs.set_up()
    try:
        config = configs.load(EngineConfig, config_path)
        folder = config.server.token_dir
        tokens = None if folder is None else InternalTokens(Path(folder))
        tracing = Tracing.start(config)
        _check_split(config)
    except ConfigError as error:
        return _fail(Failed(Reason.CONFIG_INVALID, error.message, error.field))
    except CheckpointError as error:
        return _fail(_no_model(error))
    try:
        return asyncio.run(_serve(config, tokens, tracing))
    finally:
        if tracing is not None:
            tracing.stop()


def _check_split(config: EngineConfig) -> None:
    """By the file's header alone: each rank takes seconds and 300 MB before it looks at that.

    Raises ConfigError, CheckpointError.
    """
    parallel = config.parallel
    if parallel.num_ranks > 1:
        checkpoint = source.open_checkpoint(Path(config.model.path)).checkpoint
        sizing.check_split(checkpoint, Split(parallel.tensor, parallel.pipeline))


def _no_model(error: CheckpointError) -> Failed:
    is_missing = isinstance(error, ModelNotFound)
    reason = Reason.MODEL_NOT_FOUND if is_missing else Reason.MODEL_INVALID
    return Failed(reason, str(error), "model.path")


async def _serve(
    config: EngineConfig, tokens: InternalTokens | None, tracing: Tracing | None
) -> int:
    terminated = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, terminated.set)
    rank = await RankClient.start(configs.dump(config), config.parallel.num_ranks)
    engine = Engine(config, tokens, rank, tracing)
    http = connections.runner(server.make_app(engine))
    await http.setup()
    try:
        site = web.TCPSite(http, config.server.host, config.server.port)
        try:
            await site.start()
        except OSError as error:
            is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            field = "server.host" if is_host else "server.port"
            return _fail(Failed(Reason.CONFIG_INVALID, f"cannot listen: {error}", field))
        pids = " ".join(map(str, rank.pids))
        _log.info("listening on %s, rank process %s", http.addresses, pids)
        return await _live(engine, terminated)
    finally:
        await http.cleanup()
        engine.close()
        await rank.stop()


async def _live(engine: Engine, terminated: asyncio.Event) -> int:
    ending = asyncio.create_task(terminated.wait())
    opening = asyncio.create_task(_open(engine))
    ended = engine.rank.ended
    try:
        await asyncio.wait({opening, ending, ended}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done() and (failed := opening.result()) is not None:
            return _fail(failed)
        await asyncio.wait({ending, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            engine.begin_draining()
            _log.info("draining %d requests", engine.num_outstanding)
            drained = asyncio.create_task(engine.wait_idle())
            await asyncio.wait(
                {drained, ended},
                timeout=engine.config.server.drain_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            drained.cancel()
        # Whoever is not done by now learns that the answer is no whole one.
        engine.rank.give_up_all(apierror.cut_by_drain())
        await asyncio.wait({asyncio.create_task(engine.wait_idle())}, timeout=_FLUSH_S)
        return _fail(ended.result()) if ended.done() else 0
    finally:
        ending.cancel()
        opening.cancel()


async def _open(engine: Engine) -> Failed | None:
    """Load text model and weights side by side; None when the engine can be asked."""
    try:
        text = await asyncio.to_thread(_text, engine.config)
    except CheckpointError as error:
        return _no_model(error)
    except TemplateError as error:
        return Failed(Reason.MODEL_INVALID, str(error), "model.path")
    loaded = await engine.rank.wait_loaded()
    if isinstance(loaded, Failed):
        return loaded
    engine.begin_serving(loaded, text)
    # `reference` on a CPU: no kernels in C for it, so matrices are dense and products slower.
    _log.info(
        "ready: the model was loaded in %.1f s, products by %s",
        loaded.load_s,
        loaded.kernels["linear"],
    )
    return None


def _text(config: EngineConfig) -> TextSide:
    model = config.model
    opened = source.open_checkpoint(Path(model.path))
    return TextSide.make(opened.text_model(), model.tool_call_format, model.reasoning_format)


def _fail(failed: Failed) -> int:
    startup_failure = StartupFailure(failed.reason, failed.message, failed.field)
    failure.write(startup_failure)
    # The last line of the log too: Kubernetes falls back to it.
    print(startup_failure.dump(), file=sys.stderr, flush=True)
    return 1
