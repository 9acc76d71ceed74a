"""GGUF files: the same numbers as the folder they came from, and clear refusals of the rest."""

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType
from hypothesis import given
from hypothesis import strategies as st

from slipstream_weights import gguf_header, source
from slipstream_weights.checkpoint import Checkpoint, RopeFactors
from slipstream_weights.errors import ModelInvalid, ModelNotFound
from tests.depth import cases
from tests.engine import tiny
from tests.weights import gguf_files

_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe")


@pytest.mark.parametrize("architecture", _ARCHITECTURES)
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
def test_a_file_gives_back_the_tensors_that_were_written(
    tmp_path: Path, architecture: str, is_tied: bool
) -> None:
    document = tiny.config(architecture, tie_word_embeddings=is_tied)
    tensors = gguf_files.values(document)
    opened = source.open_checkpoint(gguf_files.write(tmp_path / "m.gguf", document, tensors))
    found = dict(opened.tensors())
    assert set(found) == set(tensors)
    for name, array in found.items():
        assert array.dtype == np.float32
        assert np.array_equal(array, tensors[name]), name


def test_a_file_and_a_folder_of_one_model_have_one_description(tmp_path: Path) -> None:
    # Mistral's files say that they are Llama's.
    for architecture in (name for name in _ARCHITECTURES if name != "mistral"):
        document = tiny.config(architecture, rms_norm_eps=0.5)
        path = gguf_files.write(
            tmp_path / f"{architecture}.gguf", document, gguf_files.values(document)
        )
        folder = tiny.write(tmp_path / architecture, document)
        one, other = source.open_checkpoint(path), source.open_checkpoint(folder)
        assert one.checkpoint == other.checkpoint


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        (GGMLQuantizationType.F16, 1e-3),
        (GGMLQuantizationType.BF16, 1e-2),
        (GGMLQuantizationType.Q8_0, 5e-3),
        (GGMLQuantizationType.Q4_0, 6e-2),
        (GGMLQuantizationType.Q4_1, 6e-2),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_quantised_tensors_come_back_near_what_they_were(
    tmp_path: Path, kind: GGMLQuantizationType, tolerance: float
) -> None:
    document = tiny.config(intermediate_size=128)
    tensors = gguf_files.values(document)
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors, kind=kind)
    for name, array in source.open_checkpoint(path).tensors():
        assert float(np.abs(array - tensors[name]).max()) < tolerance


def test_its_tokeniser_encodes_and_ends_as_the_original(tmp_path: Path) -> None:
    document = tiny.config()
    path = gguf_files.write(tmp_path / "m.gguf", document, gguf_files.values(document))
    text_model = source.open_checkpoint(path).text_model()
    for text in ("def add(left, right):", "<|im_start|>user", "naïve 🙂"):
        ids = text_model.tokenizer.encode(text).ids
        assert text_model.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert text_model.end_tokens == {0, 1}
    assert (text_model.bos_token, text_model.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert text_model.chat_template == tiny.CHAT_TEMPLATE


def test_a_template_for_tools_is_one_of_its_own(tmp_path: Path) -> None:
    document = tiny.config()
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    tensors = gguf_files.values(document)
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors, fields={"templates": named})
    text_model = source.open_checkpoint(path).text_model()
    assert (text_model.chat_template, text_model.tool_template) == ("a", "b")


def test_the_beginning_token_is_put_before_text_where_the_file_says_so(tmp_path: Path) -> None:
    document = tiny.config()
    tensors = gguf_files.values(document)
    for add_bos in (True, False):
        path = gguf_files.write(
            tmp_path / f"{add_bos}.gguf", document, tensors, fields={"add_bos": add_bos}
        )
        tokenizer = source.open_checkpoint(path).text_model().tokenizer
        assert (tokenizer.encode("hello").ids[0] == 0) == add_bos
        assert tokenizer.encode("hello", add_special_tokens=False).ids[0] != 0


_DIGITS = {
    "smollm": ["1", "2", "3", "4"],
    "llama-bpe": ["123", "4"],
    "glm4": ["123", "4"],
    "chatglm-bpe": ["123", "4"],
    "tekken": ["1", "2", "3", "4"],
    "qwen2": ["1", "2", "3", "4"],
}


@pytest.mark.parametrize(("name", "parts"), _DIGITS.items(), ids=_DIGITS)
def test_each_pre_tokeniser_splits_numbers_in_its_own_way(
    tmp_path: Path, name: str, parts: list[str]
) -> None:
    document = tiny.config()
    path = gguf_files.write(
        tmp_path / "m.gguf", document, gguf_files.values(document), fields={"pre": name}
    )
    splitter = source.open_checkpoint(path).text_model().tokenizer.pre_tokenizer
    assert splitter is not None
    assert [part for part, _ in splitter.pre_tokenize_str("1234")] == parts


