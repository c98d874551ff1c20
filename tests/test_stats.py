"""`RowStats` against definitions written a second time, in numpy and in 50 digits."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isotherm.errors import ArgumentError
from isotherm.stats import STATISTICS, RowStats

NATS = ("lse", "max_logit", "logit_mean", "logit_std", "entropy")
SHARES = ("top1", "collision", "jacobian_trace", "jacobian_max", "sink", "entropy_fraction")

rows_of_logits = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=13),
    elements=st.floats(-1e4, 1e4, width=32),
)


def oracle(s: np.ndarray) -> dict[str, np.ndarray]:
    """Every statistic of rows s [R, n], straight from its definition, in float64."""
    s = s.astype(np.float64)
    peak = s.max(-1, keepdims=True)
    p = np.exp(s - peak) / np.exp(s - peak).sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0).sum(-1)
        fraction = entropy / math.log(s.shape[-1]) if s.shape[-1] > 1 else np.full(len(s), np.nan)
    jacobian = np.stack([np.diag(row) - np.outer(row, row) for row in p])
    return {
        "n": np.full(len(s), s.shape[-1]),
        "lse": peak[:, 0] + np.log(np.exp(s - peak).sum(-1)),
        "max_logit": peak[:, 0],
        "top1": p.max(-1),
        "logit_mean": s.mean(-1),
        "logit_std": s.std(-1),
        "entropy": entropy,
        "entropy_fraction": fraction,
        "collision": (p**2).sum(-1),
        "n_eff": 1 / (p**2).sum(-1),
        "jacobian_trace": np.trace(jacobian, axis1=1, axis2=2),
        "jacobian_max": np.abs(jacobian).max((1, 2)),
        "sink": p[:, 0],
    }


def assert_close(stats: RowStats, expected: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    for name, want in expected.items():
        got = getattr(stats, name).numpy().reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=tolerance, equal_nan=True, err_msg=name)


@given(rows_of_logits)
def test_every_statistic_is_its_definition(s):
    assert_close(RowStats.from_logits(torch.from_numpy(s)), oracle(s), tolerance=1e-9)


@given(rows_of_logits, st.integers(0, 13), st.integers(0, 13))
def test_merging_blocks_of_keys_is_the_whole_in_any_order(s, a, b):
    a, b = sorted((min(a, s.shape[1]), min(b, s.shape[1])))
    parts = [
        RowStats.from_logits(torch.from_numpy(s[:, x:y]), first_column=x) for x, y in ((0, a), (a, b), (b, s.shape[1]))
    ]
    x, y, z = parts
    for merged in (x.merge(y).merge(z), x.merge(y.merge(z)), z.merge(x).merge(y), y.merge(z).merge(x)):
        assert_close(merged, oracle(s), tolerance=1e-8)


def test_seeing_no_key_is_neutral_in_a_merge():
    stats = RowStats.from_logits(torch.tensor([[1.0, 2.0, -3.0]]))
    none = RowStats.none((1,))
    for merged in (stats.merge(none), none.merge(stats)):
        for name in STATISTICS:
            assert torch.equal(getattr(merged, name), getattr(stats, name)), name


@given(rows_of_logits, st.integers(-(2**12), 2**12))
def test_adding_a_constant_to_every_logit_moves_only_lse_max_and_mean(s, shift):
    s = np.round(s * 64) / 64  # on a grid, so that the shift itself is exact
    still, moved = RowStats.from_logits(torch.from_numpy(s)), RowStats.from_logits(torch.from_numpy(s).double() + shift)
    for name in (*SHARES, "entropy", "logit_std"):
        torch.testing.assert_close(getattr(moved, name), getattr(still, name), rtol=1e-9, atol=1e-9, equal_nan=True)
    for name in ("lse", "max_logit", "logit_mean"):
        torch.testing.assert_close(getattr(moved, name) - shift, getattr(still, name), rtol=0, atol=1e-9)


@given(rows_of_logits, st.randoms(use_true_random=False))
def test_the_order_of_keys_matters_only_to_sink(s, random):
    order = list(range(s.shape[1]))
    random.shuffle(order)
    stats, shuffled = RowStats.from_logits(torch.from_numpy(s)), RowStats.from_logits(torch.from_numpy(s[:, order]))
    for name in (*NATS, "jacobian_trace", "collision"):
        torch.testing.assert_close(getattr(shuffled, name), getattr(stats, name), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("gap", [0.5, 20.0, 60.0, 300.0])
def test_a_closed_gate_keeps_its_digits(gap):
    """1 − Σp² in 50 digits: at a gap of 60 it is 2e-26, where 1 − collision in float64 would give 0."""
    with mpmath.workdps(200):
        weights = [mpmath.e**x for x in (0, -mpmath.mpf(gap), -mpmath.mpf(gap) - 1)]
        p = [w / sum(weights) for w in weights]
        gate = float(1 - sum(x**2 for x in p))
        entropy = float(-sum(x * mpmath.log(x) for x in p))
    stats = RowStats.from_logits(torch.tensor([0.0, -gap, -gap - 1], dtype=torch.float64))
    assert stats.jacobian_trace.item() == pytest.approx(gate, rel=1e-13, abs=0)
    assert stats.entropy.item() == pytest.approx(entropy, rel=1e-13, abs=0)


def test_hidden_keys_are_not_there():
    s = torch.randn(5, 7, dtype=torch.float64)
    visible = torch.rand(5, 7) > 0.4
    visible[:, 3] = True
    got = RowStats.from_logits(torch.where(visible, s, torch.nan), visible)
    for row in range(5):
        want = RowStats.from_logits(s[row, visible[row]])
        for name in STATISTICS:
            torch.testing.assert_close(getattr(got, name)[row], getattr(want, name), equal_nan=True)


@pytest.mark.parametrize("alpha", [-700.0, -1.0, 0.0, 2.5, 700.0], ids=str)
def test_a_sink_is_one_more_outcome_but_no_key(alpha):
    s = torch.tensor([[0.3, -1.2, 2.0]], dtype=torch.float64)
    stats = RowStats.from_logits(s).with_sink(torch.tensor(alpha))
    both = oracle(np.append(s.numpy(), [[alpha]], axis=1))
    for name in ("lse", "entropy", "collision", "jacobian_trace", "entropy_fraction"):
        assert getattr(stats, name).item() == pytest.approx(both[name][0], rel=1e-12, abs=1e-15), name
    keys = oracle(s.numpy())
    for name in ("n", "max_logit", "logit_mean", "logit_std"):
        assert getattr(stats, name).item() == pytest.approx(keys[name][0]), name
    p = torch.softmax(torch.cat([s, torch.tensor([[alpha]], dtype=torch.float64)], -1), -1)[0, :3]
    assert stats.top1.item() == pytest.approx(p.max().item(), rel=1e-12)
    assert stats.sink.item() == pytest.approx(p[0].item(), rel=1e-12)
    assert stats.jacobian_max.item() == pytest.approx((torch.diag(p) - p.outer(p)).abs().max().item(), rel=1e-9)


def test_empty_and_invalid_rows_are_nan_and_left_out():
    s = torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [1.0, 1.0], [torch.inf, 0.0], [-torch.inf, 0.0]])
    visible = torch.tensor([[True, True], [True, True], [False, False], [True, True], [True, True]])
    stats = RowStats.from_logits(s.view(1, 1, 5, 2), visible.view(1, 1, 5, 2))
    assert stats.empty[0, 0].tolist() == [False, False, True, False, False]
    assert stats.invalid[0, 0].tolist() == [False, True, False, True, True]
    for name in STATISTICS[1:]:
        assert getattr(stats, name)[0, 0].isnan().tolist() == [False, True, True, True, True], name
    summary = stats.summary("entropy")
    assert (summary.rows.item(), summary.empty.item(), summary.invalid.item()) == (1, 1, 3)
    assert summary.mean.item() == stats.entropy[0, 0, 0].item()


def test_a_logit_too_large_for_half_precision_is_reported():
    stats = RowStats.from_logits(torch.tensor([[70000.0, 0.0], [60000.0, 0.0]]))
    assert stats.overflowing(torch.float16).tolist() == [True, False]
    assert stats.overflowing(torch.bfloat16).tolist() == [False, False]


def test_summary_is_numpys_quantiles_per_head():
    stats = RowStats.from_logits(torch.randn(2, 3, 11, 7, dtype=torch.float64))
    summary = stats.summary("jacobian_trace")
    for head in range(3):
        values = stats.jacobian_trace[:, head].numpy().ravel()
        assert summary.mean[head].item() == pytest.approx(values.mean())
        for name, fraction in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("min", 0), ("max", 1)):
            assert getattr(summary, name)[head].item() == pytest.approx(np.quantile(values, fraction)), name
    assert summary.label == "exact"
    assert summary.interval.tolist() == [0, 0, 0]


def test_an_unknown_statistic_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"statistic: expected one of n, lse, .* got 'temperature'"):
        RowStats.none((1, 1, 1)).summary("temperature")


def test_rows_without_any_key_keep_their_shape():
    stats = RowStats.from_logits(torch.zeros(2, 3, 0))
    assert stats.n.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_summary_of_one_row_is_that_row_and_of_none_is_nan():
    one, none = (RowStats.from_logits(torch.tensor([[[[1.0, 0.0]]]])[:, :, :rows]).summary("top1") for rows in (1, 0))
    top = 1 / (1 + np.exp(-1))
    assert [getattr(one, name).item() for name in ("p10", "p50", "p90", "min", "max")] == pytest.approx([top] * 5)
    assert (none.rows.item(), none.p50.isnan().item()) == (0, True)


def test_empty_and_invalid_rows_are_counted_per_head():
    logits = torch.zeros(2, 3, 4, 5)
    visible = torch.ones_like(logits, dtype=torch.bool)
    visible[1, 2, :3] = False
    logits[0, 1, 2, 4] = torch.nan
    summary = RowStats.from_logits(logits, visible).summary("entropy")
    assert summary.empty.tolist() == [0, 0, 3]
    assert summary.invalid.tolist() == [0, 1, 0]
    assert summary.rows.tolist() == [8, 7, 5]


@given(st.integers(1, 3), st.integers(2, 5), st.integers(2, 9), st.integers(0, 20), st.integers(0, 2**16))
def test_the_interval_of_sampled_rows_is_that_of_a_finite_population(batch, heads, rows, unseen, seed):
    logits = torch.randn(batch, heads, rows, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    stats = replace(RowStats.from_logits(logits), rows=torch.arange(rows), total_rows=rows + unseen)
    for name, summary in stats.summaries(("entropy", "lse", "top1")).items():
        for head in range(heads):
            values = getattr(stats, name)[:, head].numpy().ravel()
            error = values.std(ddof=1) / math.sqrt(len(values)) * math.sqrt(unseen / (rows + unseen))
            assert summary.interval[head].item() == pytest.approx(1.96 * error, rel=1e-9, abs=1e-12), name
        assert summary.label == "sampled"


def test_the_interval_of_sampled_rows_leaves_out_the_empty_ones():
    stats = RowStats.from_logits(torch.randn(1, 1, 4, 3).double(), torch.tensor([1, 1, 0, 1]).bool().view(1, 1, 4, 1))
    values = stats.lse[0, 0, [0, 1, 3]]
    found = replace(stats, rows=torch.arange(4), total_rows=8).summary("lse").interval
    assert found.item() == pytest.approx(1.96 * (values.var() / 3 / 2).sqrt().item())


@pytest.mark.parametrize(("total", "expected"), [(9, [True, True, False]), (3, [False] * 3), (None, [False] * 3)])
def test_the_interval_is_unknown_where_fewer_than_two_of_the_rows_were_seen(total, expected):
    """One row says nothing of how far the others lie from it: 0 would be a claim."""
    seen = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 1]]).bool().view(1, 3, 3, 1)
    stats = RowStats.from_logits(torch.randn(1, 3, 3, 4).double(), seen)
    interval = replace(stats, rows=torch.arange(3), total_rows=total).summary("entropy").interval
    assert interval.isnan().tolist() == expected
    assert total == 9 or interval.tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_a_merged_row_is_invalid_if_either_part_is(bad):
    sound, broken = (RowStats.from_logits(torch.tensor([[1.0, last]])) for last in (2.0, bad))
    for merged in (sound.merge(broken), broken.merge(sound)):
        assert merged.invalid.tolist() == [True]
        assert merged.lse.isnan().tolist() == [True]


def test_a_block_of_hidden_keys_has_no_first_key():
    s = torch.tensor([[3.0, 1.0, 2.0, 0.5]], dtype=torch.float64)
    visible = torch.tensor([[False, False, True, True]])
    parts = [RowStats.from_logits(s[:, x:y], visible[:, x:y], first_column=x) for x, y in ((0, 2), (2, 4))]
    for merged in (parts[0].merge(parts[1]), parts[1].merge(parts[0])):
        assert merged.first_key.tolist() == [2]
        assert merged.sink.item() == pytest.approx(math.exp(2) / (math.exp(2) + math.exp(0.5)))
