"""`make bench-edits`: what drafts are worth, with the same SmolLM2 weights on both sides.

    python -m tests.bench.edits [--only ROW]… [--rounds 5] [--peers-from FOLDER]

How: `comparison.py`. Edits are files changed between two releases of public packages, fetched when
this runs; prompts, predictions and answers are tokens of the GGUF's own tokeniser, the same for
both sides. A model of 135M does not rewrite a file by itself, so every answer is *forced* to the
new file: before a token is drawn, wherever that is, the logit of the answer's next token is raised
above all others, which costs both sides one number a row. Every forward pass, every draw over the
whole vocabulary and every verification is done as ever, for drafts that turn out wrong too; nothing
jumps forward. So acceptance is that of a model that makes the edit without a mistake. What a side
said is compared with what it had to say.

Writes build/bench/edits.json. Exit code 1: a floor was missed; 2: a row could not be measured.
"""

import sys

from tests.bench import comparison
from tests.bench.edits_rows import PAIRS

if __name__ == "__main__":
    sys.exit(comparison.main(PAIRS, "edits.json", __doc__))
