"""Attention in C: as the reference's, and to the bit the same however a sequence is cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slipstream_kernels import reference
from slipstream_kernels.native import Native
from slipstream_kernels.reference import Span
from slipstream_kernels.verify import verify
from tests.depth import cases
from tests.kernels.levels import LEVELS

_CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("tokens", "context"),
    [(1, 1), (1, 40), (1, 700), (5, 5), (7, 30), (16, 65), (17, 700), (40, 1100)],
)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(4, 4, 16), (6, 2, 64), (9, 3, 64), (8, 1, 128), (14, 2, 80), (4, 2, 8)],
)
def test_attention_is_that_of_the_reference(
    threaded: Native, tokens: int, context: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    shape = {
        "tokens": tokens,
        "context": context,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
    }
    verify("paged_attention", threaded.paged_attention, shape, torch.float32, _CPU)


@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 5, 40])
def test_attention_reads_every_kind_of_pool_and_no_row_of_others(
    library: Native, pool_dtype: torch.dtype, count: int
) -> None:
    rng = torch.Generator().manual_seed(1)
    keys, values = (torch.full((900, 2, 32), float("nan"), dtype=pool_dtype) for _ in range(2))
    runs = ((700, 100), (3, 1), (10, 130), (400, 7))
    for first, length in (*runs, (800, 60)):
        for pool in (keys, values):
            part = torch.randn(length, 2, 32, generator=rng) * 3
            pool[first : first + length] = part.to(pool_dtype)
    query = torch.randn(count + 1, 6, 32, generator=rng)
    spans = [Span(0, count, runs), Span(count, count + 1, ((800, 60),))]
    expected = reference.paged_attention(query, keys, values, spans)
    answer = library.paged_attention(query, keys, values, spans)
    assert float((answer - expected).abs().max()) < 1e-5
    # However the tokens are cut into chunks.
    for start, end in ((0, count // 2), (count // 2, count)):
        if start < end:
            left = _first(runs, 238 - count + end)
            part = library.paged_attention(
                query[start:end], keys, values, [Span(0, end - start, left)]
            )
            assert torch.equal(part, answer[start:end])
    # And wherever their keys lie.
    moved = torch.cat([torch.arange(first, first + length) for first, length in runs])
    whole = [Span(0, count, ((0, 238),))]
    together = library.paged_attention(query[:count], keys[moved], values[moved], whole)
    assert torch.equal(together, answer[:count])
    alone = library.paged_attention(query[count:], keys, values, [Span(0, 1, ((800, 60),))])
    assert torch.equal(alone[0], answer[count])


@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("past", [0, 1, 31, 470, 1300])
def test_a_token_of_a_tree_is_answered_as_in_a_chain(
    threaded: Native, pool_dtype: torch.dtype, past: int
) -> None:
    rng = torch.Generator().manual_seed(past)
    keys, values = (torch.randn(1500, 2, 32, generator=rng).to(pool_dtype) for _ in range(2))
    query = torch.randn(64, 6, 32, generator=rng)
    # Pages of 16 backwards; a chain for a while, then branches of every length.
    runs = tuple((1408 - 16 * page, 16) for page in range((past + 64) // 16))
    runs += ((1450, (past + 64) % 16),) if (past + 64) % 16 else ()
    rows = [row for first, length in runs for row in range(first, first + length)]
    ancestors = _masks([max(0, token - 1) if token < 20 else token * 7 % 23 for token in range(64)])
    tree = [Span(0, 64, runs, ancestors)]
    answer = threaded.paged_attention(query, keys, values, tree)
    expected = reference.paged_attention(query, keys, values, tree)
    assert float((answer - expected).abs().max()) < 1e-5
    for token in (0, 19, 20, 41, 63):
        way = [other for other in range(64) if ancestors[token] >> other & 1]
        seen = rows[:past] + [rows[past + other] for other in way]
        chain = [Span(0, len(way), ((0, len(seen)),))]
        alone = threaded.paged_attention(query[way], keys[seen], values[seen], chain)
        assert torch.equal(alone, answer[way])


@st.composite
def _sequences(draw: st.DrawFn) -> tuple[tuple[int, int, int], Span, bool]:
    """Heads, KV heads and their size; a span in pages in any order; whether pages are bfloat16.

    Lengths near the borders of blocks, parts and tiles more often than others.
    """
    kv_heads = draw(st.integers(1, 3))
    # More than 128 heads are not these kernels' to answer.
    heads = kv_heads * draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13, 42]))
    size = draw(st.sampled_from([16, 32, 48, 64, 80, 128, 144, 256]))
    count = draw(st.one_of(st.integers(1, 9), st.integers(1, 70)))
    border = draw(st.sampled_from([0, 32, 480, 512, 544, 1024]))
    past = max(0, border + draw(st.integers(-count - 2, 40)))
    page = draw(st.sampled_from([1, 16, 2000]))
    num_pages = -(-(past + count) // page)
    order = draw(st.permutations(range(num_pages)))
    runs = [(page * place, page) for place in order]
    runs[-1] = (runs[-1][0], past + count - page * (num_pages - 1))
    ancestors: tuple[int, ...] = ()
    if draw(st.booleans()):
        ancestors = _masks([draw(st.integers(-1, token - 1)) for token in range(count)])
    return (heads, kv_heads, size), Span(0, count, tuple(runs), ancestors), draw(st.booleans())


@pytest.mark.skipif(not LEVELS, reason="no level of the kernels in C runs here")
@cases(60)
@given(_sequences(), st.integers(0, 1 << 30))
def test_any_row_of_any_sequence_is_answered_as_alone_on_every_processor(
    sequence: tuple[tuple[int, int, int], Span, bool], seed: int
) -> None:
    (heads, kv_heads, size), span, is_bfloat16 = sequence
    rng = torch.Generator().manual_seed(seed)
    rows = [row for first, length in span.runs for row in range(first, first + length)]
    pool_dtype = torch.bfloat16 if is_bfloat16 else torch.float32
    # What lies beside the sequence is not a number.
    keys, values = (torch.full((2100, kv_heads, size), float("nan")) for _ in range(2))
    for pool in (keys, values):
        pool[rows] = 2 * torch.randn(len(rows), kv_heads, size, generator=rng)
    keys, values = keys.to(pool_dtype), values.to(pool_dtype)
    query = torch.randn(span.end, heads, size, generator=rng)
    libraries = [Native(level) for level in LEVELS]
    for library in libraries:
        library.set_threads(2)
    answers = [library.paged_attention(query, keys, values, [span]) for library in libraries]
    assert all(torch.equal(answers[0], answer) for answer in answers)
    expected = reference.paged_attention(query, keys, values, [span])
    assert float((answers[0] - expected).abs().max()) < 2e-5
    seen_of_all = reference.own_mask(span)
    for token in {0, span.end // 2, span.end - 1}:
        own = [
            row for row, sees in zip(rows[span.past_len :], seen_of_all[token], strict=True) if sees
        ]
        alone = _alone(libraries[0], query[token], keys, values, rows[: span.past_len] + own)
        assert torch.equal(alone, answers[0][token])


def _alone(library: Native, query: Tensor, keys: Tensor, values: Tensor, rows: list[int]) -> Tensor:
    """One token, its keys in one piece: [heads, size]."""
    span = Span(0, 1, ((0, len(rows)),))
    return library.paged_attention(query.unsqueeze(0), keys[rows], values[rows], [span])[0]


@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_a_token_that_is_no_number_spoils_none_that_does_not_see_it(
    library: Native, is_tree: bool
) -> None:
    rng = torch.Generator().manual_seed(2)
    keys, values = (torch.randn(120, 2, 64, generator=rng) for _ in range(2))
    query = torch.randn(20, 6, 64, generator=rng)
    # A chain of ten, then ten children of its last.
    ancestors = _masks([*range(-1, 9), *[9] * 10]) if is_tree else ()
    span = Span(0, 20, ((5, 110),), ancestors)
    clean = library.paged_attention(query, keys, values, [span])
    keys[5 + 90 + 13], values[5 + 90 + 13] = float("nan"), float("inf")
    spoilt = library.paged_attention(query, keys, values, [span])
    seeing = reference.own_mask(span)[:, 13]
    assert int(seeing.sum()) == (1 if is_tree else 7)
    assert torch.equal(spoilt[~seeing], clean[~seeing])
    assert bool(spoilt[seeing].isnan().all())


@pytest.mark.slow
def test_what_does_not_fit_into_memory_at_once_is_answered_in_turns(threaded: Native) -> None:
    """Sixteen MiB are 127 partial answers of so many heads; each row has two or three."""
    rng = torch.Generator().manual_seed(4)
    keys, values = (torch.randn(1100, 1, 256, generator=rng).bfloat16() for _ in range(2))
    query = torch.randn(90, 128, 256, generator=rng)
    spans = [Span(0, 80, ((0, 1060),)), Span(80, 90, ((90, 600),))]
    answer = threaded.paged_attention(query, keys, values, spans)
    expected = reference.paged_attention(query, keys, values, spans)
    assert float((answer - expected).abs().max()) < 1e-5
    for row, keys_seen in ((0, 981), (43, 1024), (44, 1025), (79, 1060)):
        alone = _alone(threaded, query[row], keys, values, list(range(keys_seen)))
        assert torch.equal(alone, answer[row])


def test_no_tokens_get_no_answers(library: Native) -> None:
    keys = torch.zeros(4, 2, 32)
    assert library.paged_attention(torch.zeros(0, 2, 32), keys, keys, []).shape == (0, 2, 32)


def _masks(parents: list[int]) -> tuple[int, ...]:
    """`Span.ancestors` of tokens with these parents; -1 or itself: it has none."""
    masks: list[int] = []
    for token, parent in enumerate(parents):
        masks.append((masks[parent] if 0 <= parent < token else 0) | 1 << token)
    return tuple(masks)


def _first(runs: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, int], ...]:
    """The first `count` rows."""
    found = []
    for first, length in runs:
        if count > 0:
            found.append((first, min(length, count)))
            count -= length
    return tuple(found)
