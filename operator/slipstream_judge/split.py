"""Whether the arms are as large as the weights say: if not, no comparison can be trusted."""

import math
from typing import Final

from scipy.special import betaln

# The usual level of this test: it guards every gate, and the deviations that matter are large.
LEVEL: Final = 0.001


def is_mismatch(canary: int, reference: int, canary_share: float) -> bool:
    """Sessions against canary's expected share of them; wrong, ever, with probability `LEVEL`.

    The evidence is the binomial likelihood's mixture over all shares (a Beta(1, 1) prior) against
    the expected one: Lindon and Malek 2022, "Anytime-valid inference for multinomial count data".
    """
    expected = canary * math.log(canary_share) + reference * math.log1p(-canary_share)
    mixture = float(betaln(1 + canary, 1 + reference))
    return mixture - expected >= -math.log(LEVEL)
