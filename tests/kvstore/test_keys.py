"""Keys never alias: the public bug reports of this field are nearly all about a field left out."""

import dataclasses
import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kvstore import keys
from slipstream_kvstore.keys import Namespace, Split
from slipstream_kvstore.layout import PageLayout, PoolLayout

POOLS = tuple(PoolLayout(name, "bfloat16", (30, 3, 64)) for name in ("k", "v"))
BASE = Namespace(
    weights_digest="sha256:ab",
    layout=PageLayout(16, POOLS),
    split=Split(tensor_size=2, tensor_rank=1, pipeline_size=2, pipeline_rank=0),
    kernel_bundle="sha256:cd",
    engine_build="0.1.0",
    adapter="x",
    tenant_salt="y",
)
ROOT = keys.root_key(BASE)

texts = st.text(st.characters(exclude_categories=()), max_size=6)
names = st.text("ab", min_size=1, max_size=2)
dimensions = st.lists(st.integers(1, 3), max_size=3).map(tuple)
pools = st.builds(PoolLayout, names, st.sampled_from(("float32", "bfloat16")), dimensions)
layouts = st.builds(
    PageLayout,
    st.integers(1, 300),
    st.lists(pools, min_size=1, max_size=3, unique_by=lambda pool: pool.name).map(tuple),
)
ranks = st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))
splits = st.builds(lambda t, p: Split(*t, *p), ranks, ranks)
namespaces = st.builds(
    Namespace,
    weights_digest=names,
    layout=layouts,
    split=splits,
    kernel_bundle=st.none() | names,
    engine_build=names,
    adapter=st.none() | texts,
    tenant_salt=st.none() | texts,
)
token_ids = st.integers(0, 2**32 - 1)
pages = st.lists(token_ids, min_size=1, max_size=20)


def decode(data: bytes) -> tuple[Any, bytes]:
    """One value from the front of an encoding, and the rest: what can be read back is injective."""
    kind, rest = data[:1], data[1:]
    if kind == b"n":
        return None, rest
    length, rest = int.from_bytes(rest[:4], "big"), rest[4:]
    if kind == b"t":
        items = []
        for _ in range(length):
            item, rest = decode(rest)
            items.append(item)
        return tuple(items), rest
    body, rest = rest[:length], rest[length:]
    assert len(body) == length
    return (int(body) if kind == b"i" else body.decode("utf-8", "surrogatepass")), rest


def as_read(value: Any) -> Any:
    """What `decode` must give for a namespace."""
    if isinstance(value, tuple):
        return tuple(as_read(item) for item in value)
    if not dataclasses.is_dataclass(value):
        return value
    fields = sorted(field.name for field in dataclasses.fields(value))
    return (type(value).__name__, *((name, as_read(getattr(value, name))) for name in fields))


@given(namespaces)
def test_an_encoding_can_be_read_back_so_no_two_namespaces_share_one(namespace: Namespace) -> None:
    assert decode(keys.encode(namespace)) == (as_read(namespace), b"")


@given(namespaces, namespaces)
def test_two_namespaces_have_one_root_only_when_they_are_equal(a: Namespace, b: Namespace) -> None:
    assert (keys.root_key(a) == keys.root_key(b)) == (a == b)


@given(st.lists(texts, min_size=2, max_size=2), st.integers(0, 12))
def test_moving_characters_between_adapter_and_salt_makes_another_key(
    parts: list[str], cut: int
) -> None:
    whole = "".join(parts)
    a = dataclasses.replace(BASE, adapter=parts[0], tenant_salt=parts[1])
    b = dataclasses.replace(BASE, adapter=whole[:cut], tenant_salt=whole[cut:])
    assert (keys.root_key(a) == keys.root_key(b)) == (a == b)


def with_split(**change: int) -> Namespace:
    return dataclasses.replace(BASE, split=dataclasses.replace(BASE.split, **change))


def with_pool(**change: Any) -> Namespace:
    first = dataclasses.replace(POOLS[0], **change)
    return dataclasses.replace(BASE, layout=PageLayout(16, (first, POOLS[1])))


# One namespace that differs from BASE in this field only.
OTHERS = {
    "weights_digest": dataclasses.replace(BASE, weights_digest="sha256:ac"),
    "layout.page_tokens": dataclasses.replace(BASE, layout=PageLayout(32, POOLS)),
    "layout.pools.name": with_pool(name="c"),
    "layout.pools.dtype": with_pool(dtype="float32"),
    "layout.pools.token_shape": with_pool(token_shape=(3, 30, 64)),
    "split.tensor_size": with_split(tensor_size=4),
    "split.tensor_rank": with_split(tensor_rank=0),
    "split.pipeline_size": with_split(pipeline_size=4),
    "split.pipeline_rank": with_split(pipeline_rank=1),
    "kernel_bundle": dataclasses.replace(BASE, kernel_bundle=None),
    "engine_build": dataclasses.replace(BASE, engine_build="0.1.1"),
    "adapter": dataclasses.replace(BASE, adapter="x2"),
    "tenant_salt": dataclasses.replace(BASE, tenant_salt="y2"),
}


