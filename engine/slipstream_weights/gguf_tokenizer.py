"""A tokeniser from the metadata of a GGUF file; knows byte-level BPE and no other kind."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from slipstream_weights.checkpoint import TextModel
from slipstream_weights.errors import ModelInvalid

_CONTROL = 3
_USER_DEFINED = 4

# The published split patterns of the two tokeniser families (their tokenizer.json).
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# GLM-4 has Llama 3's; Tekken is that of newer Mistral models.
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Their published tokenisers take a piece that is a token whole, whatever its merges are.
_WHOLE_PIECES = ("llama-bpe", "tekken")
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

# Names of tokens that end a turn, besides the file's own end of sequence.
_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>")


def build(fields: Mapping[str, Any], vocab_size: int, path: str) -> TextModel:
    """Raises ModelInvalid: the tokeniser is missing, damaged or of an unsupported kind."""
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelInvalid(
            f"tokenizer {kind!r} is not supported; supported: gpt2 (byte-level BPE)", path
        )
    tokens = _strings(fields, "tokenizer.ggml.tokens", path)
    merges = _merges(_strings(fields, "tokenizer.ggml.merges", path), path)
    kinds = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(tokens) > vocab_size or len(kinds) != len(tokens):
        raise ModelInvalid(
            f"{len(tokens)} tokens, {len(kinds)} token types, {vocab_size} rows of embeddings", path
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelInvalid("the tokenizer holds a token twice", path)
    try:
        tokenizer = Tokenizer(
            BPE(
                vocab=vocab,
                merges=merges,
                fuse_unk=False,
                byte_fallback=False,
                ignore_merges=fields.get("tokenizer.ggml.pre") in _WHOLE_PIECES,
            )
        )
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelInvalid(f"the tokenizer cannot be built: {error}", path) from error
    _split(tokenizer, fields.get("tokenizer.ggml.pre"), path)
    tokenizer.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False)
            for t, k in zip(tokens, kinds, strict=True)
            if k == _CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(t, special=False, normalized=False)
            for t, k in zip(tokens, kinds, strict=True)
            if k == _USER_DEFINED
        ]
    )
    bos = _named(fields, "bos", tokens, path)
    eos = _named(fields, "eos", tokens, path)
    if fields.get("tokenizer.ggml.add_bos_token") and bos is not None:
        tokenizer.post_processor = TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, vocab[bos])]
        )
    control = {t for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL}
    ends = [vocab[name] for name in _END_NAMES if name in control]
    # End of sequence, of turn, of message: the last two are where GLM names its ends.
    named = (eos, _named(fields, "eot", tokens, path), _named(fields, "eom", tokens, path))
    ends.extend(vocab[name] for name in named if name is not None)
    template = fields.get("tokenizer.chat_template")
    for_tools = fields.get("tokenizer.chat_template.tool_use")
    return TextModel(
        tokenizer=tokenizer,
        chat_template=template if isinstance(template, str) else None,
        end_tokens=frozenset(ends),
        bos_token=bos,
        eos_token=eos,
        tool_template=for_tools if isinstance(for_tools, str) else None,
    )


def _split(tokenizer: Tokenizer, name: object, path: str) -> None:
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    match name:
        case "smollm":
            parts = [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        case "llama-bpe" | "glm4" | "chatglm-bpe":
            parts = [pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"), by_bytes]
        case "tekken":
            parts = [pre_tokenizers.Split(Regex(_TEKKEN_SPLIT), "isolated"), by_bytes]
        case "qwen2":
            tokenizer.normalizer = normalizers.NFC()
            parts = [pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"), by_bytes]
        case _:
            raise ModelInvalid(
                f"pre-tokenizer {name!r} is not supported;"
                " supported: smollm, llama-bpe, tekken, qwen2, glm4, chatglm-bpe",
                path,
            )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()


def _strings(fields: Mapping[str, Any], name: str, path: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ModelInvalid(f"the GGUF file lacks {name}", path)
    return value


def _merges(lines: list[str], path: str) -> list[tuple[str, str]]:
    merges = []
    for line in lines:
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise ModelInvalid(f"{line!r} is not a merge of two tokens", path)
        merges.append((left, right))
    return merges


def _named(fields: Mapping[str, Any], name: str, tokens: list[str], path: str) -> str | None:
    index = fields.get(f"tokenizer.ggml.{name}_token_id")
    if index is None:
        return None
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise ModelInvalid(f"the {name} token {index} is not in the vocabulary", path)
    return tokens[index]