_REFUSED_TEXT: dict[str, tuple[dict[str, Any], str]] = {
    "another tokenizer": ({"model": "llama"}, "tokenizer 'llama' is not supported"),
    "another pre-tokenizer": ({"pre": "gpt-9"}, "pre-tokenizer 'gpt-9' is not supported"),
    "no pre-tokenizer": ({"pre": None}, "pre-tokenizer None is not supported"),
    "a merge of one token": ({"merges": ["abc"]}, "not a merge"),
    "a merge of unknown tokens": ({"merges": ["zz yy"]}, "cannot be built"),
    "an end token outside": ({"eos": 5000}, "not in the vocabulary"),
    "an end of turn outside": ({"eot": 5000}, "the eot token 5000 is not in the vocabulary"),
}


@pytest.mark.parametrize(("fields", "message"), _REFUSED_TEXT.values(), ids=_REFUSED_TEXT)
def test_an_unusable_tokeniser_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    document = tiny.config()
    path = gguf_files.write(
        tmp_path / "m.gguf", document, gguf_files.values(document), fields=fields
    )
    with pytest.raises(ModelInvalid, match=message):
        source.open_checkpoint(path).text_model()


def test_ends_of_turns_and_messages_end_an_answer(tmp_path: Path) -> None:
    document = tiny.config()
    tensors = gguf_files.values(document)
    fields = {"eos": 1, "eot": 7, "eom": 9}
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors, fields=fields)
    assert source.open_checkpoint(path).text_model().end_tokens == {0, 1, 7, 9}


@pytest.mark.parametrize(("pre", "is_whole"), [("llama-bpe", True), ("qwen2", False)])
def test_a_piece_that_is_a_token_is_taken_whole_where_the_family_does_so(
    tmp_path: Path, pre: str, is_whole: bool
) -> None:
    document = tiny.config()
    tensors = gguf_files.values(document)
    # A file with only one merge: no other token is ever put together.
    first = json.loads(tiny.tokenizer().to_str())["model"]["merges"][0]
    fields = {"pre": pre, "merges": [" ".join(first)]}
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors, fields=fields)
    tokenizer = source.open_checkpoint(path).text_model().tokenizer
    words = [token for token in tokenizer.get_vocab() if token.isascii() and token.isalpha()]
    longest = max(words, key=len)
    assert len(longest) > 2
    assert (len(tokenizer.encode(longest, add_special_tokens=False).ids) == 1) == is_whole


def _described(path: Path, more: dict[str, bool | int | float | str]) -> Checkpoint:
    document = tiny.config("qwen3_moe")
    gguf_files.write(path, document, gguf_files.values(document), more=more)
    return source.open_checkpoint(path).checkpoint


def test_fields_of_experts_that_the_converter_leaves_out_are_understood(tmp_path: Path) -> None:
    plain = _described(tmp_path / "plain.gguf", {}).experts
    said = _described(
        tmp_path / "said.gguf",
        {
            "expert_gating_func": 2,
            "expert_weights_norm": False,
            "expert_weights_scale": 2.5,
            "expert_group_count": 3,
            "expert_group_used_count": 2,
        },
    ).experts
    assert plain is not None
    assert said is not None
    assert (plain.scoring, plain.has_normalised_weights) == ("softmax", True)
    assert (plain.routed_scale, plain.num_groups, plain.num_active_groups) == (1.0, 1, 1)
    assert (said.scoring, said.has_normalised_weights) == ("sigmoid", False)
    assert (said.routed_scale, said.num_groups, said.num_active_groups) == (2.5, 3, 2)
    assert not said.has_correction_bias


