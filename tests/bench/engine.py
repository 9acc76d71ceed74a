"""`make bench-engine`: the engine against its peers on this machine, with the same SmolLM2 weights.

    python -m tests.bench.engine [--only ROW]… [--rounds 5] [--peers-from FOLDER]

How: `comparison.py`. Nothing is drafted: these are the figures of every step's single tokens; what
drafts are worth is `make bench-edits`.

Writes build/bench/engine.json. Exit code 1: a floor was missed; 2: a row could not be measured.
"""

import sys

from tests.bench import comparison
from tests.bench.engine_rows import PAIRS

if __name__ == "__main__":
    sys.exit(comparison.main(PAIRS, "engine.json", __doc__))
