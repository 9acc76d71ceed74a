"""What a process that generates tokens is asked, and how its answer is timed; standard library.

Our engine and each peer run in a process and an environment of their own and read jobs from stdin,
one JSON line each, so that the same lines time all of them.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """Continue every prompt by exactly `num_tokens`, the most likely ones, all at the same time."""

    prompts: list[list[int]]
    num_tokens: int


@dataclass(frozen=True)
class Timing:
    """Seconds from the job's start: its first token and its last one, of whichever prompts."""

    first_s: float
    last_s: float
    num_tokens: int


def serve(versions: dict[str, str], generate: Callable[[Job], Timing]) -> None:
    """Tell that the model is loaded, then answer jobs until stdin ends."""
    # Libraries print to stdout what they like: the answers have a descriptor of their own.
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        print(json.dumps(versions), file=answers, flush=True)
        for line in sys.stdin:
            timing = generate(Job(**json.loads(line)))
            print(json.dumps(asdict(timing)), file=answers, flush=True)