_WRONG_FIELDS: dict[str, tuple[dict[str, bool | int | float | str], str]] = {
    "another gating": ({"expert_gating_func": 3}, "expert gating function 3 is not supported"),
    "a flag as number": ({"expert_weights_norm": 1}, "expert_weights_norm is 1"),
    "a count as text": ({"expert_group_count": "2"}, "expert_group_count is '2'"),
    "more later layers than layers": ({"nextn_predict_layers": 3}, "number of layers is -1"),
    "a part of a head turned": ({"rope.dimension_count": 8}, "over 8 of 16 dimensions"),
    "a stretch of positions": ({"rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
}


@pytest.mark.parametrize(("more", "message"), _WRONG_FIELDS.values(), ids=_WRONG_FIELDS)
def test_a_field_that_is_not_understood_is_refused(
    tmp_path: Path, more: dict[str, bool | int | float | str], message: str
) -> None:
    with pytest.raises(ModelInvalid, match=message) as caught:
        _described(tmp_path / "m.gguf", more)
    assert caught.value.path == str(tmp_path / "m.gguf")


def test_a_piece_of_a_split_model_is_refused_as_one(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_key_value("split.count", 2, GGUFValueType.UINT16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelInvalid, match="merge them first"):
        source.open_checkpoint(path)


def test_a_context_ends_with_the_window(tmp_path: Path) -> None:
    assert _described(tmp_path / "a.gguf", {"attention.sliding_window": 64}).max_positions == 64
    assert _described(tmp_path / "b.gguf", {"attention.sliding_window": 0}).max_positions == 512


_FACTORS: dict[str, tuple[Any, str | None]] = {
    "one a frequency": (np.arange(1, 9), None),
    "too few": (np.ones(7), "7 rotary factors for 8 frequencies"),
    "a zero": (np.zeros(8), "rotary factor is 0.0"),
    "a matrix": (np.ones((2, 4)), r"shape \[2, 4\] .*rope_freqs.weight"),
}


@pytest.mark.parametrize(("factors", "message"), _FACTORS.values(), ids=_FACTORS)
def test_rotary_factors_are_read_or_refused(
    tmp_path: Path, factors: Any, message: str | None
) -> None:
    document = tiny.config()
    tensors = gguf_files.values(document) | {"rope_freqs.weight": factors.astype(np.float32)}
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors)
    if message is None:
        scaling = source.open_checkpoint(path).checkpoint.rope_scaling
        assert scaling == RopeFactors(tuple(float(factor) for factor in factors))
    else:
        with pytest.raises(ModelInvalid, match=message):
            source.open_checkpoint(path)


def test_another_architecture_is_refused_by_its_name(tmp_path: Path) -> None:
    document = {**tiny.config(), "model_type": "mamba"}
    path = gguf_files.write(tmp_path / "m.gguf", document, gguf_files.values(tiny.config()))
    with pytest.raises(ModelInvalid, match="architecture 'mamba' is not supported"):
        source.open_checkpoint(path)


@pytest.mark.parametrize("change", ["missing", "left over", "mis-shaped"])
def test_wrong_tensors_are_refused_by_name(tmp_path: Path, change: str) -> None:
    document = tiny.config()
    tensors = gguf_files.values(document)
    name = "model.layers.1.mlp.up_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "left over":
        name = "model.layers.2.mlp.up_proj.weight"
        tensors[name] = tensors["model.layers.1.mlp.up_proj.weight"]
    else:
        tensors[name] = tensors[name][:-1]
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors)
    with pytest.raises(ModelInvalid) as caught:
        source.open_checkpoint(path)
    assert caught.value.tensor == name
    assert caught.value.path == str(path)


@pytest.fixture(scope="module", params=["llama", "glm4_moe"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    document = tiny.config(request.param)
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    kind = GGMLQuantizationType.Q4_1
    tensors = gguf_files.values(document)
    return gguf_files.write(path, document, tensors, kind=kind).read_bytes()


@cases(100)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_and_never_crashes(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    # Padding at the end of the last tensor may go unseen; everything before it may not.
    length = data.draw(st.integers(0, len(whole) - 64))
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(whole[:length])
    with pytest.raises(ModelInvalid):
        source.open_checkpoint(path)


@cases(200)
@given(data=st.data())
def test_a_header_with_a_changed_byte_is_read_or_refused_and_never_crashes(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.unlink(missing_ok=True)  # the last one may still be mapped: never truncate it
    path.write_bytes(whole)
    header_end = min(tensor.start for tensor in gguf_header.read(path).tensors)
    damaged = bytearray(whole)
    # Texts of the tokeniser are most of the header: half of the changes are behind them.
    place = data.draw(st.integers(0, header_end - 1) | st.integers(header_end - 4000, header_end))
    damaged[place] ^= data.draw(st.integers(1, 255))
    path.unlink()
    path.write_bytes(damaged)
    with contextlib.suppress(ModelInvalid):
        opened = source.open_checkpoint(path)
        opened.text_model()
        assert len(dict(opened.packed_tensors())) > 10


def test_absurd_counts_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    path.write_bytes(head + struct.pack("<IIQ", 9, 10, 1 << 60))
    with pytest.raises(ModelInvalid, match="cut short"):
        source.open_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"GGML" + b"\0" * 40, "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
    ],
    ids=["empty", "another kind", "another version"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelInvalid, match=message):
        source.open_checkpoint(path)


def test_a_path_without_anything_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        source.open_checkpoint(tmp_path / "m.gguf")


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelInvalid, match=r"neither a folder nor a \.gguf file"):
        source.open_checkpoint(tmp_path / "model.bin")
