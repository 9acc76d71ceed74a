"""Commands on their way into a rank: a request with a guide waits beside them to be compiled.

Its thread compiles without the interpreter's lock, so no step waits for a guide; nor does any
command but the abort of such a request, which needs to be found here.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from slipstream_engine.guides.compiled import Compiler
from slipstream_engine.guides.spec import Guide, GuideError
from slipstream_engine.messages import Abort, Submit, ToRank, Words


class Intake:
    """For one thread that reads commands."""

    def __init__(self, put: Callable[[ToRank | None], None], compiler: Compiler) -> None:
        """`put` may be called from two threads."""
        self._put = put
        self._compiler = compiler
        self._to_do = queue.SimpleQueue[Words | tuple[Submit, Guide]]()
        # Requests that are not aborted yet.
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        # A compilation that hangs is not waited for at the end.
        threading.Thread(target=self._work, name="guides", daemon=True).start()

    def take(self, command: ToRank | None) -> None:
        match command:
            case Words():
                self._to_do.put(command)
            case Submit(request) if (guide := request.guide) and not self._compiler.has(guide):
                with self._lock:
                    self._waiting.add(request.id)
                self._to_do.put((command, guide))
            case _:
                if isinstance(command, Abort):
                    with self._lock:
                        self._waiting.discard(command.request_id)
                self._put(command)

    def _work(self) -> None:
        while True:
            to_do = self._to_do.get()
            if isinstance(to_do, Words):
                self._compiler.learn(to_do.vocabulary)
            else:
                self._compile(*to_do)

    def _compile(self, command: Submit, guide: Guide) -> None:
        # An error is kept, and told when the request is submitted.
        with suppress(GuideError):
            self._compiler.compiled(guide)
        with self._lock:
            if command.request.id in self._waiting:
                self._waiting.remove(command.request.id)
                self._put(command)
