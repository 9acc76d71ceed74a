"""What a process that generates tokens is asked, and how its answer is timed; standard library.

Our engine and each peer run in a process and an environment of their own and read jobs from stdin,
one JSON line each, so that the same lines time all of them.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TypeVar


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


@dataclass(frozen=True)
class DraftedJob:
    """Continue every prompt by exactly `num_tokens`, with the help of drafts.

    `drafts`: how they are made, as the process that is asked names it; `prediction`: what the
    answer to the only prompt will probably repeat. `answer`: what it must be, token by token: the
    logit of its next token is raised above all others wherever a token is drawn, and nothing else
    is changed. Without one the tokens are drawn at a temperature of 1 with these seeds.
    """

    prompts: list[list[int]]
    num_tokens: int
    drafts: str
    prediction: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    seed: int = 0


@dataclass(frozen=True)
class Drafted:
    """The answers, and what came between the first token and the end of the first answer to end.

    So long is the batch as large as it was asked to be. Seconds are from the job's start; the
    tokens of the first step do not count. A drafted token is accepted when it became output.
    """

    first_s: float
    last_s: float
    answers: list[list[int]]
    num_tokens: int
    num_steps: int
    num_drafted: int
    num_accepted: int


J = TypeVar("J", Job, DraftedJob)


def serve(
    versions: dict[str, str], job: type[J], generate: Callable[[J], Timing | Drafted]
) -> None:
    """Tell that the model is loaded, then answer jobs until stdin ends."""
    # Libraries print to stdout what they like: the answers have a descriptor of their own.
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        print(json.dumps(versions), file=answers, flush=True)
        for line in sys.stdin:
            found = generate(job(**json.loads(line)))
            print(json.dumps(asdict(found)), file=answers, flush=True)