def leaves(kind: type, prefix: str = "") -> Iterator[str]:
    parts: dict[str, type] = {"layout": PageLayout, "pools": PoolLayout, "split": Split}
    for field in dataclasses.fields(kind):
        if field.name in parts:
            yield from leaves(parts[field.name], f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def test_the_table_of_other_namespaces_has_every_field() -> None:
    assert set(OTHERS) == set(leaves(Namespace))


@pytest.mark.parametrize("field", OTHERS)
def test_a_change_of_one_field_leaves_no_page_in_common(field: str) -> None:
    other = keys.root_key(OTHERS[field])
    assert other != ROOT
    assert keys.next_key(other, range(16)) != keys.next_key(ROOT, range(16))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param({"adapter": "x"}, {"tenant_salt": "x"}, id="adapter and salt of one name"),
        pytest.param({"adapter": None}, {"adapter": ""}, id="no adapter and an empty name"),
        pytest.param({"adapter": None}, {"adapter": "None"}, id="no adapter and one named None"),
        pytest.param({"tenant_salt": None}, {"tenant_salt": ""}, id="no salt and an empty one"),
        pytest.param({"kernel_bundle": None}, {"kernel_bundle": ""}, id="no bundle, an empty name"),
        pytest.param({"tenant_salt": "é"}, {"tenant_salt": "e\u0301"}, id="two spellings"),
        pytest.param({"tenant_salt": "\udc80"}, {"tenant_salt": "\udc81"}, id="salts not Unicode"),
    ],
)
def test_what_other_projects_took_for_one_is_two(a: dict[str, Any], b: dict[str, Any]) -> None:
    empty = dataclasses.replace(BASE, adapter=None, tenant_salt=None)
    left, right = (dataclasses.replace(empty, **change) for change in (a, b))
    assert keys.root_key(left) != keys.root_key(right)


def test_pools_in_another_order_are_another_namespace() -> None:
    turned = dataclasses.replace(BASE, layout=PageLayout(16, POOLS[::-1]))
    assert keys.root_key(turned) != ROOT


GOLDEN = """
root 36ce8b1d2cb47b94d916971692f4210c55d9a598aa9b35a553b0fba7afd7bd9e
page 0ac49df3461ee0e14891ddbfcfe8b5309a3fb85453ad895e82c0eb62d5a33694
next 8c0e65f97bdca2aeb22ba8b6076336b96acfe32dfa3e6ec7c77e57cca5d3ba35
tenant b4081e3a9b8d3ad31a836aa2fabd4abe
"""
PROGRAM = """
from slipstream_kvstore import keys
from slipstream_kvstore.layout import PageLayout, PoolLayout
pools = tuple(PoolLayout(name, "bfloat16", (30, 3, 64)) for name in ("k", "v"))
namespace = keys.Namespace("sha256:ab", PageLayout(16, pools), keys.Split(), None, "0.1.0")
root = keys.root_key(namespace)
page = keys.next_key(root, range(16))
print("root", root.hex())
print("page", page.hex())
print("next", keys.next_key(page, [2**32 - 1] * 16).hex())
print("tenant", keys.tenant_id("salt").hex())
"""


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_every_process_gives_the_key_on_file(hash_seed: str) -> None:
    """The file is this one: a change of these digests makes every stored page unreachable."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.strip() == GOLDEN.strip()


@given(pages, pages)
def test_two_pages_have_one_key_only_when_their_tokens_are_equal(
    a: list[int], b: list[int]
) -> None:
    assert (keys.next_key(ROOT, a) == keys.next_key(ROOT, b)) == (a == b)


@given(pages, st.integers(1, 19))
def test_tokens_cut_into_other_pages_have_other_keys(tokens: list[int], cut: int) -> None:
    if cut < len(tokens):
        whole = keys.next_key(ROOT, tokens)
        assert keys.next_key(keys.next_key(ROOT, tokens[:cut]), tokens[cut:]) != whole


@given(pages)
def test_the_kind_of_sequence_does_not_matter(tokens: list[int]) -> None:
    key = keys.next_key(ROOT, tokens)
    assert len(key) == keys.KEY_BYTES
    assert keys.next_key(ROOT, tuple(tokens)) == keys.next_key(ROOT, array("I", tokens)) == key


@pytest.mark.parametrize(
    ("parent", "tokens", "error"),
    [
        pytest.param(ROOT[:-1], [1], ValueError, id="a short parent"),
        pytest.param(b"", [1], ValueError, id="no parent"),
        pytest.param(ROOT, [], ValueError, id="no tokens"),
        pytest.param(ROOT, [-1], OverflowError, id="a negative token"),
        pytest.param(ROOT, [2**32], OverflowError, id="a token of five bytes"),
        pytest.param(ROOT, [1.0], TypeError, id="a float"),
    ],
)
def test_what_is_no_page_has_no_key(
    parent: bytes, tokens: list[Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        keys.next_key(parent, tokens)


@given(st.none() | texts, st.none() | texts)
def test_tenants_have_one_id_only_when_they_are_one(a: str | None, b: str | None) -> None:
    assert (keys.tenant_id(a) == keys.tenant_id(b)) == (a == b)
    assert len(keys.tenant_id(a)) == keys.TENANT_BYTES


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: Split(tensor_size=2, tensor_rank=2), id="rank outside its group"),
        pytest.param(lambda: Split(pipeline_size=1, pipeline_rank=-1), id="a negative stage"),
        pytest.param(lambda: dataclasses.replace(BASE, weights_digest=""), id="no weights"),
        pytest.param(lambda: dataclasses.replace(BASE, engine_build=""), id="no engine build"),
    ],
)
def test_a_namespace_that_says_too_little_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"rank|needs"):
        build()
