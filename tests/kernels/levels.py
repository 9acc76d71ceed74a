"""The levels of the kernels in C that this machine can run, best first."""

from slipstream_kernels import compile as compiled
from slipstream_kernels import native

LEVELS = [
    level
    for level, (features, _) in compiled.LEVELS.items()
    if features <= native._processor_features()
]
