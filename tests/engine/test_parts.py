"""Small parts of the engine: sizes, layouts, tokens, templates, pace, digests, messages."""

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import digests, messages, sizing
from slipstream_engine.apierror import ApiError
from slipstream_engine.batch import Load, Progress, Sampled, TokenLogprob
from slipstream_engine.chat import ChatTemplate, TemplateError
from slipstream_engine.conversation import Message, TextPart
from slipstream_engine.messages import (
    Abort,
    AbortSample,
    Failed,
    FromRank,
    Start,
    Step,
    Submit,
    ToRank,
)
from slipstream_engine.pace import Pace
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.split import Split
from slipstream_engine.tokens import InternalTokens
from slipstream_kvstore import keys
from slipstream_kvstore.layout import PageLayout, PoolLayout
from slipstream_weights import huggingface
from slipstream_weights.checkpoint import TextModel
from tests.engine import served, tiny

_CHECKPOINT = huggingface.describe(tiny.config(max_position_embeddings=4096), "config.json")


def _config(**sections: Any) -> EngineConfig:
    return EngineConfig.model_validate(served.config(Path("m"), **sections))


def test_a_page_counts_the_bytes_of_all_its_pools() -> None:
    layout = PageLayout(
        16, (PoolLayout("k", "float32", (2, 3, 8)), PoolLayout("scale", "bfloat16", (2, 3)))
    )
    assert layout.page_bytes == 16 * (2 * 3 * 8 * 4 + 2 * 3 * 2)
    assert layout.num_pages(layout.page_bytes * 3 - 1) == 2
    assert [layout.pages_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("page_tokens", "pools"),
    [
        (0, (PoolLayout("k", "float32", (1,)),)),
        (4, ()),
        (4, (PoolLayout("k", "float32", (1,)), PoolLayout("k", "float32", (1,)))),
        (4, (PoolLayout("k", "float32", (1, 0)),)),
    ],
    ids=["no tokens", "no pools", "one name twice", "an empty dimension"],
)
def test_an_impossible_layout_cannot_be_built(
    page_tokens: int, pools: tuple[PoolLayout, ...]
) -> None:
    with pytest.raises(ValueError, match=r"page|pool"):
        PageLayout(page_tokens, pools)


