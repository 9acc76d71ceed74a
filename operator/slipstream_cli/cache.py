"""`slipstream cache …`: start the prefix cache. The cache itself knows none of our documents."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream_api import failure, names

if TYPE_CHECKING:
    from slipstream_api.cacheconfig import CacheConfig
    from slipstream_kvstore.process import Settings

app = typer.Typer(no_args_is_help=True, help="Run the prefix cache.")
log = logging.getLogger("slipstream.cache")


@app.callback()
def _group() -> None:
    """Keeps `serve` a subcommand although it is the only one."""


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="The mounted configuration file.")] = Path(
        "/etc/slipstream/cache.json"
    ),
) -> None:
    """Serve until SIGTERM. Example: slipstream cache serve --config ./cache.json"""

    def start() -> int:
        from slipstream_api import logs

        logs.set_up()
        return run(config)

    raise typer.Exit(failure.guard(start))


def run(path: Path, termination_log: Path = Path(names.TERMINATION_LOG)) -> int:
    """0: drained; 1: could not start, and said why."""
    from slipstream_api import config as configs
    from slipstream_api.cacheconfig import CacheConfig
    from slipstream_api.config import ConfigError
    from slipstream_kvstore import process
    from slipstream_kvstore.credentials import CredentialsError, Tokens
    from slipstream_kvstore.process import ListenError

    try:
        config = configs.load(CacheConfig, path)
        tokens = Tokens(Path(config.token_dir), names.TOKEN_KEYS)
        process.run(settings(config), tokens.accepts)
    except ConfigError as error:
        return _fail(error.message, error.field, termination_log)
    except CredentialsError as error:
        return _fail(str(error), "tokenDir", termination_log)
    except ListenError as error:
        field = "healthPort" if error.is_health else "port"
        return _fail(f"cannot listen: {error}", field, termination_log)
    return 0


def settings(config: "CacheConfig") -> "Settings":
    """The file's values as the cache takes them."""
    from slipstream_kvstore.codec import Limits
    from slipstream_kvstore.process import Settings
    from slipstream_kvstore.session import Timeouts

    return Settings(
        host=config.host,
        port=config.port,
        health_port=config.health_port,
        max_bytes=config.max_bytes,
        tenant_max_bytes=config.tenant_max_bytes,
        limits=Limits(config.max_keys, config.max_page_bytes),
        max_in_flight_bytes=config.max_in_flight_bytes,
        max_connections=config.max_connections,
        timeouts=Timeouts(config.hello_timeout_s, config.io_timeout_s, config.idle_timeout_s),
        drain_timeout_s=config.drain_timeout_s,
    )


def _fail(message: str, field: str, termination_log: Path) -> int:
    from slipstream_api.conditions import Reason
    from slipstream_api.failure import StartupFailure

    log.error("cannot start: %s", message)
    failure.write(StartupFailure(Reason.CONFIG_INVALID.value, message, field), termination_log)
    return 1
