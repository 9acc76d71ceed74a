"""A gate that is looked at a thousand times is wrong no more often than its level says.

Figures of these simulations stand in the package's README. Seeds are fixed.
"""

import math

import numpy as np
import pytest

from slipstream_judge import means, shares, split
from tests.judge import paths

pytestmark = pytest.mark.slow  # thousands of simulated rollouts

LOOKS = 1000
LEVEL = 0.05
CHECKS = 8
BAND = math.log(1.1)

DRAWS: dict[str, paths.Draw] = {
    "normal": lambda rng, shape: rng.normal(0.0, 0.3, shape),
    "skewed": lambda rng, shape: rng.exponential(0.5, shape),
    # A fifth of the sessions miss the cache: twenty times slower.
    "two humps": lambda rng, shape: np.where(rng.random(shape) < 0.2, 3.0, 0.0),
    "heavy tails": lambda rng, shape: 0.3 * rng.standard_t(3, shape),
    # Whole steps: many sessions tie.
    "ties": lambda rng, shape: rng.integers(0, 3, shape) * np.float64(0.1),
}


def ever(looks: paths.Flags) -> float:
    """The share of gates that were decided at any look."""
    return float(looks.any(axis=0).mean())


@pytest.mark.parametrize("name", DRAWS)
def test_a_canary_at_its_margin_is_rarely_failed_and_rarely_passed(name: str) -> None:
    """The hardest null: as much worse as is allowed, so that failing and passing are both wrong."""
    rng = np.random.default_rng(1)
    canary = paths.finished(rng, DRAWS[name], LOOKS, 1000, 1)
    reference = paths.finished(rng, DRAWS[name], LOOKS, 1000, 1)
    assert ever(paths.decided(canary, reference, shift=0.0, level=LEVEL)) <= LEVEL
    assert ever(paths.decided(reference, canary, shift=0.0, level=LEVEL)) <= LEVEL


def test_an_equal_canary_is_never_failed_and_soon_passed() -> None:
    rng = np.random.default_rng(2)
    canary = paths.finished(rng, DRAWS["normal"], LOOKS, 1000, 1)
    reference = paths.finished(rng, DRAWS["normal"], LOOKS, 1000, 1)
    assert ever(paths.decided(canary, reference, shift=BAND, level=LEVEL / CHECKS)) == 0
    passed = paths.decided(reference, canary, shift=-BAND, level=LEVEL)
    assert float(passed[200].mean()) > 0.5
    assert ever(passed) > 0.99


def test_peeking_breaks_the_usual_test_on_the_same_gates() -> None:
    """What the others are measured against: were this one right, they would show nothing."""
    rng = np.random.default_rng(1)
    canary = paths.finished(rng, DRAWS["normal"], LOOKS, 1000, 1)
    reference = paths.finished(rng, DRAWS["normal"], LOOKS, 1000, 1)
    z = paths.z_scores(canary, reference)[29:]
    assert float((z > 1.645).mean()) == pytest.approx(0.05, abs=0.015)
    assert ever(z > 1.645) > 0.25


def test_eight_checks_together_fail_no_more_good_canaries_than_one_may() -> None:
    rng = np.random.default_rng(3)
    gates = 400
    canary, reference = (
        paths.finished(rng, DRAWS["normal"], LOOKS, gates * CHECKS, 1) for _ in range(2)
    )
    failed = paths.decided(canary, reference, shift=0.0, level=LEVEL / CHECKS).any(axis=0)
    assert float(failed.reshape(gates, CHECKS).any(axis=1).mean()) <= LEVEL


@pytest.mark.parametrize("name", DRAWS)
def test_a_canary_of_one_in_twenty_is_rarely_failed(name: str) -> None:
    rng = np.random.default_rng(4)
    canary = paths.finished(rng, DRAWS[name], 250, 1000, 1)
    reference = paths.finished(rng, DRAWS[name], 250, 1000, 19)
    assert ever(paths.decided(canary, reference, shift=0.0, level=LEVEL)) <= LEVEL
    assert ever(paths.decided(reference, canary, shift=0.0, level=LEVEL)) <= LEVEL


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_sessions_that_go_on_growing_mislead_nobody(memory: float) -> None:
    """Requests of a session are alike; taken one by one they make a third of the gates wrong."""
    rng = np.random.default_rng(5)
    canary, reference = (paths.growing(rng, 60, LOOKS, 300, memory=memory) for _ in range(2))
    for one, other in ((canary, reference), (reference, canary)):
        by_session = paths.decided(one.by_session, other.by_session, shift=0.0, level=LEVEL)
        assert ever(by_session) <= LEVEL
        by_request = paths.decided(one.by_request, other.by_request, shift=0.0, level=LEVEL)
        assert ever(by_request) > 1 / 3


def test_sessions_beyond_the_bound_mislead_nobody() -> None:
    """Room for a hundred of two thousand: arms that halve five times and start anew each time."""
    rng = np.random.default_rng(12)
    canary, halvings = paths.halved(rng, 100, 2 * LOOKS, 400)
    reference, _ = paths.halved(rng, 100, 2 * LOOKS, 400)
    assert halvings.max() >= 5
    level = LEVEL * 0.5**halvings
    assert ever(paths.decided(canary, reference, shift=0.0, level=level)) <= LEVEL
    assert ever(paths.decided(reference, canary, shift=0.0, level=level)) <= LEVEL