def test_pages_default_to_two_thousand_tokens_a_sequence_or_one_whole_context() -> None:
    many = sizing.resolve(
        _config(limits={"maxRunningSequences": 4}), _CHECKPOINT, Split(), "float32"
    )
    assert (many.max_context, many.num_pages) == (4096, 4 * 2048 // 16)
    one = sizing.resolve(
        _config(limits={"maxRunningSequences": 1}), _CHECKPOINT, Split(), "float32"
    )
    assert one.num_pages == 4096 // 16


def test_a_number_of_bytes_gives_the_whole_pages_that_fit() -> None:
    page_bytes = sizing.resolve(_config(), _CHECKPOINT, Split(), "float32").layout.page_bytes
    sizes = sizing.resolve(
        _config(pages={"kvBytes": 300 * page_bytes + 1}), _CHECKPOINT, Split(), "float32"
    )
    assert sizes.num_pages == 300


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"model": {"maxContext": 4097}}, "model.maxContext"),
        ({"pages": {"kvBytes": 1000}}, "pages.kvBytes"),
    ],
    ids=["a context too long", "no room for one context"],
)
def test_sizes_that_cannot_work_are_refused_by_field(sections: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sizing.resolve(_config(**sections), _CHECKPOINT, Split(), "float32")
    assert caught.value.field == field


@pytest.mark.parametrize("content", [None, "", "  \n"], ids=["missing", "empty", "blank"])
def test_a_token_folder_without_a_current_key_is_refused(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "current").write_text(content)
    with pytest.raises(ConfigError) as caught:
        InternalTokens(tmp_path)
    assert caught.value.field == "server.tokenDir"


def test_both_keys_are_valid_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("new\n")
    (tmp_path / "previous").write_text("old")
    tokens = InternalTokens(tmp_path)
    valid = {word: tokens.is_valid(word) for word in ("new", "old", "", "ne", "newold", "é")}
    assert valid == {"new": True, "old": True, "": False, "ne": False, "newold": False, "é": False}
    assert not tokens.is_valid(None)


def test_bytes_that_are_no_text_are_just_a_wrong_key(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("new")
    header = b"\xff\xfe".decode("utf-8", "surrogateescape")  # as aiohttp hands it on
    assert not InternalTokens(tmp_path).is_valid(header)


def test_an_empty_previous_key_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("new")
    (tmp_path / "previous").write_text("")
    assert not InternalTokens(tmp_path).is_valid("")


def test_a_secret_that_was_exchanged_by_its_link_is_read_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "current").write_text(name)
    link = tmp_path / "data"
    link.symlink_to("one")
    tokens = InternalTokens(link)
    assert tokens.is_valid("one")
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", link)  # noqa: PTH105  (Path.replace would follow nothing either)
    assert tokens.is_valid("two")
    assert not tokens.is_valid("one")


def _template(source: str | None) -> ChatTemplate:
    text_model = TextModel(tiny.tokenizer(), source, frozenset(), "<s>", "</s>")
    return ChatTemplate(text_model)


_USER = [Message(role="user", content="hi <b>")]


def test_templates_get_what_transformers_gives_them() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}"
    assert _template(source).render(_USER) == '<s>{"role": "user", "content": "hi <b>"}'
    assert _template("{{ strftime_now('%Y') | length }}").render(_USER) == "4"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ missing.field }}", "undefined"),
        ("{{ 1 + 'x' }}", "unsupported"),
    ],
    ids=["refused by the template", "private", "mutation", "undefined", "type"],
)
def test_a_template_that_fails_is_the_clients_400(source: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        _template(source).render(_USER)
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_model_without_a_template_answers_no_chat() -> None:
    with pytest.raises(ApiError, match="no chat template"):
        _template(None).render(_USER)


def test_a_template_that_cannot_be_read_stops_the_start() -> None:
    with pytest.raises(TemplateError, match="not valid"):
        _template("{% for %}")


def test_developers_speak_as_the_system_and_names_reach_the_template() -> None:
    source = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    messages_ = [
        Message(role="developer", content=[TextPart(type="text", text="be brief")]),
        Message(role="user", content="hi", name="ann"),
        Message(role="assistant", content=None),
    ]
    assert _template(source).render(messages_) == (
        '{"role": "system", "content": "be brief"}'
        '{"role": "user", "content": "hi", "name": "ann"}'
        '{"role": "assistant", "content": ""}'
    )


def test_a_full_queue_tells_by_its_pace_when_half_of_it_will_have_begun() -> None:
    pace = Pace()
    assert pace.retry_after_s(0.0, 100) == 5  # nothing was measured
    for second in range(10):
        pace.free(float(second), 4)
    # Four a second: fifty in thirteen.
    assert pace.retry_after_s(10.0, 100) == 13
    assert pace.retry_after_s(10.0, 1) == 1
    assert pace.retry_after_s(10.0, 100_000) == 30
    # A minute of nothing: what was before says nothing.
    assert pace.retry_after_s(100.0, 2) == 30


def test_the_speed_of_prompts_is_measured_where_a_step_was_mostly_prompts() -> None:
    pace = Pace()
    pace.prefill(0, 8, 0.02)
    pace.prefill(3, 8, 0.02)
    assert pace.prefill_tokens_per_s is None
    pace.prefill(512, 1, 0.5)
    assert pace.prefill_tokens_per_s == 1024
    for _ in range(100):
        pace.prefill(512, 1, 0.25)
    assert pace.prefill_tokens_per_s == pytest.approx(2048, rel=0.01)


def test_a_checkpoints_digest_is_what_sha256sum_says(tmp_path: Path) -> None:
    for name, data in (("b.bin", b"two"), ("a.json", b"one"), (".hidden", b"x")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder").mkdir()
    listed = subprocess.run(
        ["sha256sum", "a.json", "b.bin"], cwd=tmp_path, capture_output=True, check=True
    ).stdout
    whole = hashlib.sha256(listed).hexdigest()
    assert digests.checkpoint_digest(tmp_path) == f"sha256:{whole}"
    one = hashlib.sha256(b"one").hexdigest()
    assert digests.checkpoint_digest(tmp_path / "a.json") == f"sha256:{one}"


def test_a_checkpoint_that_is_gone_has_no_digest(tmp_path: Path) -> None:
    found = digests.DigestOf(tmp_path / "missing")
    found.thread.join(10)
    assert found.value is None


_texts = st.text(max_size=20)
_floats = st.floats(-2, 2, allow_subnormal=False)
_submits = st.builds(
    Submit,
    st.builds(
        Request,
        id=_texts,
        prompt=st.lists(st.integers(0, 1 << 31), max_size=9).map(tuple),
        max_tokens=st.integers(1, 1 << 20),
        sampling=st.builds(
            SamplingParams,
            temperature=st.floats(0, 2),
            top_p=st.floats(0.01, 1),
            top_k=st.integers(0, 100),
            min_p=st.floats(0, 1),
            presence_penalty=_floats,
            frequency_penalty=_floats,
            repetition_penalty=st.floats(0.1, 2),
            logit_bias=st.lists(st.tuples(st.integers(0, 9999), _floats), max_size=3).map(tuple),
            seed=st.integers(-(1 << 63), (1 << 63) - 1),
            num_top_logprobs=st.one_of(st.none(), st.integers(0, 20)),
        ),
        end_tokens=st.frozensets(st.integers(0, 1 << 20), max_size=4),
        min_tokens=st.integers(0, 100),
        num_samples=st.integers(1, 16),
        priority=st.integers(-(1 << 31), (1 << 31) - 1),
        root_key=st.binary(max_size=32),
    ),
)
_sampled = st.builds(
    Sampled,
    st.integers(0, 1 << 20),
    st.one_of(st.none(), st.floats(-100, 0)),
    st.lists(st.builds(TokenLogprob, st.integers(0, 1 << 20), st.floats(-100, 0)), max_size=3).map(
        tuple
    ),
)
_steps = st.builds(
    Step,
    st.lists(
        st.builds(
            Progress,
            _texts,
            st.integers(0, 15),
            _sampled,
            st.one_of(st.none(), st.sampled_from(FinishReason)),
            st.integers(0, 1 << 20),
        ),
        max_size=4,
    ).map(tuple),
    st.builds(Load, *[st.integers(0, 1 << 20)] * 8),
    st.integers(0, 512),
    st.floats(0, 10),
    st.lists(_texts, max_size=3).map(tuple),
)
_commands = st.one_of(
    _submits,
    st.builds(Abort, _texts),
    st.builds(AbortSample, _texts, st.integers(0, 15)),
    st.builds(Start, _texts, st.integers(0, 7), _texts),
)


@given(message=_commands)
def test_messages_to_the_rank_survive_the_border(message: ToRank) -> None:
    frame = messages.encode(message)
    length = messages.LENGTH.unpack(frame[:4])[0]
    assert length == len(frame) - 4
    assert messages.decode_to_rank(frame[4:]) == message


@given(message=st.one_of(_steps, st.builds(Failed, _texts, _texts, _texts)))
def test_messages_from_the_rank_survive_the_border(message: FromRank) -> None:
    frame = messages.encode(message)
    assert messages.decode_from_rank(frame[4:]) == message


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x80", messages.encode(Abort("a"))[4:]])
def test_what_is_no_message_is_an_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_from_rank(body)


def test_a_namespace_survives_the_border() -> None:
    layout = PageLayout(16, (PoolLayout("k", "bfloat16", (2, 3, 8)),))
    split = keys.Split(tensor_size=3, tensor_rank=1)
    namespace = keys.Namespace("w", layout, split, "bundle", "build", tenant_salt="t")
    assert messages.decode_namespace(messages.encode_namespace(namespace)) == namespace
