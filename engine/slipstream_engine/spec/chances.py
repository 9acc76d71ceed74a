"""How likely drafted tokens are right, by how much agreed before them.

Two laws, found by counting over 240,000 tokens of changed files (the packages of `make
bench-drafters`, SmolLM2's tokens); both hold within a third or so from one token to a thousand.
They are where estimates begin: `acceptance` corrects them by what is accepted.
"""

# After n tokens that stood in the text before, the next one is another with this chance over n.
_WRONG_AFTER_MATCH = 0.9
# The n-th token in agreement with a text that is repeated is the last one with this chance over n.
_WRONG_IN_AGREEMENT = 0.45
_LONGEST = 4096

_MATCH = tuple(1 - _WRONG_AFTER_MATCH / max(length, 1) for length in range(_LONGEST))
_AGREEMENT = tuple(1 - _WRONG_IN_AGREEMENT / max(length, 1) for length in range(_LONGEST))


def after_match(length: int, count: int) -> tuple[float, ...]:
    """Of each of `count` tokens that once followed the last `length` tokens, if those before it are
    right: every one that is makes the match longer."""
    start = min(length, _LONGEST - count)
    return _MATCH[start : start + count]


def in_agreement(length: int, count: int) -> tuple[float, ...]:
    """Of each of the next `count` tokens of a text that the last `length` tokens agreed with."""
    start = min(length, _LONGEST - count)
    return _AGREEMENT[start : start + count]
