"""What a config.json says: meanings, defaults, and refusals of what no model can have."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_weights import huggingface, sizes
from slipstream_weights.checkpoint import Checkpoint, expected_tensors
from slipstream_weights.errors import ModelInvalid
from tests.depth import cases
from tests.engine import tiny

_PATH = "model/config.json"


def _describe(document: dict[str, Any]) -> Checkpoint:
    checkpoint = huggingface.describe(document, _PATH)
    sizes.check(checkpoint, _PATH)
    return checkpoint


_WINDOWS: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({"sliding_window": None}, 8192),
    "larger than the context": ({"sliding_window": 10_000}, 8192),
    "smaller than the context": ({"sliding_window": 1000}, 1000),
    "the first Mistral's where none is named": ({}, 4096),
}


@pytest.mark.parametrize(("changes", "positions"), _WINDOWS.values(), ids=_WINDOWS)
def test_a_context_of_mistral_ends_with_its_window(changes: dict[str, Any], positions: int) -> None:
    document = tiny.config("mistral", max_position_embeddings=8192)
    del document["sliding_window"]
    assert _describe(document | changes).max_positions == positions


def test_a_window_is_no_matter_for_others() -> None:
    document = tiny.config("qwen3", sliding_window=16, use_sliding_window=False)
    assert _describe(document).max_positions == 512


_TURNED: dict[str, tuple[str, dict[str, Any], int]] = {
    "all of Llama's": ("llama", {}, 16),
    "half of GLM's where none is named": ("glm4_moe", {"partial_rotary_factor": None}, 8),
    "a quarter": ("glm4_moe", {"partial_rotary_factor": 0.25}, 4),
    "among the rope parameters": (
        "glm4_moe",
        {"rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 500.0}},
        16,
    ),
}


@pytest.mark.parametrize(("architecture", "changes", "turned"), _TURNED.values(), ids=_TURNED)
def test_how_much_of_a_head_is_turned(
    architecture: str, changes: dict[str, Any], turned: int
) -> None:
    assert _describe(tiny.config(architecture, **changes)).rotary_dim == turned


_BIASES: dict[str, tuple[str, dict[str, Any], bool, bool]] = {
    "llama has none": ("llama", {}, False, False),
    "llama with": ("llama", {"attention_bias": True}, True, True),
    "mistral never": ("mistral", {"attention_bias": True}, False, False),
    "qwen2 always, but at the output": ("qwen2", {}, True, False),
    "qwen3_moe with": ("qwen3_moe", {"attention_bias": True}, True, True),
    "glm with, but at the output": ("glm4_moe", {"attention_bias": True}, True, False),
    "glm without": ("glm4_moe", {"attention_bias": False}, False, False),
}


@pytest.mark.parametrize(
    ("architecture", "changes", "qkv", "output"), _BIASES.values(), ids=_BIASES
)
def test_which_projections_have_biases(
    architecture: str, changes: dict[str, Any], qkv: bool, output: bool
) -> None:
    checkpoint = _describe(tiny.config(architecture, **changes))
    assert (checkpoint.has_qkv_bias, checkpoint.has_output_bias) == (qkv, output)
    expected = expected_tensors(checkpoint)
    assert ("model.layers.1.self_attn.k_proj.bias" in expected) == qkv
    assert ("model.layers.1.self_attn.o_proj.bias" in expected) == output


def test_experts_say_how_a_token_is_routed() -> None:
    experts = _describe(tiny.config("glm4_moe")).experts
    assert experts is not None
    assert (experts.num_experts, experts.num_active, experts.num_shared) == (8, 3, 2)
    assert (experts.num_groups, experts.num_active_groups) == (2, 1)
    assert (experts.scoring, experts.routed_scale) == ("sigmoid", 1.5)
    assert experts.has_normalised_weights
    assert experts.has_correction_bias
    for is_normalised in (False, True):
        document = tiny.config("qwen3_moe", norm_topk_prob=is_normalised)
        experts = _describe(document).experts
        assert experts is not None
        assert experts.has_normalised_weights == is_normalised
        assert (experts.scoring, experts.routed_scale) == ("softmax", 1.0)
        assert not experts.has_correction_bias


def test_shared_experts_are_one_mlp_as_wide_as_all() -> None:
    expected = expected_tensors(_describe(tiny.config("glm4_moe")))
    assert expected["model.layers.1.mlp.shared_experts.down_proj.weight"] == (64, 64)
    alone = expected_tensors(_describe(tiny.config("glm4_moe", n_shared_experts=0)))
    assert not any("shared_experts" in name for name in alone)


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no experts": ("qwen3_moe", {"num_experts": 0}, "number of experts is 0"),
    "no count of experts": ("qwen3_moe", {"num_experts": None}, "num_experts is None"),
    "no experts a token": ("qwen3_moe", {"num_experts_per_tok": 0}, "experts a token is 0"),
    "more experts a token than there are": (
        "qwen3_moe",
        {"num_experts_per_tok": 7},
        "7 experts a token of 6",
    ),
    "more than the chosen groups have": (
        "glm4_moe",
        {"num_experts_per_tok": 5},
        "5 experts a token of 4",
    ),
    "unequal groups": ("glm4_moe", {"n_group": 3}, "1 of 3 groups of 8 experts"),
    "more groups than there are": ("glm4_moe", {"topk_group": 3}, "3 of 2 groups"),
    "groups of one": ("glm4_moe", {"n_group": 8, "topk_group": 8}, "groups of 1 expert"),
    "no groups": ("glm4_moe", {"n_group": 0}, "number of groups of experts is 0"),
    "experts without an inside": ("qwen3_moe", {"moe_intermediate_size": -1}, "expert is -1"),
    "fewer shared experts than none": ("glm4_moe", {"n_shared_experts": -1}, "shared experts"),
    "a factor of nothing": ("glm4_moe", {"routed_scaling_factor": 0.0}, "routed experts is 0.0"),
    "a great many experts": ("qwen3_moe", {"num_experts": 10**12}, "1000000000000 experts in"),
    "a great many layers": ("qwen3_moe", {"num_hidden_layers": 10**12}, "number of layers is 10"),
    "a great many later layers": (
        "glm4_moe",
        {"num_nextn_predict_layers": 10**12},
        "layers for later tokens",
    ),
    "a step of none": ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    "dense layers by name": ("qwen3_moe", {"mlp_only_layers": ["1"]}, "list of integers"),
    "a part of Qwen's heads turned": (
        "qwen3_moe",
        {"partial_rotary_factor": 0.5},
        "over 0.5 of a head is not supported",
    ),
    "nothing turned": ("glm4_moe", {"partial_rotary_factor": 0.0}, "partial_rotary_factor is 0.0"),
    "more than a head turned": ("glm4_moe", {"partial_rotary_factor": 1.5}, "factor is 1.5"),
    "an odd part turned": ("glm4_moe", {"partial_rotary_factor": 0.2}, "over 3 of 16"),
    "a window of nothing": ("mistral", {"sliding_window": 0}, "context length is 0"),
    "a window as text": ("mistral", {"sliding_window": "4096"}, "sliding_window is '4096'"),
    "rope parameters as a list": ("llama", {"rope_parameters": [1]}, "rope parameters"),
    "no stretch": ("llama", {"rope_scaling": _LLAMA3 | {"factor": 0}}, "rope scaling is 0.0"),
    "a stretch without a slope": (
        "llama",
        {"rope_scaling": _LLAMA3 | {"high_freq_factor": 1.0}},
        "not above the low one",
    ),
    "a stretch of NaN": (
        "llama",
        {"rope_scaling": _LLAMA3 | {"low_freq_factor": math.nan}},
        "low frequency factor is nan",
    ),
}


@pytest.mark.parametrize(("architecture", "changes", "message"), _REFUSED.values(), ids=_REFUSED)
def test_what_no_model_can_have_is_refused(
    architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelInvalid, match=message) as caught:
        _describe(tiny.config(architecture, **changes))
    assert caught.value.path == _PATH


_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from((10**9, 10**30, -(10**30))),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=2),
    st.just({}),
)


@cases(300)
@given(data=st.data())
def test_any_config_is_read_or_refused_and_never_counted_out(data: st.DataObject) -> None:
    document = tiny.config(data.draw(st.sampled_from(("mistral", "qwen3_moe", "glm4_moe"))))
    names = data.draw(st.lists(st.sampled_from(sorted(document)), min_size=1, max_size=3))
    for name in names:
        document[name] = data.draw(_ODD)
    try:
        checkpoint = _describe(document)
    except ModelInvalid:
        return
    assert len(expected_tensors(checkpoint)) < 300_000
