"""Small parts of the engine: sizes, layouts, tokens, templates, observations, messages."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import messages, sizing
from slipstream_engine.apierror import ApiError
from slipstream_engine.chat import ChatTemplate, TemplateError
from slipstream_engine.messages import Abort, Failed, Step, Submit
from slipstream_engine.observations import Observation, ObservationRing
from slipstream_engine.protocol import Message
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.scheduler import Load, Progress
from slipstream_engine.tokens import InternalTokens
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
    many = sizing.resolve(_config(limits={"maxRunningSequences": 4}), _CHECKPOINT)
    assert (many.max_context, many.num_pages) == (4096, 4 * 2048 // 16)
    one = sizing.resolve(_config(limits={"maxRunningSequences": 1}), _CHECKPOINT)
    assert one.num_pages == 4096 // 16


def test_a_number_of_bytes_gives_the_whole_pages_that_fit() -> None:
    page_bytes = sizing.resolve(_config(), _CHECKPOINT).layout.page_bytes
    sizes = sizing.resolve(_config(pages={"kvBytes": 300 * page_bytes + 1}), _CHECKPOINT)
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
        sizing.resolve(_config(**sections), _CHECKPOINT)
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


def _observation(number: int) -> Observation:
    return Observation(float(number), None, 1, 2, None, None, "stop", None, False)


def test_a_reader_of_observations_gets_each_once_and_learns_what_it_missed() -> None:
    ring = ObservationRing()
    assert ring.after(0) == {"last": 0, "missed": 0, "observations": []}
    for number in range(5000):
        ring.add(_observation(number))
    late = ring.after(10)
    assert late["last"] == 5000
    assert late["missed"] == 5000 - 4096 - 10
    assert next(one["number"] for one in late["observations"]) == 5000 - 4096 + 1
    assert [one["number"] for one in ring.after(4998)["observations"]] == [4999, 5000]
    assert ring.after(5000)["observations"] == []
    json.dumps(late)


_texts = st.text(max_size=20)
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
            seed=st.integers(-(1 << 63), (1 << 63) - 1),
        ),
        end_tokens=st.frozensets(st.integers(0, 1 << 20), max_size=4),
    ),
)
_steps = st.builds(
    Step,
    st.lists(
        st.builds(
            Progress,
            _texts,
            st.integers(0, 1 << 20),
            st.one_of(st.none(), st.sampled_from(FinishReason)),
        ),
        max_size=4,
    ).map(tuple),
    st.builds(Load, *[st.integers(0, 1 << 20)] * 4),
)


@given(message=st.one_of(_submits, st.builds(Abort, _texts)))
def test_messages_to_the_rank_survive_the_border(message: Submit | Abort) -> None:
    frame = messages.encode_to_rank(message)
    length = messages.LENGTH.unpack(frame[:4])[0]
    assert length == len(frame) - 4
    assert messages.decode_to_rank(frame[4:]) == message


@given(message=st.one_of(_steps, st.builds(Failed, _texts, _texts, _texts)))
def test_messages_from_the_rank_survive_the_border(message: Step | Failed) -> None:
    frame = messages.encode_from_rank(message)
    assert messages.decode_from_rank(frame[4:]) == message
