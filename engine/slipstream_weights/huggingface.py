"""A Hugging Face folder as a checkpoint: config.json, safetensors, tokenizer.json.

Runs no code of the folder: an architecture that is not known here is refused by its name.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from slipstream_weights import safetensors_header
from slipstream_weights.checkpoint import (
    Architecture,
    Array,
    Checkpoint,
    Llama3RopeScaling,
    TextModel,
    check_sizes,
    check_tensors,
)
from slipstream_weights.errors import ModelInvalid, ModelNotFound
from slipstream_weights.grouped import Grouped
from slipstream_weights.safetensors_header import StoredTensor

_ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class HuggingFaceCheckpoint:
    """One opened folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = _document(folder / _CONFIG)
        self.checkpoint = describe(self._config, str(folder / _CONFIG))
        check_sizes(self.checkpoint, str(folder / _CONFIG))
        self._tensors = [
            tensor
            for tensor in _stored(folder)
            # A copy of the embeddings that some writers add; a tied model has no use for it.
            if not (self.checkpoint.has_tied_embeddings and tensor.name == "lm_head.weight")
        ]
        check_tensors(self.checkpoint, ((t.name, t.shape) for t in self._tensors), str(folder))

    def tensors(self) -> Iterator[tuple[str, Array]]:
        for tensor in self._tensors:
            yield tensor.name, tensor.read()

    def packed_tensors(self) -> Iterator[tuple[str, Array | Grouped]]:
        return self.tensors()

    def text_model(self) -> TextModel:
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            raise ModelInvalid("the folder has no tokenizer.json", str(self._folder))
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelInvalid(f"the tokenizer cannot be read: {error}", str(path)) from error
        if "ByteLevel" not in json.dumps(_document(path).get("decoder")):
            raise ModelInvalid(
                "the tokenizer is not byte-level BPE, which alone is supported", str(path)
            )
        settings = _optional(self._folder / "tokenizer_config.json")
        eos = _token_text(settings.get("eos_token"))
        return TextModel(
            tokenizer=tokenizer,
            chat_template=self._chat_template(settings),
            end_tokens=self._end_tokens(tokenizer, eos),
            bos_token=_token_text(settings.get("bos_token")),
            eos_token=eos,
        )

    def _chat_template(self, settings: dict[str, Any]) -> str | None:
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = settings.get("chat_template")
        if isinstance(template, list):
            named = {item.get("name"): item.get("template") for item in template}
            template = named.get("default")
        return template if isinstance(template, str) else None

    def _end_tokens(self, tokenizer: Tokenizer, eos: str | None) -> frozenset[int]:
        """generation_config.json decides; config.json and the tokenizer's own are added."""
        ends: set[int] = set()
        generation = _optional(self._folder / "generation_config.json")
        for value in (generation.get("eos_token_id"), self._config.get("eos_token_id")):
            if isinstance(value, int):
                ends.add(value)
            elif isinstance(value, list):
                ends.update(item for item in value if isinstance(item, int))
        own = tokenizer.token_to_id(eos) if eos is not None else None
        if own is not None:
            ends.add(own)
        return frozenset(ends)


def _stored(folder: Path) -> list[StoredTensor]:
    index = folder / _INDEX
    if not index.is_file():
        if not (folder / _SINGLE).is_file():
            raise ModelNotFound(f"the folder has neither {_SINGLE} nor {_INDEX}", str(folder))
        return safetensors_header.read(folder / _SINGLE)
    weight_map = _document(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelInvalid("the index has no weight_map", str(index))
    tensors: list[StoredTensor] = []
    for name in sorted({str(value) for value in weight_map.values()}):
        if Path(name).name != name:
            raise ModelInvalid(f"the index names a file outside its folder: {name}", str(index))
        if not (folder / name).is_file():
            raise ModelInvalid(f"the index names {name}, which is not there", str(index))
        tensors.extend(safetensors_header.read(folder / name))
    missing = sorted(set(weight_map) - {tensor.name for tensor in tensors})
    if missing:
        raise ModelInvalid("a tensor of the index is in no file", str(index), missing[0])
    return tensors


def describe(config: dict[str, Any], path: str) -> Checkpoint:
    """What a config.json says. Raises ModelInvalid."""
    architecture = _architecture(config, path)
    if config.get("use_sliding_window"):
        raise ModelInvalid("sliding window attention is not supported", path)
    if config.get("hidden_act", "silu") != "silu":
        raise ModelInvalid(f"activation {config['hidden_act']!r} is not supported", path)
    if config.get("mlp_bias"):
        raise ModelInvalid("biases in the MLP are not supported", path)
    if config.get("quantization_config"):
        raise ModelInvalid("quantised safetensors are not supported", path)
    hidden_size, num_heads = (
        _integer(config, "hidden_size", path),
        _integer(config, "num_attention_heads", path),
    )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    attention_bias = bool(config.get("attention_bias", False))
    return Checkpoint(
        architecture=architecture,
        vocab_size=_integer(config, "vocab_size", path),
        hidden_size=hidden_size,
        intermediate_size=_integer(config, "intermediate_size", path),
        num_layers=_integer(config, "num_hidden_layers", path),
        num_heads=num_heads,
        num_kv_heads=_integer(config, "num_key_value_heads", path, num_heads),
        head_dim=_integer(config, "head_dim", path, hidden_size // max(num_heads, 1)),
        max_positions=_integer(config, "max_position_embeddings", path),
        rope_theta=_real(rope.get("rope_theta", config.get("rope_theta", 10000.0)), path),
        rms_norm_eps=_real(config.get("rms_norm_eps", 1e-6), path),
        rope_scaling=_rope_scaling(rope, path),
        has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=architecture == "qwen2" or attention_bias,
        has_output_bias=architecture != "qwen2" and attention_bias,
        has_qk_norm=architecture == "qwen3",
    )


def _architecture(config: dict[str, Any], path: str) -> Architecture:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    architecture = _ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise ModelInvalid(
            f"architecture {name!r} is not supported; supported: {', '.join(_ARCHITECTURES)}", path
        )
    return architecture


def _rope_scaling(rope: dict[str, Any], path: str) -> Llama3RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelInvalid(f"rope scaling {kind!r} is not supported", path)
    return Llama3RopeScaling(
        factor=_real(rope.get("factor"), path),
        low_freq_factor=_real(rope.get("low_freq_factor"), path),
        high_freq_factor=_real(rope.get("high_freq_factor"), path),
        original_max_position=_integer(rope, "original_max_position_embeddings", path),
    )


def _integer(config: dict[str, Any], name: str, path: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int):
        raise ModelInvalid(f"{name} is {value!r}, expected an integer", path)
    return value


def _real(value: object, path: str) -> float:
    if not isinstance(value, int | float):
        raise ModelInvalid(f"{value!r} where a number is expected", path)
    return float(value)


def _token_text(value: object) -> str | None:
    """Tokenizer settings name a token by its text or by an object that holds the text."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _optional(path: Path) -> dict[str, Any]:
    return _document(path) if path.is_file() else {}


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelInvalid(f"cannot be read: {error}", str(path)) from error
    if not isinstance(document, dict):
        raise ModelInvalid("not a JSON object", str(path))
    return document
