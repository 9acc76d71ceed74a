"""The roofline against AIConfigurator 0.12: its static estimates, vLLM, 4096 + 512 tokens.

The oracle is itself a model on measured kernels; these tests say that four figures a card and an
all-reduce table are enough to agree with it, not that an engine reaches either.
"""

from collections.abc import Sequence

import pytest

from slipstream_operator.planner.footprint import Use
from slipstream_operator.planner.layouts import Estimate, Workload, estimate
from slipstream_operator.planner.roofline import Split
from slipstream_operator.planner.tiers import Tier
from tests.operator.planner import support

# (tensor ranks, sequences, ms to the first token of one prompt, ms a token)
Oracle = Sequence[tuple[int, int, float | None, float]]
QWEN3_32B: dict[str, Oracle] = {
    "rtx-pro-6000": (
        (1, 1, 743.5, 46.63),
        (1, 32, None, 72.32),
        (2, 1, 530.4, 24.61),
        (2, 32, None, 39.67),
        (4, 1, 496.7, 14.48),
        (4, 32, None, 26.17),
        (8, 1, 529.4, 10.66),
        (8, 32, None, 22.40),
    ),
    "l40s": (
        (1, 1, 1307.8, 88.80),
        (1, 32, None, 163.95),
        (2, 1, 941.5, 45.62),
        (2, 32, None, 81.09),
        (4, 1, 2538.2, 27.14),
        (4, 32, None, 58.94),
        (8, 1, 5038.4, 16.73),
        (8, 32, None, 52.58),
    ),
}
# Held out: nothing was fitted to it.
LLAMA_70B: dict[str, Oracle] = {
    "rtx-pro-6000": (
        (1, 1, 1486.5, 96.88),
        (1, 32, None, 131.04),
        (2, 1, 1076.9, 50.69),
        (2, 32, None, 70.48),
        (4, 1, 995.2, 29.09),
        (4, 32, None, 45.24),
        (8, 1, 1044.5, 18.01),
        (8, 32, None, 41.69),
    ),
    "l40s": (
        (1, 1, 2634.8, 196.38),
        (1, 32, None, 294.35),
        (2, 1, 1973.4, 100.38),
        (2, 32, None, 150.00),
        (4, 1, 5130.8, 55.48),
        (4, 32, None, 105.88),
        (8, 1, 10048.9, 30.38),
        (8, 32, None, 106.31),
    ),
}
# Held out as well; scales per tensor, keys and values in 16 bits. Prefill is no match: 31 % on one
# GPU, since the classes' efficiency is that of scales per block, as most checkpoints have them.
LLAMA_70B_FP8: dict[str, Oracle] = {
    "rtx-pro-6000": (
        (1, 1, None, 52.69),
        (1, 32, None, 82.29),
        (2, 1, None, 28.60),
        (2, 32, None, 46.02),
        (4, 1, None, 17.52),
        (4, 32, None, 32.79),
        (8, 1, None, 13.83),
        (8, 32, None, 36.24),
    ),
    "l40s": (
        (1, 1, None, 117.50),
        (1, 32, None, 194.73),
        (2, 1, None, 61.62),
        (2, 32, None, 103.59),
        (4, 1, None, 33.83),
        (4, 32, None, 85.29),
        (8, 1, None, 20.87),
        (8, 32, None, 95.10),
    ),
}
TIERS = {1: Tier.SameRoot, 2: Tier.SameRoot, 4: Tier.SameNuma, 8: Tier.SameNode}


def predicted(model: str, card: str, tensor: int, sequences: int) -> Estimate:
    split = Split(tensor, 1, TIERS[tensor], TIERS[tensor])
    workload = Workload(prompt_tokens=4096, output_tokens=512, sequences=sequences)
    return estimate(
        support.facts(model), support.card(card), split, workload, Use(chunk_tokens=4096)
    )


def errors(model: str, card: str, oracle: Oracle) -> tuple[list[float], list[float]]:
    """Of decode and of prefill."""
    decode, prefill = [], []
    for tensor, sequences, ttft_ms, tpot_ms in oracle:
        found = predicted(model, card, tensor, sequences)
        decode.append(abs(found.tpot_ms / tpot_ms - 1))
        if ttft_ms is not None:
            prefill.append(abs(found.ttft_ms / ttft_ms - 1))
    return decode, prefill


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("card", "decode_mean", "decode_most", "prefill_mean", "prefill_most"),
    [("rtx-pro-6000", 0.019, 0.046, 0.018, 0.055), ("l40s", 0.024, 0.059, 0.028, 0.088)],
)
def test_the_calibration_model_is_within_the_errors_of_the_fit(
    card: str,
    decode_mean: float,
    decode_most: float,
    prefill_mean: float,
    prefill_most: float,
) -> None:
    decode, prefill = errors("qwen3-32b", card, QWEN3_32B[card])
    assert mean(decode) <= decode_mean
    assert max(decode) <= decode_most
    assert mean(prefill) <= prefill_mean
    assert max(prefill) <= prefill_most


@pytest.mark.parametrize("card", LLAMA_70B)
def test_the_held_out_model_is_within_the_errors_of_the_fit(card: str) -> None:
    decode, prefill = errors("llama-3.3-70b", card, LLAMA_70B[card])
    # In bfloat16; the worst of 17 % that is known is from fp8.
    assert mean(decode) <= 0.045
    assert max(decode) <= 0.08
    assert mean(prefill) <= 0.06
    assert max(prefill) <= 0.08


@pytest.mark.parametrize("card", LLAMA_70B_FP8)
def test_decoding_weights_in_8_bits_is_within_the_errors_that_are_known(card: str) -> None:
    decode, _ = errors("llama-3.1-70b-fp8", card, LLAMA_70B_FP8[card])
    assert mean(decode) <= 0.045
    assert max(decode) <= 0.17


@pytest.mark.parametrize(
    ("card", "tensor", "talk_ms"),
    [
        ("rtx-pro-6000", 2, 1.7),
        ("rtx-pro-6000", 4, 8.1),
        ("rtx-pro-6000", 8, 13.2),
        ("l40s", 4, 18.2),
        ("l40s", 8, 33.9),
    ],
)
def test_what_32_sequences_spend_on_all_reduce(card: str, tensor: int, talk_ms: float) -> None:
    found = predicted("qwen3-32b", card, tensor, 32)
    assert found.tpot_talk_ms == pytest.approx(talk_ms, rel=0.20)


def test_on_cards_of_pcie_4_more_than_two_ranks_ruin_the_time_to_the_first_token() -> None:
    two, four, eight = (predicted("qwen3-32b", "l40s", n, 1).ttft_ms for n in (2, 4, 8))
    assert four > 2.4 * two
    assert eight > 1.9 * four
