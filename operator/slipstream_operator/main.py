"""Start and end of the process: configuration in, exit code out."""

import asyncio
import logging
from pathlib import Path

from lightkube.core.exceptions import ConfigError as KubeConfigError

from slipstream_api import config as configs
from slipstream_api import failure, logs
from slipstream_api.conditions import Reason
from slipstream_operator.cluster import ClusterError
from slipstream_operator.process import Operator

log = logging.getLogger(__name__)


def serve(path: Path) -> int:
    logs.set_up()
    try:
        config = configs.load(configs.OperatorConfig, path)
    except configs.ConfigError as error:
        return _fail(error.message, error.field)
    try:
        asyncio.run(Operator(config).run())
    except (KubeConfigError, ClusterError) as error:
        return _fail(str(error), "")
    except OSError as error:
        return _fail(str(error), "")
    return 0


def _fail(message: str, field: str) -> int:
    log.error("cannot start: %s", message, extra={"field": field})
    failure.write(failure.StartupFailure(Reason.CONFIG_INVALID.value, message, field))
    return 1
