"""Saturated attention: rows whose sums run out of digits or range are recomputed, and only those."""

import pytest
import torch

from isotherm import attention
from isotherm.ops import Problem, Visibility
from isotherm.ops import triton as kernels
from isotherm.ops.triton import fast, key_splits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf
NAMES = ("n", "lse", "max_logit", "entropy", "logit_mean", "logit_std", "sink", "collision")


@pytest.fixture(autouse=True)
def small(device, monkeypatch, poisoned_memory):
    """Have several spans and turns even for few rows, and tiles that are small enough for the interpreter."""
    monkeypatch.setattr(fast, "SPAN", 64)
    monkeypatch.setattr(fast, "TURNS", 2)
    if device == "cpu":
        tile = fast.Tuning(16, 16, 1, 4)
        for name in ("OUTPUT", "STATISTICS"):
            monkeypatch.setattr(fast, name, {causal: {32: tile} for causal in (False, True)})
        monkeypatch.setattr(fast, "SAMPLED", {32: tile})
        monkeypatch.setattr(fast, "RECOMPUTE", {False: tile, True: tile})


@pytest.fixture
def marked(monkeypatch):
    """The marks of each launch."""
    found, again = [], fast.recompute_marked
    monkeypatch.setattr(
        fast,
        "recompute_marked",
        lambda call, cut, marks, **o: (found.append(marks.clone()), again(call, cut, marks, **o)),
    )
    return found


def hot(device, *, spread, heads=2, t=150, s=170):
    """Draw q, k, v whose logits have this standard deviation; also the scale, and float64 copies for the reference."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, h, n, 32, generator=g).half() for h, n in ((2 * heads, t), (heads, s), (heads, s)))
    return (*(x.to(device) for x in (q, k, v)), spread * 32**-0.5, tuple(x.double() for x in (q, k, v)))


def assert_same(got, want, spread):
    """Statistics are as close as float32 logits allow; the gate keeps its relative digits even in frozen rows."""
    for name in NAMES:
        torch.testing.assert_close(
            getattr(got, name).double().cpu(), getattr(want, name).double(), rtol=2e-5, atol=2e-6 * spread, msg=name
        )
    torch.testing.assert_close(got.jacobian_trace.cpu(), want.jacobian_trace, rtol=2e-6 * spread + 1e-4, atol=1e-30)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("spread", [6.0, 200.0], ids=["unscaled", "out of range"])
def test_output_and_statistics(spread, causal, device, marked):
    q, k, v, scale, wide = hot(device, spread=spread)
    got = attention(q, k, v, causal=causal, scale=scale, stats=True, impl="triton")
    want = attention(*wide, causal=causal, scale=scale, stats=True, impl="reference")
    assert len(marked) == 1
    assert 0 < marked[0].sum() < marked[0].numel() or spread > 6
    assert_same(got.stats, want.stats, spread)
    assert (got.lse.double().cpu() - want.lse).abs().max() < 2e-6 * spread
    assert (got.output.double().cpu() - want.output).abs().max() < 4e-3


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("sampled", [False, True], ids=["every row", "some rows"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_statistics_alone(causal, sampled, split, device, marked, monkeypatch):
    monkeypatch.setattr(key_splits, "PROGRAMS", 1 << 20 if split else 1)
    monkeypatch.setattr(key_splits, "LEAST_SPLIT", 64)
    q, k, v, scale, wide = hot(device, spread=6.0)
    rows = torch.tensor([3, 40, 41, 77, 112, 113, 149], device=device) if sampled else None
    seen = Visibility(torch.arange(150, device=device) + 20, 170, causal)
    got = kernels.statistics(Problem(q, k, v, seen, scale), rows)
    want = attention(*wide, causal=causal, scale=scale, stats=True, impl="reference").stats
    assert marked[0].sum() > 0
    assert (marked[0].numel() > got.entropy.numel()) == split
    assert_same(got, want if rows is None else want.map(lambda x: x[:, :, rows.cpu()]), 6.0)


def test_a_negative_scale_picks_the_smallest_product(device, marked):
    q, k, v, scale, wide = hot(device, spread=6.0)
    got = kernels.statistics(Problem(q, k, v, Visibility(torch.arange(150, device=device), 170), -scale))
    assert marked[0].sum() > 0
    assert_same(got, attention(-wide[0], *wide[1:], scale=scale, stats=True, impl="reference").stats, 6.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_rows_that_meet_nan_or_inf_are_invalid_and_no_others(bad, device):
    q, k, v, scale, _ = hot(device, spread=6.0)
    q, k = q.abs(), k.abs()
    q[0, 1, 3, 0] = bad
    k[0, 1, 60, 1] = bad
    expected = torch.zeros(1, 4, 150, dtype=torch.bool)
    expected[0, 1, 3] = True
    expected[0, 2:, 40:] = True
    stats = attention(q, k, v, causal=True, scale=scale, stats=True, impl="triton").stats
    assert torch.equal(stats.invalid.cpu(), expected)


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one in a span", "every row"]
)
def test_only_marked_rows_are_touched(every, device, marked):
    """Some rows have a key far above all others."""
    q, k, v, _, _ = hot(device, spread=1.0)
    k[:, :, 100] = 0
    k[:, :, 100, 0] = 30
    q[..., 0] = 0
    chosen = torch.arange(150) if every else torch.tensor([5, 70, 149])
    q[:, :, chosen, 0] = 4
    stats = kernels.statistics(Problem(q, k, v, Visibility(torch.arange(150, device=device), 170), 32**-0.5))
    expected = torch.zeros(1, 4, 150, dtype=torch.int8)
    expected[:, :, chosen] = 1
    assert torch.equal(marked[0].view(1, 4, 150).cpu(), expected)
    wide = (x.double().cpu() for x in (q, k, v))
    assert_same(stats, attention(*wide, stats=True, impl="reference").stats, 30.0)