@pytest.mark.parametrize("share", [0.002, 0.02, 0.3])
def test_failures_at_their_margin_are_rarely_decided(share: float) -> None:
    margin = 0.01
    rng = np.random.default_rng(6)
    canary = paths.failures(rng, share + margin, LOOKS, 250)
    reference = paths.failures(rng, share, LOOKS, 250)
    assert ever(paths.share_decided(canary, reference, margin, LEVEL)) <= LEVEL
    assert ever(paths.share_decided(reference, canary, -margin, LEVEL)) <= LEVEL


def test_equal_failures_are_never_failed_and_in_the_end_passed() -> None:
    rng = np.random.default_rng(7)
    canary, reference = (paths.failures(rng, 0.001, LOOKS, 200) for _ in range(2))
    assert ever(paths.share_decided(canary, reference, 0.01, LEVEL / CHECKS)) == 0
    assert ever(paths.share_decided(reference, canary, -0.01, LEVEL)) > 0.25
    assert ever(paths.share_decided(reference, canary, -0.02, LEVEL)) > 0.95


def test_a_canary_that_fails_half_its_sessions_is_failed_within_forty() -> None:
    rng = np.random.default_rng(8)
    canary, reference = (paths.failures(rng, share, 40, 200) for share in (0.5, 0.005))
    assert ever(paths.share_decided(canary, reference, 0.01, LEVEL / CHECKS)) > 0.95


def test_growing_shares_mislead_nobody() -> None:
    """A session's share of failed requests is known the better the longer it lasts."""
    rng = np.random.default_rng(9)
    canary, reference = (paths.growing_failures(rng, 60, 100, 200, requests=4) for _ in range(2))
    assert ever(paths.share_decided(canary, reference, 0.0, LEVEL)) <= LEVEL
    assert ever(paths.share_decided(reference, canary, 0.0, LEVEL)) <= LEVEL


def test_arms_of_the_right_size_are_rarely_reported_and_of_the_wrong_one_soon() -> None:
    rng = np.random.default_rng(10)
    right = (rng.random((500, LOOKS)) < 0.05).cumsum(axis=1)
    reported = [
        any(split.is_mismatch(int(c), n + 1 - int(c), 0.05) for n, c in enumerate(gate))
        for gate in right
    ]
    assert sum(reported) <= 1
    doubled = (rng.random((100, LOOKS)) < 0.10).sum(axis=1)
    assert sum(split.is_mismatch(int(c), LOOKS - int(c), 0.05) for c in doubled) >= 90


@pytest.mark.parametrize(("canary", "reference"), [(8, 12), (30, 30), (40, 760), (500, 500)])
@pytest.mark.parametrize("level", [0.05, 0.005])
def test_the_interval_ends_where_the_evidence_does(
    canary: int, reference: int, level: float
) -> None:
    arms = means.Means(canary, 1.0, 0.1), means.Means(reference, 0.8, 0.2)
    low, high = means.difference(*arms, (level, level))
    error, freedom, size = means.welch(canary, 0.1, reference, 0.2)
    for t in ((0.2 - low) / error, (high - 0.2) / error):
        if math.isfinite(t):
            assert means.log_evidence(t, freedom, size) == pytest.approx(-math.log(level))


def test_the_evidence_is_what_direct_integration_gives() -> None:
    """Likelihood ratios of the noncentral t, averaged over the positive half of the prior."""
    from scipy import integrate, stats

    n1, n2, t = 12, 20, 2.3
    size, freedom = n1 * n2 / (n1 + n2), n1 + n2 - 2

    def ratio(effect: float) -> float:
        weight = 2 * stats.norm.pdf(effect, scale=0.5)
        shifted = stats.nct.pdf(t, freedom, effect * math.sqrt(size))
        return float(weight * shifted / stats.t.pdf(t, freedom))

    expected, _ = integrate.quad(ratio, 0, 6)
    assert means.log_evidence(t, freedom, size) == pytest.approx(math.log(expected), abs=1e-4)


def test_the_bets_are_fair_for_any_values_at_the_mean() -> None:
    """The expected wealth of one session is one: of failures, of shares, of values in between."""
    for values, weights in (
        ([0.0, 1.0], [0.98, 0.02]),
        ([0.0, 0.2, 1.0], [0.5, 0.4, 0.1]),
        ([0.3], [1.0]),
    ):
        mean = float(np.dot(values, weights))
        each = shares.log_wealth(np.array(values), np.eye(len(values)), [mean])[:, 0]
        assert np.dot(np.exp(each), weights) == pytest.approx(1.0)
        above = shares.log_wealth(np.array(values), np.eye(len(values)), [min(1.0, 1.2 * mean)])
        assert np.dot(np.exp(above[:, 0]), weights) < 1


def test_the_least_product_is_least() -> None:
    """Convexity in one figure: no share on a fine grid has less evidence than was found."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        canary, reference = rng.beta(1, 9, 40), rng.beta(1, 20, 60)
        margin = float(rng.uniform(-0.2, 0.2))
        grid = np.linspace(max(0.0, -margin), min(1.0, 1 - margin), 2002)[1:-1]
        ours = shares.log_wealth(canary, np.ones(40), grid + margin)
        theirs = shares.log_wealth(1 - reference, np.ones(60), 1 - grid)
        found = shares.log_evidence(list(canary), list(reference), margin)
        assert found <= (ours + theirs).min() + 1e-6
        assert found >= (ours + theirs).min() - 0.05
