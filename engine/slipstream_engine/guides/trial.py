"""Compiles guides where it may fail: in a process that has one second of a processor for each.

Started by `checker.py`; talks with it over its standard input and output. Too slow a guide is
ended by the kernel together with the process, as is one that takes too much memory: the library's
own limits count most steps but not all.
"""

import os
import resource
import signal
import sys
from pathlib import Path

from slipstream_engine.guides import compiled, frames
from slipstream_engine.guides.frames import Outcome
from slipstream_engine.guides.spec import Guide, GuideError, Vocabulary

PROCESSOR_S = 1.0
MEMORY_BYTES = 512 << 20


def main() -> int:
    """Until the other side closes. Streams of others come first: the lowest priority but idle."""
    os.nice(15)
    frame = frames.read(sys.stdin.buffer)
    if frame is None:
        return 0
    tokenizer = compiled.tokenizer(frames.decode(frame, Vocabulary))
    _limit_memory()
    frames.write(sys.stdout.buffer, Outcome())
    while (frame := frames.read(sys.stdin.buffer)) is not None:
        guide = frames.decode(frame, Guide)
        # Counts this process's time alone; nothing catches its signal.
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S)
        try:
            guide = compiled.as_lark(guide)
            compiled.compile_guide(tokenizer, guide)
            outcome = Outcome(text=guide.text)
        except GuideError as error:
            outcome = Outcome(error=str(error))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        frames.write(sys.stdout.buffer, outcome)
    return 0


def _limit_memory() -> None:
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = num_pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    sys.exit(main())
