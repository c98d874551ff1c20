"""Interpolated sums are as good as sums at the scale itself, whatever the logits are."""

from ctypes import c_float
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm import attention
from isotherm.ops import triton as kernels
from isotherm.ops.triton import launch, several_scales
from isotherm.ops.triton import several_scales_interpolation as interpolation
from tests.ops.cases import Case, assert_same_statistics, problem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf

UNRELATED = [0.2 * 1.34**i for i in range(8)]
NODES = torch.tensor([c_float(2.0 ** (i / 2)).value for i in range(interpolation.NODES)], dtype=torch.float64)
KEYS = 16384
BOUND = {"sum": 3e-6, "entropy": 3e-5, "squares": 5e-5}
"""For rows of KEYS keys: of Σw and Σw² relative errors, of the entropy in nats."""


def mix(ratios):
    return torch.from_numpy(interpolation.coefficients(ratios.numpy()))


def errors(logits, counts, ratios, mixture=None):
    """Errors of interpolated sums over `counts` keys at each of these logits (exponents of 2 at the lowest node)."""
    weights = counts[:, None] * torch.exp2(logits[:, None] * NODES)
    known, slopes = weights.sum(0), (weights * logits[:, None]).sum(0)
    level = known[-1].log2() / NODES[-1]
    by = torch.exp2(-level * NODES)
    terms = torch.stack([known * by, (slopes - level * known) * by], 1)
    value, slope, square = torch.einsum("ijqk,ij->qk", mix(ratios) if mixture is None else mixture, terms)
    wanted = counts[:, None] * torch.exp2((logits[:, None] - level) * ratios)
    total, cross = wanted.sum(0), (wanted * (logits[:, None] - level)).sum(0)
    squares = (counts[:, None] * torch.exp2(2 * (logits[:, None] - level) * ratios)).sum(0)
    return {
        "sum": (value / total - 1).abs().max(),
        "entropy": ((slope - cross) / total * ratios * log(2)).abs().max(),
        "squares": (square / squares - 1).abs().max(),
    }


