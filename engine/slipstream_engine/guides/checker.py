"""Whether a guide can be compiled, found out before anything is answered and at nobody's cost.

Every text is compiled once in a process of its own (`trial.py`), one at a time, and what came of
it is remembered: a text that is too much work costs its second of a processor once. What passed
takes the rank no longer than it took here. Asyncio's side waits; no stream does.
"""

import asyncio
import dataclasses
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

from slipstream_engine.guides import frames
from slipstream_engine.guides.frames import Outcome
from slipstream_engine.guides.spec import Guide, GuideError, Vocabulary

_MODULE = "slipstream_engine.guides.trial"
# The trial ends by its processor time; this is for one that sleeps, or a host that has no time.
_PATIENCE_S = 15.0
_NUM_REMEMBERED = 1024
_TOO_MUCH = "it takes more than 1 s of a processor or 512 MB to compile"


class Checker:
    """The first guide waits for the process: 0.5 s, and 54 MB (104 for 151,936 tokens)."""

    def __init__(self, vocabulary: Vocabulary, module: str = _MODULE) -> None:
        self._vocabulary = vocabulary
        self._module = module
        self._thread = ThreadPoolExecutor(1, "guides")
        self._process: subprocess.Popen[bytes] | None = None
        # By the digest of a guide.
        self._known: OrderedDict[bytes, Outcome] = OrderedDict()

    async def checked(self, guide: Guide) -> Guide:
        """The guide as the rank takes it. Raises GuideError."""
        outcome = self._known.get(guide.digest)
        if outcome is None:
            loop = asyncio.get_running_loop()
            outcome = await loop.run_in_executor(self._thread, self._outcome, guide)
        if outcome.error:
            raise GuideError(outcome.error)
        return dataclasses.replace(guide, text=outcome.text)

    def close(self) -> None:
        """End the process; nothing is checked any more."""
        if (process := self._process) is not None:
            process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def _outcome(self, guide: Guide) -> Outcome:
        """In the one thread."""
        known = self._known.get(guide.digest)
        if known is not None:
            return known
        outcome = self._ask(self._started(), guide)
        if outcome is None:
            self._end()
            outcome = Outcome(error=_TOO_MUCH)
        self._known[guide.digest] = outcome
        if len(self._known) > _NUM_REMEMBERED:
            self._known.popitem(last=False)
        return outcome

    def _started(self) -> subprocess.Popen[bytes]:
        """Raises RuntimeError. A process that died between two guides is no fault of the next."""
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            command = [sys.executable, "-m", self._module]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
            if self._ask(self._process, self._vocabulary) is None:
                self._end()
                raise RuntimeError("no guide can be tried: the process does not start")
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], document: object) -> Outcome | None:
        """None where the process has ended or had to be."""
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process without pipes")
        timer = Timer(_PATIENCE_S, process.kill)
        timer.start()
        try:
            frames.write(process.stdin, document)
            body = frames.read(process.stdout)
        except BrokenPipeError:
            body = None
        finally:
            timer.cancel()
        return None if body is None else frames.decode(body, Outcome)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
