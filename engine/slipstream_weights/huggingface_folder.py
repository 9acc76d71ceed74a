"""A Hugging Face folder as a checkpoint: config.json, safetensors, tokenizer.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from slipstream_weights import documents, huggingface, parts, shards, sizes
from slipstream_weights.checkpoint import Array, TextModel
from slipstream_weights.errors import ModelInvalid

_CONFIG = "config.json"
_EMBEDDINGS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ROWS_AT_ONCE = 4096


class HuggingFaceCheckpoint:
    """One opened folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = documents.read(folder / _CONFIG)
        self.checkpoint = huggingface.describe(self._config, str(folder / _CONFIG))
        sizes.check(self.checkpoint, str(folder / _CONFIG))
        stored = {tensor.name: tensor for tensor in shards.read(folder)}
        # A copy of the embeddings that some writers add; a tied model has no use for it.
        self._copy = stored.pop(_HEAD, None) if self.checkpoint.has_tied_embeddings else None
        self._parts = parts.find(self.checkpoint, stored.items(), str(folder))
        if self._copy is not None and self._copy.shape != self._parts[_EMBEDDINGS].shape:
            raise self._no_copy()

    def tensors(self) -> Iterator[tuple[str, Array]]:
        self._check_copy()
        for name in self._parts:
            yield name, self.read(name)

    def _check_copy(self) -> None:
        """Raises ModelInvalid for a head of its own, which config.json does not know of."""
        if self._copy is None:
            return
        for start in range(0, self._copy.shape[0], _ROWS_AT_ONCE):
            rows = slice(start, min(start + _ROWS_AT_ONCE, self._copy.shape[0]))
            copied = self._copy.read(rows, slice(0, self._copy.shape[1]))
            # NaN too is a copy of itself: that no value is one is looked at elsewhere.
            if not np.array_equal(copied, self.read(_EMBEDDINGS, rows), equal_nan=True):
                raise self._no_copy()

    def _no_copy(self) -> ModelInvalid:
        message = "left over: config.json ties it to the embeddings, and it is no copy of them"
        return ModelInvalid(message, str(self._folder), _HEAD)

    def packed_tensors(self) -> Iterator[tuple[str, Array]]:
        return self.tensors()

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> Array:
        part = self._parts[name]
        columns = parts.columns(part, cols)
        return part.stored.read(parts.rows(part, rows), columns)

    @property
    def has_codes(self) -> bool:
        return False

    def text_model(self) -> TextModel:
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            raise ModelInvalid("the folder has no tokenizer.json", str(self._folder))
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelInvalid(f"the tokenizer cannot be read: {error}", str(path)) from error
        if "ByteLevel" not in json.dumps(documents.read(path).get("decoder")):
            raise ModelInvalid(
                "the tokenizer is not byte-level BPE, which alone is supported", str(path)
            )
        settings = _optional(self._folder / "tokenizer_config.json")
        eos = _token_text(settings.get("eos_token"))
        return TextModel(
            tokenizer=tokenizer,
            chat_template=self._template(settings, "default"),
            end_tokens=self._end_tokens(tokenizer, eos),
            bos_token=_token_text(settings.get("bos_token")),
            eos_token=eos,
            tool_template=self._template(settings, "tool_use"),
        )

    def _template(self, settings: dict[str, Any], name: str) -> str | None:
        """One of the named templates: in a file of its own, or in the tokenizer's settings."""
        file = "chat_template" if name == "default" else f"additional_chat_templates/{name}"
        path = self._folder / f"{file}.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = settings.get("chat_template")
        if not isinstance(template, list):
            template = [{"name": "default", "template": template}]
        named = {item.get("name"): item.get("template") for item in template}
        found = named.get(name)
        return found if isinstance(found, str) else None

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


def _token_text(value: object) -> str | None:
    """Tokenizer settings name a token by its text or by an object that holds the text."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _optional(path: Path) -> dict[str, Any]:
    return documents.read(path) if path.is_file() else {}
