"""Which drafted tokens are the model's own: one rule for chains and trees.

Every row of a chunk is drawn with the request's own sampling and random numbers, as if the tokens
before it were the answer already. Follow the drawn tokens for as long as the draft has them: what
was drawn on the way is what would have been drawn one token at a time. A draft drawn from known
probabilities (`Proposal`) needs no other rule, only another way to draw (`sampler.py`).
"""

from collections.abc import Sequence

from slipstream_engine.spec.draft import NO_DRAFT, Draft


def path(draft: Draft, drawn: Sequence[int]) -> list[int]:
    """The rows that lead through the draft, the first of them 0.

    drawn: [1 + drafted tokens], what follows the sequence's last token and each drafted one. The
    tokens of the answer are `drawn[row]` for these rows: all but the last one are in the draft.
    """
    rows = [0]
    if not draft.parents:
        for index, token in enumerate(draft.tokens):
            if drawn[index] != token:
                break
            rows.append(index + 1)
        return rows
    for index, token in enumerate(draft.tokens):
        # In topological order: what follows the path so far comes after it.
        if draft.parents[index] + 1 == rows[-1] and token == drawn[rows[-1]]:
            rows.append(index + 1)
    return rows


def prefixes(draft: Draft) -> list[tuple[int, ...]]:
    """The drafted tokens up to and with each of them, and nothing for row 0: [1 + tokens]."""
    found: list[tuple[int, ...]] = [()]
    for index, token in enumerate(draft.tokens):
        found.append((*found[draft.parent(index) + 1], token))
    return found


def depths(draft: Draft) -> list[int]:
    """How far each row is from row 0: [1 + tokens]."""
    found = [0]
    for index in range(len(draft.tokens)):
        found.append(found[draft.parent(index) + 1] + 1)
    return found


def parents(draft: Draft) -> tuple[int, ...]:
    """The row before each row, -1 for row 0; () for a chain."""
    return (-1, *(parent + 1 for parent in draft.parents)) if draft.parents else ()


def ancestors(parents: Sequence[int]) -> tuple[int, ...]:
    """Which rows each row sees, itself included, as a mask (bit j: row j); () for a chain."""
    masks: list[int] = []
    for row, parent in enumerate(parents):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << row)
    return tuple(masks)


def cut(draft: Draft, count: int) -> Draft:
    """Its first tokens, which are a draft too."""
    if count >= len(draft.tokens):
        return draft
    if count == 0:
        return NO_DRAFT
    return Draft(
        draft.tokens[:count],
        draft.parents[:count],
        draft.accept[:count],
        draft.source,
        draft.proposals[:count],
    )
