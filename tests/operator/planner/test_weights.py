"""Parameters and bytes of public models, counted from the sizes in their configurations."""

import pytest

from slipstream_engine.split import Split
from slipstream_operator.planner import footprint, weights
from tests.operator.planner import support

# What the models' own pages say, in billions.
PUBLISHED = {
    "deepseek-v2-lite": 15.7,
    "deepseek-v3": 671,
    "devstral-small": 23.6,
    "glm-4.5-air": 106.9,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "llama-3.3-70b": 70.6,
    "qwen2.5-coder-32b": 32.8,
    "qwen3-32b": 32.8,
    "qwen3-coder-30b-a3b": 30.5,
    "qwen3-coder-480b-a35b": 480,
}


@pytest.mark.parametrize(("model", "billions"), PUBLISHED.items())
def test_parameters_are_as_many_as_published(model: str, billions: float) -> None:
    assert weights.total(support.facts(model)) == pytest.approx(billions * 1e9, rel=0.003)


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        ("qwen3-32b", 65.5),
        ("qwen3-32b-fp8", 34.3),  # embedding and head are bf16
        ("qwen2.5-coder-32b-awq", 19.3),
        ("gpt-oss-20b", 13.7),
        ("deepseek-v3", 673),
    ],
)
def test_bytes_follow_the_format(model: str, gigabytes: float) -> None:
    total = weights.in_bytes(support.facts(model)).total
    assert total == pytest.approx(gigabytes * 1e9, rel=0.01)


@pytest.mark.parametrize("model", support.MODEL_NAMES)
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2), (2, 3), (1, 7)])
def test_all_gpus_together_hold_the_model_once(model: str, tensor: int, pipeline: int) -> None:
    facts = support.facts(model)
    stages = footprint.stages(facts, tensor, pipeline)
    held = sum(tensor * footprint.weight_bytes(facts, stage) for stage in stages)
    # Each GPU's share is rounded up to a byte.
    assert 0 <= held - weights.in_bytes(facts).total <= tensor * pipeline


def test_a_tied_head_on_another_gpu_is_a_second_copy() -> None:
    facts = support.facts("qwen3-32b").model_copy(update={"has_tied_embeddings": True})
    parts = weights.in_bytes(facts)
    assert parts.head == 0
    held = sum(footprint.weight_bytes(facts, s) for s in footprint.stages(facts, 1, 2))
    assert held == parts.total + parts.embedding


@pytest.mark.parametrize(
    ("model", "tensor", "num_bytes"),
    [
        ("qwen3-32b", 1, 262_144),
        ("qwen3-32b", 4, 65_536),
        ("llama-3.3-70b", 1, 327_680),
        # A latent row is the same on every rank.
        ("deepseek-v3", 1, 70_272),
        ("deepseek-v3", 8, 70_272),
    ],
)
def test_bytes_of_a_token_in_the_cache(model: str, tensor: int, num_bytes: int) -> None:
    facts = support.facts(model)
    (stage,) = footprint.stages(facts, tensor, 1)
    assert footprint.kv_bytes(facts, stage, 1600) == 1600 * num_bytes


def test_layers_with_a_window_keep_no_more_than_it() -> None:
    facts = support.facts("gpt-oss-20b")
    (stage,) = footprint.stages(facts, 1, 1)
    token_of_a_layer = 2 * 8 * 64 * 2
    kept = 12 * 4096 + 12 * 128
    assert footprint.kv_bytes(facts, stage, 4096) == kept * token_of_a_layer


@pytest.mark.parametrize(("layers", "pipeline"), [(5, 2), (64, 3), (80, 8), (7, 7)])
def test_stages_are_those_of_the_engine(layers: int, pipeline: int) -> None:
    facts = support.facts("qwen3-32b").model_copy(update={"num_layers": layers})
    ours = [stage.num_layers for stage in footprint.stages(facts, 1, pipeline)]
    assert ours == [len(Split(1, pipeline, n).layers(layers)) for n in range(pipeline)]
