"""Workload edit: whole-file rewrites, as coding agents ask for them.

A request holds a file of one release of a public package and its change towards a later release,
and asks for the whole new file: most of the answer stands in the prompt. What is measured is what
the model says; that it says the new file is not required.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream_bench.seeds import rng_of
from slipstream_bench.session import Session, Sessions

_CONTEXT_LINES = 2
# A version number in a file of one line is no edit that takes time.
MIN_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Edit:
    package: str
    path: str
    old: str
    new: str


def edits_between(
    package: str, old: Mapping[str, str], new: Mapping[str, str], max_characters: int
) -> tuple[Edit, ...]:
    """Files that both releases have, that differ, and whose lengths are within the limits.

    A change that touches more than half of the lines is a new file, not an edit.
    """
    changed = (
        Edit(package, path, old[path], new[path])
        for path in sorted(old.keys() & new.keys())
        if old[path] != new[path]
    )
    return tuple(
        edit
        for edit in changed
        if MIN_CHARACTERS <= len(edit.old) <= max_characters
        and len(edit.new) <= max_characters
        and _kept_share(edit) > 0.5
    )


def _kept_share(edit: Edit) -> float:
    old, new = edit.old.splitlines(), edit.new.splitlines()
    return difflib.SequenceMatcher(a=old, b=new, autojunk=False).ratio()


def prompt(edit: Edit) -> str:
    change = "\n".join(
        difflib.unified_diff(
            edit.old.splitlines(),
            edit.new.splitlines(),
            edit.path,
            edit.path,
            n=_CONTEXT_LINES,
            lineterm="",
        )
    )
    return (
        f"This is {edit.path} of {edit.package}:\n\n```python\n{edit.old}```\n\n"
        f"Apply this change:\n\n```diff\n{change}\n```\n\n"
        "Answer with the whole new file in one code block and nothing else."
    )


def sessions(seed: str, edits: Sequence[Edit], *, has_prediction: bool) -> Sessions:
    """Without end: every edit once in a shuffled order, then again in another."""
    rng = rng_of(seed, "edit")
    while True:
        for edit in rng.sample(edits, len(edits)):
            yield session(edit, has_prediction=has_prediction)


def session(edit: Edit, *, has_prediction: bool) -> Session:
    fields: dict[str, Any] = {}
    if has_prediction:
        fields["prediction"] = {"type": "content", "content": edit.old}
    return Session(opening=({"role": "user", "content": prompt(edit)},), fields=fields)