@given(
    st.lists(st.tuples(st.floats(0, 60), st.integers(1, KEYS // 8)), min_size=1, max_size=8),
    st.lists(st.floats(0.5, 3.5), min_size=1, max_size=12),
)
def test_sums_between_half_octaves_have_their_digits_whatever_the_logits(keys, octaves):
    """Logits go down to 60 octaves below the largest, at the lowest node."""
    below, counts = (torch.tensor(x, dtype=torch.float64) for x in zip(*keys, strict=True))
    found = errors(below.min() - below, counts, torch.exp2(torch.tensor(octaves, dtype=torch.float64)))
    assert all(found[name] <= bound for name, bound in BOUND.items()), found


def test_the_worst_rows():
    """The relative error is a ratio of two sums over the keys, so it is largest for a row with two kinds of keys."""
    ratios = torch.exp2(torch.linspace(0.5, 3.5, 25, dtype=torch.float64))
    mixture, worst = mix(ratios), dict.fromkeys(BOUND, 0.0)
    for below in torch.linspace(0, 30, 121, dtype=torch.float64).tolist():
        for one, other in ((1, 1), (1, 16), (1, 256), (1, KEYS), (16, 256), (16, KEYS), (256, KEYS)):
            logits, counts = torch.tensor([0.0, -below]).double(), torch.tensor([one, other]).double()
            found = errors(logits, counts, ratios, mixture)
            worst = {name: max(worst[name], found[name].item()) for name in worst}
    assert all(bound / 2 < worst[name] <= bound for name, bound in BOUND.items()), worst


def test_nodes_reach_from_below_the_lowest_scale_to_twice_the_highest():
    low, *_, high = interpolation.nodes(1.6)
    assert high == pytest.approx(3.2)
    assert low == pytest.approx(1.6 / interpolation.MOST_RATIO / 2**0.5)
    assert several_scales.interpolation_plan(1.6).factors.count(several_scales.EXPONENTIAL) == 2


@pytest.fixture
def tables(monkeypatch):
    """The sets of scales that were interpolated."""
    asked, real = [], interpolation.table
    monkeypatch.setattr(
        interpolation, "table", lambda scales, device: (asked.append(list(scales)), real(scales, device))[1]
    )
    return asked


def check(case, scales, device, *, dtype=torch.float16, rows=None, **options):
    q, k, v = (x.to(device) for x in case.tensors(dtype))
    found = kernels.statistics_at(problem(q, k, v, scale=1.0, **options), scales, rows)
    wide = [x.double().cpu() for x in (q, k, v)]
    if rows is not None:
        wide[0] = wide[0][:, :, rows.cpu()]
    hidden = {name: x.cpu() if torch.is_tensor(x) else x for name, x in options.items()}
    for scale, got in zip(scales, found, strict=True):
        want = attention(*wide, scale=scale, stats=True, impl="reference", **hidden).stats
        assert_same_statistics(got, want, budget=5e-5)
        torch.testing.assert_close(got.jacobian_trace.cpu(), want.jacobian_trace, rtol=1e-3, atol=0, equal_nan=True)


SMALL = Case("", batch=1, heads=1, queries=67, keys=83, dim=32, value_dim=32)


@pytest.mark.parametrize(
    ("scales", "passes"),
    [
        (UNRELATED, [8]),
        ([0.2 + 0.07 * i for i in range(21)], [21]),
        ([0.02 * 1.34**i for i in range(18)], [8, 8]),
        ([0.02 * 1.9**i for i in range(8)], []),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], []),
        (UNRELATED[:5], []),
    ],
    ids=["unrelated", "many", "many octaves", "too far apart", "sums of others", "few"],
)
@pytest.mark.parametrize("kind", ["plain", "causal", "window", "rows"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_which_scales_share_a_pass(scales, passes, kind, device, tables):
    options = {"causal": {"causal": True}, "window": {"causal": True, "window": 30}}.get(kind, {})
    check(SMALL, scales, device, rows=torch.tensor([1, 4, 66], device=device) if kind == "rows" else None, **options)
    assert [len(each) for each in tables] == passes


@pytest.mark.usefixtures("small_tiles")
def test_float32_has_sums_of_its_own(device, tables):
    check(SMALL, UNRELATED, device, dtype=torch.float32)
    assert not tables


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_sums_of_their_own_are_there_still(causal, device, monkeypatch, tables):
    monkeypatch.setattr(several_scales, "MOST_EXPONENTIALS", several_scales.SCALES_AT_ONCE)
    check(SMALL, UNRELATED, device, causal=causal)
    assert not tables


@pytest.mark.parametrize("kind", ["plain", "window", "rows"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_rows_whose_weights_leave_float32_are_done_again(kind, device, monkeypatch, splitting):
    """One key is so far above all others that these have no weight at the highest node, but some at the lowest scale. In
    the plain case, where that does no harm, two keys are so far above the first ones that their weights overflow."""
    q, k = (torch.zeros(1, 1, size, 32, dtype=torch.float16, device=device) for size in (64, 160))
    q[..., 0] = 1
    flagged, real = [], several_scales._launch_general
    monkeypatch.setattr(
        several_scales,
        "_launch_general",
        lambda *args: (flagged.append(args[4]) if len(args) == 5 else None, real(*args))[1],
    )
    rows = torch.tensor([1, 40, 63], device=device) if kind == "rows" else None
    options = {"window": 150} if kind == "window" else {}
    for far, again in ((40.0 if kind == "plain" else 24.0, True), (2.0, False)):
        k[..., 0] = -far * (torch.arange(160, device=device) % 7 + 4) / 4
        k[:, :, 3, 0] = 0
        if kind == "plain":
            k[:, :, 30:32, 0] = far
        flagged.clear()
        found = kernels.statistics_at(problem(q, k, k, scale=1.0, causal=kind == "window", **options), UNRELATED, rows)
        assert any(bool(flags.any()) for flags in flagged) == again
        for scale, got in zip(UNRELATED, found, strict=True):
            wide = [x.double().cpu() for x in (q if rows is None else q[:, :, rows], k, k)]
            want = attention(*wide, scale=scale, stats=True, impl="reference", causal=kind == "window", **options).stats
            assert_same_statistics(got, want, budget=5e-5)
            torch.testing.assert_close(got.jacobian_trace.cpu(), want.jacobian_trace, rtol=1e-3, atol=0, equal_nan=True)


@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_a_sink_does_no_harm(device, monkeypatch):
    """The sink is by far the largest in every row and among the first keys. It must not become the reference."""
    q, k, v = (x.to(device) for x in SMALL.tensors(torch.float16))
    q[..., 0], k[..., 0], k[:, :, 1, 0] = 1, 0, 50
    flagged, real = [], several_scales._launch_general
    monkeypatch.setattr(
        several_scales, "_launch_general", lambda *args: (flagged.append(bool(args[4].any())), real(*args))[1]
    )
    found = kernels.statistics_at(problem(q, k, v, scale=1.0), UNRELATED)
    assert flagged == [False]
    for scale, got in zip(UNRELATED, found, strict=True):
        wide = (x.double().cpu() for x in (q, k, v))
        want = attention(*wide, scale=scale, stats=True, impl="reference").stats
        torch.testing.assert_close(got.jacobian_trace.cpu(), want.jacobian_trace, rtol=1e-3, atol=0)


@pytest.mark.usefixtures("small_tiles")
def test_a_graph_that_is_captured_without_a_table_does_without(device, monkeypatch, tables):
    monkeypatch.setattr(interpolation, "_tables", {})
    monkeypatch.setattr(interpolation, "_in_graphs", {})
    monkeypatch.setattr(interpolation, "_capturing", lambda _: True)
    launch.forget()
    check(SMALL, UNRELATED, device)
    assert not tables
    monkeypatch.setattr(interpolation, "_capturing", lambda _: False)
    check(SMALL, UNRELATED, device)
    monkeypatch.setattr(interpolation, "_capturing", lambda _: True)
    check(SMALL, UNRELATED, device)
    assert tables == [UNRELATED] * 2
    assert list(interpolation._in_graphs) == list(interpolation._tables)  # and is not let go of


def test_a_table_is_the_same_every_time(monkeypatch):
    """A table is the same to the last bit, wherever its memory lies and whatever the default device is."""
    monkeypatch.setattr(interpolation, "_tables", {})
    first, held = interpolation.table(UNRELATED, torch.device("cpu")), []
    for size in range(1, 40):
        interpolation._tables.clear()
        held.append(bytearray(7 * size))
        with torch.device("meta"):
            assert torch.equal(first, interpolation.table(UNRELATED, torch.device("cpu")))


def test_old_tables_are_let_go_of(monkeypatch):
    monkeypatch.setattr(interpolation, "_tables", {})
    monkeypatch.setattr(interpolation, "MOST_TABLES", 3)
    for i in range(1, 6):
        interpolation.table([0.1 * i, 0.15 * i], torch.device("cpu"))
    assert len(interpolation._tables) == 3
