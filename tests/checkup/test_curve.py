"""The temperature curve: what another factor on q·k would do, against what-if, the reference, and mathematics."""

from dataclasses import replace
from itertools import pairwise
from math import log, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import isotherm
from isotherm.checkup.curve import FACTORS, ROWS, best_open, with_curves
from isotherm.checkup.heads import head_tables, read_heads
from isotherm.checkup.layers import layers_of
from isotherm.checkup.memory import Remarks
from isotherm.checkup.rows import measure, quantile
from isotherm.ops import Problem, Visibility, reference
from isotherm.probe import Capture
from isotherm.probe.capture import Factor
from isotherm.record import CheckRecord, from_plain, to_plain
from isotherm.stats import Moments
from tests.checkup.models import Attention, Model, batch, trained

ONE = FACTORS.index(1.0)


def captured(*, n=24, heads=4, d=8, scale=0.5, seed=0, causal=False, mask=None, bias=None, softcap=None, sink=None):
    """A captured call of grouped queries, as a probe would bring it."""
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, h, n, d, generator=g) for h in (heads, heads // 2))
    problem = Problem(q, k, k, Visibility(torch.arange(n), n, causal, mask=mask), scale, bias, softcap)
    untraced = Factor(None, "untraced")
    return Capture("layer", "Module", "self", "sdpa", problem, sink, None, untraced, untraced)


def layer_of(capture, rows=None):
    """The layer's record and its measured rows."""
    stats = measure(capture, rows)
    heads = read_heads(head_tables([stats], detail=False))
    return layers_of(torch.nn.Identity(), [replace(capture, name="")], heads)[0], stats


def curve_of(layer, capture, stats):
    """The layer's curve."""
    return with_curves((layer,), [capture], [stats], Remarks())[0].curve


def curve(capture, rows=None):
    layer, stats = layer_of(capture, rows)
    return curve_of(layer, capture, stats)


def exactly(capture, factor):
    """The reference's statistics in float64 with q·k multiplied by a factor."""
    problem = capture.problem
    wide = {name: getattr(problem, name).double() for name in "qkv"}
    stats = reference.solve(replace(problem, **wide, scale=problem.scale * factor), stats=True).stats
    return stats if capture.sink is None else stats.with_sink(capture.sink.view(-1, 1))


def generator():
    return torch.Generator().manual_seed(1)


CASES = {
    "plain": {},
    "causal": {"causal": True},
    "mask": {"mask": torch.rand(2, 4, 24, 24, generator=generator()) > 0.4},
    "bias": {"bias": 2 * torch.randn(1, 4, 24, 24, generator=generator())},
    "soft cap": {"softcap": 3.0},
    "sink": {"sink": torch.tensor([0.0, 1.0, -1.0, 3.0])},
    "bias, soft cap, sink": {"bias": torch.ones(1, 1, 1, 24), "softcap": 2.0, "sink": torch.zeros(4)},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_curve_is_the_reference_at_every_factor(case):
    capture = captured(**case)
    found = curve(capture)
    assert (found.rows, found.rows_total, found.label) == (48, 48, "exact")
    for i, factor in enumerate(FACTORS):
        medians = exactly(capture, factor).summaries(("jacobian_trace", "entropy_fraction"))
        for head, mine in enumerate(found.heads):
            assert mine.gate[i] == pytest.approx(medians["jacobian_trace"].p50[head].item(), rel=1e-3)
            assert mine.entropy_fraction[i] == pytest.approx(medians["entropy_fraction"].p50[head].item(), rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"fused": False}, {"scale": 1.0, "early": 0.5}], ids=str)
def test_a_curve_passes_through_what_if(options):
    torch.manual_seed(0)
    model = trained(Model(Attention(**options), Attention(**options)))
    report = isotherm.check(model, batch(), what_if=["x0.5", "x2"], compare=False)
    for what_if, factor in zip(report.what_if, (1.0, 0.5, 2.0), strict=True):
        for layer, at in zip(report.layers, what_if.layers, strict=True):
            place = layer.curve.factors.index(factor)
            assert layer.curve.gate[place] == pytest.approx(at.jacobian_trace, rel=1e-3)
            assert layer.curve.entropy_fraction[place] == pytest.approx(at.entropy_fraction, rel=1e-3)
            heads = layer.curve.heads
            assert [head.gate[place] for head in heads] == pytest.approx(list(at.head_gate), rel=1e-3)
            assert [head.entropy_fraction[place] for head in heads] == pytest.approx(list(at.head_entropy), rel=1e-3)


@given(st.integers(0, 10**6), st.integers(2, 40), st.floats(0.05, 3))
def test_entropy_falls_from_uniform_to_one_key(seed, n, scale):
    """dH/df = −f·Var(u) under p, so entropy never rises with the factor."""
    capture = captured(n=n, scale=scale, seed=seed)
    for head in curve(capture).heads:
        entropies, gates = head.entropy_fraction, head.gate
        assert all(after <= before * (1 + 1e-3) for before, after in pairwise(entropies))
        assert max(gates) <= 1 - 1 / n + 1e-3
    for factor, limit in ((1e-6, 1.0), (1e6, 0.0)):
        extreme = curve(replace(capture, problem=replace(capture.problem, scale=factor)))
        assert extreme.entropy_fraction[ONE] == pytest.approx(limit, abs=1e-3)
        assert extreme.gate[ONE] == pytest.approx((1 - 1 / n) * limit, abs=1e-3)


