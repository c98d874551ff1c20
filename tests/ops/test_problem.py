"""Which keys a query sees: blocks, counts and the whole matrix agree, and no more memory or work is spent than needed."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm import attention
from isotherm.errors import UnsupportedError
from isotherm.ops import Problem, Visibility, blockwise, reference, statistics_at, tiles
from isotherm.scale import InverseSqrt, LogN
from tests.ops.cases import Case
from tests.ops.watch import LargestTensor

KEYS = 7
RANGES = [slice(start, stop) for start, stop in product(range(KEYS), range(1, KEYS + 1)) if start < stop]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 7])
def test_a_block_and_the_counts_are_those_of_the_matrix(causal, window):
    visibility = Visibility(torch.arange(-1, KEYS - 1), KEYS, causal, window)
    matrix = visibility.matrix()[0, 0]
    assert visibility.counts().tolist() == [[matrix.sum(-1).tolist()]]
    for rows, columns in product(RANGES, RANGES):
        geometry, block = visibility.geometry(rows, columns), matrix[rows, columns]
        assert (geometry is True) == bool(block.all())  # the fast path is taken wherever it can be
        assert geometry is not False or not block.any()
        assert isinstance(geometry, bool) or torch.equal(geometry, block)
        if rows.stop - rows.start == 1:
            assert (geometry is False) == (not block.any())


def test_what_is_added_to_a_position_fits_32_bits():
    """Compilers of GPU code index in 32 bits: a step of more than these in a compiled rule by position does not compile."""
    for window in (None, 1, 5, 1 << 30):
        seen = Visibility(torch.arange(7), 7, causal=False, window=window)
        assert max(seen.behind, seen.ahead) + (1 << 30) <= 1 << 31


def test_log_n_counts_the_keys_of_a_window():
    """Queries at 0, 1 and 2 of a causal window of 2 see 1, 2 and 2 keys: ln 2/ln 2 = 1 is the multiplier of each."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 9, 4, generator=g) for _ in range(3))
    one = attention(q, k, v, scale=InverseSqrt(), causal=True, window=2).output
    torch.testing.assert_close(attention(q, k, v, scale=InverseSqrt() * LogN(2), causal=True, window=2).output, one)


@pytest.mark.parametrize("shape", [(16, 1, 8, 64), (1, 16, 8, 64)], ids=["batch", "heads"])
def test_counting_a_mask_takes_some_rows_at_a_time(shape, monkeypatch):
    monkeypatch.setattr("isotherm.ops.problem.MASK_AT_ONCE", 16 * 64)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.5
    visibility = Visibility(torch.arange(8), 64, mask=mask)
    with LargestTensor() as seen:
        counts = visibility.counts()
    assert torch.equal(counts, mask.sum(-1))
    monkeypatch.setattr("isotherm.ops.problem.MASK_AT_ONCE", 1)
    assert torch.equal(visibility.counts(), counts)
    assert seen.largest == counts.untyped_storage().nbytes()  # no part of the mask was larger


@pytest.mark.parametrize(
    ("options", "used"),
    [({}, True), ({"causal": True}, True), ({"mask": torch.ones(40, 40, dtype=torch.bool)}, False)],
    ids=["plain", "causal", "mask"],
)
def test_moments_of_keys_are_used_for_plain_rows_alone(options, used, monkeypatch):
    """With a mask every block may have hidden keys, and sums over all keys would be made in vain."""
    made = []
    monkeypatch.setattr(blockwise, "KEYS", 8)
    monkeypatch.setattr("isotherm.ops.tiles.KEYS", 8)
    original = blockwise.KeyMoments
    monkeypatch.setattr(blockwise, "KeyMoments", lambda *args: made.append(args) or original(*args))
    q = torch.randn(1, 1, 40, 4, generator=torch.Generator().manual_seed(0))
    attention(q, q, q, stats=True, impl="blockwise", **options)
    assert bool(made) == used


def test_the_first_and_the_last_row_may_be_asked_for():
    q = torch.randn(1, 1, 5, 3, generator=torch.Generator().manual_seed(0))
    whole, two = (attention(q, q, q, stats=True, rows=rows).stats for rows in (None, torch.tensor([4, 0])))
    assert two.rows.tolist() == [0, 4]
    torch.testing.assert_close(two.entropy, whole.entropy[:, :, [0, 4]])


