"""Which descriptions no model can have, whatever file they came from."""

import math
from collections.abc import Iterator

from slipstream_weights.checkpoint import Checkpoint, Experts, Llama3RopeScaling, RopeFactors
from slipstream_weights.errors import ModelInvalid

# A damaged count must not be enumerated. The largest public models have about 130 layers, 512
# experts a layer and 30,000 experts in all.
MAX_LAYERS = 4096
_MAX_EXPERTS = 65_536
_MAX_MTP_LAYERS = 8


def check(checkpoint: Checkpoint, path: str) -> None:
    """Raises ModelInvalid with the first thing that is impossible."""
    for fault in _faults(checkpoint):
        raise ModelInvalid(fault, path)


def first_layers(count: int, num_layers: int) -> frozenset[int]:
    """The first `count` of a number of layers that is not checked yet: never a great many."""
    return frozenset(range(min(count, num_layers, MAX_LAYERS)))


def _faults(checkpoint: Checkpoint) -> Iterator[str]:
    positive = {
        "vocabulary size": checkpoint.vocab_size,
        "hidden size": checkpoint.hidden_size,
        "intermediate size": checkpoint.intermediate_size,
        "number of layers": checkpoint.num_layers,
        "number of heads": checkpoint.num_heads,
        "number of KV heads": checkpoint.num_kv_heads,
        "head size": checkpoint.head_dim,
        "context length": checkpoint.max_positions,
        "rope base": checkpoint.rope_theta,
        "norm epsilon": checkpoint.rms_norm_eps,
    }
    yield from _not_positive(positive)
    if checkpoint.num_layers > MAX_LAYERS:
        yield f"the number of layers is {checkpoint.num_layers}"
    if not 0 <= checkpoint.num_mtp_layers <= _MAX_MTP_LAYERS:
        yield f"the number of layers for later tokens is {checkpoint.num_mtp_layers}"
    if checkpoint.num_heads % checkpoint.num_kv_heads:
        yield f"{checkpoint.num_heads} heads cannot share {checkpoint.num_kv_heads} KV heads"
    if checkpoint.head_dim % 2:
        yield f"rotary embedding needs an even head size, not {checkpoint.head_dim}"
    yield from _rotary_faults(checkpoint)
    if checkpoint.experts is not None:
        yield from _experts_faults(checkpoint.experts, checkpoint.num_layers)


def _rotary_faults(checkpoint: Checkpoint) -> Iterator[str]:
    turned = checkpoint.rotary_dim
    if turned % 2 or not 0 < turned <= checkpoint.head_dim:
        yield f"rotary embedding over {turned} of {checkpoint.head_dim} dimensions"
    match checkpoint.rope_scaling:
        case Llama3RopeScaling() as scaling:
            yield from _not_positive(
                {
                    "factor of the rope scaling": scaling.factor,
                    "low frequency factor": scaling.low_freq_factor,
                    "high frequency factor": scaling.high_freq_factor,
                    "original context length": scaling.original_max_position,
                }
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                yield "the high frequency factor is not above the low one"
        case RopeFactors(factors):
            if len(factors) != turned // 2:
                yield f"{len(factors)} rotary factors for {turned // 2} frequencies"
            for factor in factors:
                yield from _not_positive({"rotary factor": factor})
        case None:
            pass


def _experts_faults(experts: Experts, num_layers: int) -> Iterator[str]:
    yield from _not_positive(
        {
            "number of experts": experts.num_experts,
            "number of experts a token": experts.num_active,
            "intermediate size of an expert": experts.intermediate_size,
            "number of groups of experts": experts.num_groups,
            "number of groups a token": experts.num_active_groups,
            "factor of the routed experts": experts.routed_scale,
        }
    )
    if experts.num_experts * num_layers > _MAX_EXPERTS:
        yield f"{experts.num_experts} experts in each of {num_layers} layers"
    if experts.num_shared < 0:
        yield f"the number of shared experts is {experts.num_shared}"
    if experts.num_experts % experts.num_groups or experts.num_active_groups > experts.num_groups:
        yield (
            f"{experts.num_active_groups} of {experts.num_groups} groups"
            f" of {experts.num_experts} experts"
        )
    size = experts.num_experts // experts.num_groups
    if experts.num_groups > 1 and size < 2:
        yield f"groups of {size} expert: a group is judged by its two best"
    if experts.num_active > experts.num_active_groups * size:
        yield f"{experts.num_active} experts a token of {experts.num_active_groups * size}"


def _not_positive(named: dict[str, int | float]) -> Iterator[str]:
    for name, value in named.items():
        if not (math.isfinite(value) and value > 0):
            yield f"the {name} is {value}"