def test_factor_times_gate_is_how_the_weights_answer_their_dot_products():
    """Σⱼ ∂pⱼ/∂uⱼ of softmax(f·u + bias), by automatic differentiation."""
    g = generator()
    u, bias = (torch.randn(12, generator=g, dtype=torch.float64) for _ in range(2))
    for factor in (0.25, 1.0, 3.0):
        weights = torch.func.jacrev(lambda u, f=factor: torch.softmax(f * u + bias, -1))(u)
        p = torch.softmax(factor * u + bias, -1)
        assert weights.trace().item() == pytest.approx(factor * (1 - p.square().sum()).item())


def test_best_open_is_the_largest_answer_within_the_range():
    found = curve(captured())
    for one in (found, *found.heads):
        answers = [factor * gate for factor, gate in zip(FACTORS, one.gate, strict=True)]
        assert one.best_open == pytest.approx(FACTORS[answers.index(max(answers))], rel=1e-3)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ((0.9,) * 17, None),
        ((0.0,) * 17, None),
        ((None,) * 17, None),
        (tuple(0.9 / factor**2 for factor in FACTORS), None),
        ((0.9,) * 10 + (0.01,) * 7, FACTORS[9]),
        ((0.9,) * 10 + (None,) * 7, None),
    ],
    ids=["still rising", "closed", "unknown", "falling", "within", "unknown beyond"],
)
def test_a_maximum_at_the_end_of_the_range_is_none(gate, expected):
    assert best_open(gate) == expected


def test_a_soft_cap_has_no_best_open_point():
    found = curve(captured(softcap=3.0))
    assert [one.best_open for one in (found, *found.heads)] == [None] * 5


def test_plain_logits_freeze_where_their_spread_says():
    layer, stats = layer_of(captured(scale=0.01))
    found = curve_of(layer, captured(scale=0.01), stats)
    critical = sqrt(2 * log(24))
    for head, one in zip(layer.head_stats, found.heads, strict=True):
        assert one.freezing == pytest.approx(critical / head.logit_std, rel=1e-3)
    assert min(one.freezing for one in found.heads) > FACTORS[-1]  # known beyond the range, too


def test_with_a_bias_they_freeze_where_the_measured_spread_says():
    capture = captured(bias=CASES["bias"]["bias"] / 2)
    for head, one in enumerate(curve(capture).heads):
        spread = exactly(capture, one.freezing).summaries(("logit_std",))["logit_std"].p50[head].item()
        assert spread == pytest.approx(sqrt(2 * log(24)), rel=0.01)


@pytest.mark.parametrize("case", [{"bias": 50 * CASES["bias"]["bias"]}, {"softcap": 0.5}], ids=["always", "never"])
def test_they_may_freeze_at_no_factor(case):
    found = curve(captured(**case))
    assert [one.freezing for one in (found, *found.heads)] == [None] * 5


@pytest.mark.parametrize(("n", "rows", "used"), [(100, None, ROWS), (100, 9, 9), (100, 50, ROWS), (20, None, 20)])
def test_sampled_rows_are_counted(n, rows, used):
    found = curve(captured(n=n), rows)
    assert (found.rows, found.rows_total) == (2 * used, 2 * n)
    assert found.label == ("exact" if used == n else "sampled")


def test_sampled_rows_are_among_those_that_were_measured():
    capture = captured(n=100)
    layer, stats = layer_of(capture, 9)
    assert curve_of(layer, capture, stats).gate[ONE] == pytest.approx(quantile(stats.jacobian_trace, 0.5), rel=1e-3)


def test_rows_that_were_left_out_as_padding_are_left_out():
    capture = captured(n=100)
    layer, stats = layer_of(capture)
    real = (torch.arange(100) < 20).double().expand(2, 1, 100)
    padded = replace(stats, moments=Moments(stats.moments.count * real, stats.moments.mean, stats.moments.m2))
    found = curve_of(layer, capture, padded)
    assert (found.rows, found.rows_total, found.label) == (40, 40, "exact")
    assert found.gate[ONE] == pytest.approx(quantile(padded.jacobian_trace, 0.5), rel=1e-3)


def test_a_head_with_nan_and_an_empty_one_have_no_curve_of_their_own():
    capture = captured(mask=(torch.arange(4) != 2).view(1, 4, 1, 1).expand(1, 4, 24, 24))
    capture.problem.q[:, 1] = torch.nan
    found = curve(capture)
    for head, one in enumerate(found.heads):
        missing = (None,) * len(FACTORS)
        assert (one.gate == missing, one.entropy_fraction == missing) == (head in (1, 2),) * 2
        assert (one.freezing is None) == (head in (1, 2))
    assert None not in found.gate


def test_a_layer_without_a_visible_key_has_no_curve():
    assert curve(captured(mask=torch.zeros(1, 1, 24, 24, dtype=torch.bool))) is None


def test_one_key_is_always_looked_at():
    found = curve(captured(n=1))
    assert set(found.gate) == {0.0}
    assert set(found.entropy_fraction) == {None}
    assert (found.freezing, found.best_open) == (None, None)


def test_it_is_part_of_the_detail_and_of_the_json():
    torch.manual_seed(0)
    model = trained(Model(Attention()))
    assert isotherm.check(model, batch(), what_if=(), compare=False, detail=False).layers[0].curve is None
    report = isotherm.check(model, batch(), what_if=(), compare=False)
    data = report.to_dict()
    assert from_plain(CheckRecord, data) == report.record
    assert [len(head["gate"]) for head in data["layers"][0]["curve"]["heads"]] == [17] * 4
    old = to_plain(report.record)
    del old["layers"][0]["curve"]
    assert from_plain(CheckRecord, old).layers[0].curve is None