@pytest.mark.parametrize("at_once", [1, 4, 320], ids="{} at once".format)
@pytest.mark.parametrize("rows", [None, torch.tensor([1, 4]), torch.tensor([], dtype=torch.long)], ids=str)
@pytest.mark.parametrize("case", ["causal", "mask", "bias and cap"])
def test_statistics_at_several_scales_are_those_at_each(case, rows, at_once, monkeypatch):
    monkeypatch.setattr("isotherm.ops.scales.AT_ONCE", at_once)
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 6, 3, generator=g, dtype=torch.float64) for heads in (4, 2))
    mask = torch.rand(1, 4, 6, 6, generator=g) > 0.3
    bias = torch.randn(1, 1, 6, 6, generator=g, dtype=torch.float64)
    seen = Visibility(torch.arange(6), 6, case == "causal", mask=mask if case == "mask" else None)
    problem = Problem(q, k, k, seen, 0.7, *((bias, 2.0) if case == "bias and cap" else ()))
    scales = [0.5, 2.0, 0.25, 8.0, 1.0]
    for scale, stats in zip(scales, statistics_at(problem, scales, rows), strict=True):
        whole = blockwise.statistics(replace(problem, scale=scale))
        whole = whole if rows is None else whole.map(lambda tensor: tensor[:, :, rows])
        for name in ("entropy", "jacobian_trace", "logit_std", "max_logit", "sink", "n"):
            torch.testing.assert_close(getattr(stats, name), getattr(whole, name), equal_nan=True)
        assert (stats.rows, stats.total_rows) == ((None, None) if rows is None else (rows, 6))


def test_pytorchs_kernel_aligns_at_the_top_left_and_is_not_asked_for_the_bottom_right():
    g = torch.Generator().manual_seed(0)
    k = torch.randn(1, 1, 5, 4, generator=g)
    for queries in (1, 3):
        q = torch.randn(1, 1, queries, 4, generator=g)
        with pytest.raises(UnsupportedError, match="bottom-right"):
            attention(q, k, k, causal=True, impl="sdpa")
        for how in (True, "top-left"):
            found, expected = (attention(q, k, k, causal=how, impl=impl).output for impl in ("auto", "reference"))
            torch.testing.assert_close(found, expected)
    for queries in (0, 5):  # both alignments are the same
        assert attention(k[:, :, :queries], k, k, causal=True, impl="sdpa").impl == "sdpa"


def test_statistics_beside_pytorchs_kernel_make_no_n_by_n_matrix(monkeypatch):
    n = 211
    monkeypatch.setattr("isotherm.ops.tiles._kept", threading.local())  # other tests' scratch memory may be larger
    for place in ("tiles.KEYS", "blockwise.KEYS"):
        monkeypatch.setattr(f"isotherm.ops.{place}", 16)
    q = torch.randn(1, 1, n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with LargestTensor() as seen:
        attention(q, q, q, impl="sdpa", stats=True)
    assert seen.largest < n * n * 8 / 4


def test_an_observer_sees_each_call_and_surrounds_it(monkeypatch):
    seen = []

    @contextmanager
    def observer(problem, sink):
        seen.append((problem, sink))
        yield
        seen.append("done")

    monkeypatch.setattr("isotherm.ops.observers.observers", observers := [observer])
    monkeypatch.setattr("isotherm.ops.api.observers", observers)
    q = torch.randn(1, 1, 5, 3, generator=torch.Generator().manual_seed(0))
    attention(q, q, q, scale=0.5)
    ((problem, sink), done) = seen
    assert (problem.scale, sink, done) == (0.5, None, "done")
    assert torch.equal(problem.q, q)


@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 40), st.sampled_from([1, 2, 8]), st.integers(1, 3))
@settings(deadline=None)
def test_tiles_are_no_larger_than_they_may_be_and_no_flatter_than_they_need_be(queries, keys, heads, groups, batch):
    q, k = torch.empty(batch, heads * groups, queries, 0), torch.empty(batch, heads, keys, 0)
    covered = 0
    for chunk in tiles.chunks(Problem(q, k, k, Visibility(torch.arange(queries), keys, False))):
        pairs = chunk.pairs.stop - chunk.pairs.start
        row = min(tiles.KEYS, keys) * pairs * groups
        assert tiles.LEAST_HEIGHT <= chunk.height <= tiles.KEYS
        assert chunk.height * row <= max(tiles.TILE, tiles.LEAST_HEIGHT * row)
        assert chunk.height == tiles.KEYS or (chunk.height + 1) * row > tiles.TILE
        covered += pairs
    assert covered == batch * heads


@pytest.mark.parametrize("solve", [reference.solve, blockwise.solve], ids=["reference", "blockwise"])
def test_a_problem_without_a_scale_is_q_times_k(solve):
    q, k, v = Case("").tensors()
    solution = solve(Problem(q, k, v, Visibility(torch.arange(13), 13, False)), stats=True)
    torch.testing.assert_close(solution.output, torch.softmax(q @ k.mT, -1) @ v)
    torch.testing.assert_close(solution.stats.max_logit, (q @ k.mT).amax(-1))
