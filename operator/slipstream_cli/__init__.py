"""The `slipstream` command: one file per command group."""

import os
import signal

if os.getpid() == 1:
    # A container's first process ignores SIGTERM until it handles it, and importing the rest takes
    # seconds: a Pod that is deleted at once would run and hold its devices for its whole grace
    # period. Nothing has begun yet; each program takes the signal over once it runs.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
