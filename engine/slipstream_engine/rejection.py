"""A drafted token is kept or replaced so that what comes out has the model's own distribution.

Leviathan et al. 2023 and Chen et al. 2023: a token x that was drawn from q is kept with the
probability min(1, p(x) / q(x)); else one is drawn from what p has more than q. Lossless only if q
is what x was really drawn from, so a draft carries it (`Proposal`); p is the request's own
distribution after all cuts. Two random numbers a token, of streams of their own.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slipstream_engine.spec.draft import Proposal

_Array = NDArray[np.float64]


def token(target: _Array, drafted: int, proposal: Proposal, uniform: Callable[[str], float]) -> int:
    """The token of one row.

    target: [vocabulary], adds up to 1. uniform: a number in [0, 1) of the stream that is named.
    """
    place = proposal.tokens.index(drafted)
    if uniform("accept") * proposal.probs[place] < target[drafted]:
        return drafted
    rest = target.copy()
    tokens = np.array(proposal.tokens, dtype=np.int64)
    rest[tokens] = np.maximum(0.0, rest[tokens] - np.array(proposal.probs))
    sums = rest.cumsum()
    # Where rounding leaves nothing, p and q are the same, and the token would have been kept.
    index = int(sums.searchsorted(uniform("rest") * sums[-1], side="right"))
    return index if index < len(rest) and rest[index] > 0 else int(rest.argmax())
