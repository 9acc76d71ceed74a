"""Compile the kernels in C, once for every kind of processor:  python -m slipstream_kernels.compile

The compiler is clang as the package `ziglang` brings it: the same code on every machine, and no
compiler to be installed. Quick when nothing changed.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"

_V3 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm", "popcnt", "sse4_2"})
_V4 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"})

# What the processor must have, as Linux names it, and what the compiler calls it. Best first.
LEVELS: Mapping[str, tuple[frozenset[str], str]] = {
    "avx512": (_V3 | _V4 | {"avx512_vnni"}, "x86_64_v4+avx512vnni"),
    "avx2": (_V3, "x86_64_v3"),
}
# glibc of 2018: what torch's own wheels ask for.
_TARGET = "x86_64-linux-gnu.2.28"
_FLAGS = (
    *("-O3", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden", "-s"),
    # Nothing about numbers is relaxed: where a product and a sum become one, the source says so.
    *("-ffp-contract=off", "-fno-math-errno"),
    # A loop of unknown length in the general form of a kernel is no mistake.
    *("-Wall", "-Wextra", "-Werror", "-Wno-pass-failed"),
)


def library(level: str) -> Path:
    """Where the compiled kernels of a level are, if they are: named by what they came from."""
    digest = hashlib.sha256(repr((LEVELS[level][1], _TARGET, _FLAGS)).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return SOURCES / f"{level}-{digest.hexdigest()[:16]}.so"


def main() -> int:
    wanted = {level: library(level) for level in LEVELS}
    missing = {level: path for level, path in wanted.items() if not path.exists()}
    if not missing:
        return 0
    with tempfile.TemporaryDirectory(dir=SOURCES) as folder:
        for level, path in missing.items():
            print(f"compiling the kernels for {level}", flush=True)
            made = Path(folder) / path.name
            _compile(LEVELS[level][1], made, Path(folder))
            # Whole or not at all: an engine may be starting.
            made.rename(path)
    for old in set(SOURCES.glob("*.so")) - set(wanted.values()):
        # Somebody else may be compiling too.
        old.unlink(missing_ok=True)
    return 0


def _compile(processor: str, target: Path, cache: Path) -> None:
    """Raises CalledProcessError; the compiler has said why."""
    compiler = (sys.executable, "-m", "ziglang", "cc", "-target", _TARGET, f"-mcpu={processor}")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    subprocess.run(
        [*compiler, *_FLAGS, *sources, "-o", str(target), "-lm"],
        check=True,
        # The compiler's own cache would outlive it in somebody's home.
        env={
            **os.environ,
            "ZIG_GLOBAL_CACHE_DIR": str(cache),
            "ZIG_LOCAL_CACHE_DIR": str(cache),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
