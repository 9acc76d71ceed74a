"""Whatever bytes arrive are a message or a WireError; what is packed is read back equal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kvstore import codec
from slipstream_kvstore.codec import (
    Found,
    FoundHead,
    Header,
    Kind,
    Limits,
    PageHead,
    Status,
    Stored,
    VersionError,
    WireError,
)

LIMITS = Limits(max_keys=8, max_page_bytes=1000)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
headers = st.builds(Header, st.sampled_from(Kind), u32, u32, st.sampled_from(Status))
page_keys = st.binary(min_size=32, max_size=32)
lengths = st.integers(1, LIMITS.max_page_bytes)
hits = st.builds(FoundHead, st.just(Found.HIT), lengths, u64)
no_hits = st.builds(FoundHead, st.sampled_from((Found.MISS, Found.BUSY)))
page_heads = st.builds(PageHead, page_keys, lengths, u64)


@given(headers)
def test_a_header_is_read_back_equal(header: Header) -> None:
    data = codec.pack_header(header)
    assert len(data) == codec.HEADER_BYTES
    assert codec.parse_header(data) == header


@given(hits | no_hits)
def test_a_found_head_is_read_back_equal(head: FoundHead) -> None:
    data = codec.pack_found_head(head)
    assert len(data) == codec.FOUND_HEAD_BYTES
    assert codec.parse_found_head(data, LIMITS) == head


@given(page_heads)
def test_a_page_head_is_read_back_equal(head: PageHead) -> None:
    data = codec.pack_page_head(head)
    assert len(data) == codec.PAGE_HEAD_BYTES
    assert codec.parse_page_head(data, LIMITS) == head


@given(
    st.lists(page_keys),
    st.lists(st.booleans()),
    st.lists(st.sampled_from(Stored)),
    st.builds(Limits, st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1)),
)
def test_lists_and_limits_are_read_back_equal(
    keys: list[bytes], bits: list[bool], stored: list[Stored], limits: Limits
) -> None:
    assert codec.parse_keys(codec.pack_keys(keys)) == keys
    assert codec.parse_bits(codec.pack_bits(bits)) == bits
    assert codec.parse_stored(codec.pack_stored(stored)) == stored
    assert codec.parse_limits(codec.pack_limits(limits)) == limits


def test_the_bytes_of_version_1_are_these() -> None:
    """Both sides of a rollout read them: a change here is another VERSION."""
    header = Header(Kind.GET, request_id=7, count=3)
    assert codec.pack_header(header).hex() == "534c4b56010003000700000003000000"
    hit = FoundHead(Found.HIT, 258, 9)
    assert codec.pack_found_head(hit).hex() == "01000000020100000900000000000000"
    page = PageHead(b"k" * 32, 258, 9)
    assert codec.pack_page_head(page).hex() == "6b" * 32 + "02010000" + "0900000000000000"
    assert codec.pack_limits(Limits(1, 258)).hex() == "0100000002010000"
    assert codec.checksum(b"k" * 32, b"page") == 0x34DAA93A217C7369


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_refusal(data: bytes) -> None:
    for parse in (
        codec.parse_header,
        codec.parse_keys,
        codec.parse_bits,
        codec.parse_stored,
        codec.parse_limits,
        lambda part: codec.parse_found_head(part, LIMITS),
        lambda part: codec.parse_page_head(part, LIMITS),
    ):
        try:
            parse(data)
        except WireError:
            continue


@given(st.binary(min_size=11, max_size=11))
def test_behind_our_magic_any_bytes_are_a_header_or_a_refusal(rest: bytes) -> None:
    try:
        header = codec.parse_header(b"SLKV\x01" + rest)
    except WireError:
        return
    assert codec.pack_header(header) == b"SLKV\x01" + rest


@given(headers)
def test_what_follows_a_request_is_bounded_before_it_is_read(header: Header) -> None:
    try:
        num_bytes = codec.request_bytes(header, LIMITS)
    except WireError:
        return
    assert 1 <= num_bytes <= max(codec.MAX_TOKEN_BYTES, LIMITS.max_keys * 32)
    assert header.status is Status.OK


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(Header(Kind.GET, 1, 0), id="no key"),
        pytest.param(Header(Kind.GET, 1, 9), id="one key too many"),
        pytest.param(Header(Kind.EXISTS, 1, 2**32 - 1), id="all the keys there are"),
        pytest.param(Header(Kind.SET, 1, 9), id="one page too many"),
        pytest.param(Header(Kind.HELLO, 1, 0), id="no token"),
        pytest.param(Header(Kind.HELLO, 1, codec.MAX_TOKEN_BYTES + 1), id="a token too long"),
        pytest.param(Header(Kind.GET, 1, 1, Status.INVALID), id="a refusal as a request"),
    ],
)
def test_a_request_beyond_the_limits_is_refused(header: Header) -> None:
    with pytest.raises(WireError):
        codec.request_bytes(header, LIMITS)


@pytest.mark.parametrize("length", [0, 1001, 2**32 - 1])
def test_a_page_beyond_the_limit_is_refused_on_both_sides(length: int) -> None:
    with pytest.raises(WireError):
        codec.parse_page_head(codec.pack_page_head(PageHead(b"k" * 32, length, 0)), LIMITS)
    with pytest.raises(WireError):
        codec.parse_found_head(codec.pack_found_head(FoundHead(Found.HIT, length, 0)), LIMITS)


def test_a_miss_has_no_bytes() -> None:
    with pytest.raises(WireError):
        codec.parse_found_head(codec.pack_found_head(FoundHead(Found.MISS, 5, 0)), LIMITS)


def test_another_version_is_told_from_garbage() -> None:
    data = bytearray(codec.pack_header(Header(Kind.HELLO, 0, 1)))
    data[4] = 2
    with pytest.raises(VersionError):
        codec.parse_header(bytes(data))


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Header(Kind.GET, 8, 3), id="to another request"),
        pytest.param(Header(Kind.EXISTS, 7, 3), id="to another kind"),
        pytest.param(Header(Kind.GET, 7, 2), id="of another size"),
    ],
)
def test_a_reply_belongs_to_its_request(reply: Header) -> None:
    with pytest.raises(WireError):
        codec.check_reply(reply, Header(Kind.GET, 7, 3))


@given(page_keys, st.binary(min_size=1, max_size=300), st.data())
def test_a_checksum_notices_one_bit_and_another_key(
    key: bytes, page: bytes, data: st.DataObject
) -> None:
    told = codec.checksum(key, page)
    assert codec.checksum(key, memoryview(page)) == told
    at = data.draw(st.integers(0, len(page) * 8 - 1))
    damaged = bytearray(page)
    damaged[at // 8] ^= 1 << at % 8
    assert codec.checksum(key, damaged) != told
    other = bytes((key[0] ^ 1,)) + key[1:]
    assert codec.checksum(other, page) != told
