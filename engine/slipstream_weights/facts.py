"""The record of an inspected checkpoint: its sizes, and its tensors' bytes by what they are for.

Reads descriptions and headers; no tensor's values, no tokenizer.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream_api.modelfacts import ExpertFacts, ModelFacts, WeightBytes, WeightFormat
from slipstream_weights import gguf_header, gguf_names, shards, source
from slipstream_weights.checkpoint import Checkpoint

_PLAIN: dict[str, WeightFormat] = {
    "F64": "fp32",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
}
# All of GGUF's codes have a scale for 32 columns or fewer.
_GROUP = 32
_FEW_BITS = 5.5
_ARCHITECTURE_NAMES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}


@dataclass(frozen=True, slots=True)
class _Stored:
    name: str
    num_bytes: int
    format: WeightFormat


def read(path: Path) -> ModelFacts:
    """Of a .gguf file or a Hugging Face folder. Raises ModelNotFound, ModelInvalid."""
    checkpoint = source.open_checkpoint(path).checkpoint
    stored = list(_folder(path) if path.is_dir() else _file(path, checkpoint))
    formats: Counter[WeightFormat] = Counter()
    for tensor in stored:
        formats[tensor.format] += tensor.num_bytes
    ((most, _),) = formats.most_common(1)
    experts = checkpoint.experts
    return ModelFacts(
        name=path.stem if path.is_file() else path.name,
        source=f"file://{path.absolute()}",
        architecture=_ARCHITECTURE_NAMES[checkpoint.architecture],
        num_layers=checkpoint.num_layers,
        hidden_size=checkpoint.hidden_size,
        intermediate_size=checkpoint.intermediate_size,
        num_heads=checkpoint.num_heads,
        num_kv_heads=checkpoint.num_kv_heads,
        head_dim=checkpoint.head_dim,
        vocab_size=checkpoint.vocab_size,
        max_positions=checkpoint.max_positions,
        has_tied_embeddings=checkpoint.has_tied_embeddings,
        weight_format=most,
        weight_group=_GROUP if most in ("int4", "int8") else None,
        experts=None
        if experts is None
        else ExpertFacts(
            num_experts=experts.num_experts,
            num_active=experts.num_active,
            intermediate_size=experts.intermediate_size,
            num_shared=experts.num_shared,
            num_dense_layers=len(experts.dense_layers),
        ),
        weights=_by_use(checkpoint, stored),
    )


def _folder(path: Path) -> Iterator[_Stored]:
    for tensor in shards.read(path):
        yield _Stored(tensor.name, tensor.end - tensor.start, _PLAIN[tensor.dtype])


def _file(path: Path, checkpoint: Checkpoint) -> Iterator[_Stored]:
    for tensor in gguf_header.read(path).tensors:
        name = gguf_names.canonical(tensor.name, checkpoint.architecture)
        num_bytes = tensor.end - tensor.start
        count = 1
        for dimension in tensor.shape:
            count *= dimension
        codes: WeightFormat = "int4" if 8 * num_bytes / count < _FEW_BITS else "int8"
        yield _Stored(name, num_bytes, _PLAIN.get(tensor.kind.name, codes))


def _by_use(checkpoint: Checkpoint, stored: list[_Stored]) -> WeightBytes:
    sums = dict.fromkeys(WeightBytes.model_fields, 0)
    for tensor in stored:
        use = _use(tensor.name, checkpoint)
        if use is not None:
            sums[use] += tensor.num_bytes
    return WeightBytes(**sums)


def _use(name: str, checkpoint: Checkpoint) -> str | None:
    """None for what the engine does not load."""
    if name.startswith("model.embed_tokens."):
        return "embedding"
    if name.startswith("lm_head."):
        return None if checkpoint.has_tied_embeddings else "head"
    if name == gguf_names.ROPE_FACTORS or name.endswith("rotary_emb.inv_freq"):
        return None
    if not name.startswith("model.layers."):
        # The last norm stands before the head.
        return "embedding" if checkpoint.has_tied_embeddings else "head"
    layer = int(name.split(".")[2])
    if layer >= checkpoint.num_layers:
        return None
    if ".mlp." not in name:
        return "attention"
    if ".mlp.experts." in name:
        return "routed_experts"
    is_mixed = checkpoint.experts is not None and layer not in checkpoint.experts.dense_layers
    # Every token goes through the router and the shared experts.
    return "shared_experts" if is_mixed else "dense_mlp"
