"""Several scales in one pass give what one pass for each gives in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm import attention
from isotherm.ops import triton as kernels
from isotherm.ops.triton import key_splits, several_scales
from isotherm.ops.triton.attention_call import AttentionCall
from isotherm.ops.triton.fields import Fields
from tests.ops.cases import Case, assert_same_statistics, problem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf


@pytest.mark.parametrize("scales", [[0.1, 0.2, 0.4], [0.3, 0.11, 0.7], [0.1, 0.15, 0.2, 0.3, 0.4]], ids=str)
@pytest.mark.parametrize("kind", ["full", "causal", "window", "padding", "mask", "bias"])
def test_several_scales_in_one_pass_are_one_pass_each(scales, kind, device, splitting):
    q, k, v = (x.to(device) for x in Case("", batch=1, heads=2, queries=19, keys=23).tensors(torch.float32))
    g = torch.Generator().manual_seed(1)
    options = {
        "full": {},
        "causal": {"causal": True},
        "window": {"causal": True, "window": 5},
        "padding": {"mask": (torch.arange(23) > 3).view(1, 1, 1, 23).to(device)},
        "mask": {"mask": (torch.rand(1, 1, 19, 23, generator=g) > 0.4).to(device)},
        "bias": {"bias": torch.randn(1, 1, 1, 23, generator=g).to(device)},
    }[kind]
    found = kernels.statistics_at(problem(q, k, v, scale=1.0, **options), scales)
    for scale, got in zip(scales, found, strict=True):
        wide = {name: x.double() if name == "bias" else x for name, x in options.items()}
        assert_same_statistics(
            got, attention(q.double(), k.double(), v.double(), scale=scale, stats=True, impl="reference", **wide).stats
        )


@pytest.mark.parametrize(
    "scales", [[0.1, 0.2, 0.4, 0.5], [0.05 * 1.34**i for i in range(8)]], ids=["sums", "unrelated"]
)
@pytest.mark.parametrize("kind", ["window", "mask", "rows"])
@pytest.mark.usefixtures("poisoned_memory")
def test_what_weights_are_relative_to_moves_at_every_scale(kind, scales, device, splitting):
    """Two blocks of keys have far larger logits than the blocks before and after them."""
    case = Case("", batch=1, heads=1, queries=40, keys=290, dim=32, value_dim=32)
    q, k, v = (x.to(device) for x in case.tensors(torch.float16))
    k *= torch.tensor([0.1, 3, 0.5, 12, 1], device=device).repeat_interleave(64)[:290, None].to(k.dtype)
    shown = (torch.rand(1, 1, 40, 290, generator=torch.Generator().manual_seed(2)) > 0.3).to(device)
    options = {"window": {"causal": True, "window": 270}, "mask": {"mask": shown}, "rows": {}}[kind]
    rows = torch.tensor([1, 4, 38], device=device) if kind == "rows" else None
    found = kernels.statistics_at(problem(q, k, v, scale=1.0, **options), scales, rows)
    for scale, got in zip(scales, found, strict=True):
        wide = [x.double().cpu() for x in (q, k, v)]
        if rows is not None:
            wide[0] = wide[0][:, :, rows.cpu()]
        hidden = {name: x.cpu() if name == "mask" else x for name, x in options.items()}
        want = attention(*wide, scale=scale, stats=True, impl="reference", **hidden).stats
        assert_same_statistics(got, want, budget=5e-5)


@pytest.mark.parametrize("sums", [False, True], ids=["every key", "sums of the keys"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "scales",
    [
        [1.6, 0.2, 0.4, 0.8],
        [0.2 + 0.17 * i for i in range(8)],
        [0.2 * 1.34**i for i in range(8)],
        [0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.8, 1.1, 1.2, 1.3],
    ],
    ids=["octaves", "evenly spaced", "unrelated", "ten"],
)
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_eight_scales_share_a_pass(scales, causal, sums, device, sums_pay):
    """At eight times the usual scale rows freeze, and the gate still has its digits."""
    keys, dtype = sums_pay() if sums else (83, torch.float16)
    case = Case("", batch=1, heads=1, queries=keys - 16, keys=keys, dim=32, value_dim=32)
    q, k, v = (x.to(device) for x in case.tensors(dtype))
    found = kernels.statistics_at(problem(q, k, v, scale=1.0, causal=causal), scales)
    for scale, got in zip(scales, found, strict=True):
        wide = (x.double().cpu() for x in (q, k, v))
        want = attention(*wide, causal=causal, scale=scale, stats=True, impl="reference").stats
        assert_same_statistics(got, want, budget=5e-5)
        torch.testing.assert_close(got.jacobian_trace.cpu(), want.jacobian_trace, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("scales", "exponentials"),
    [
        ([2.0 ** (i % 2 / 2) / 32 * 2 ** (i // 2) for i in range(8)], 2),
        ([0.2 + 0.17 * i for i in range(8)], 2),
        ([0.1 * i for i in range(1, 9)], 1),
        ([0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4], 2),
        ([0.3, 0.5, 0.8, 1, 1.5, 2, 3, 4], 2),
        ([0.2 * 1.34**i for i in range(8)], 8),
        ([2.0**i for i in range(8)], 2),
        ([0.4, 0.4, 0.4], 3),
        ([0.7], 1),
    ],
    ids=[
        "half-octaves",
        "evenly spaced",
        "multiples",
        "quarters",
        "by hand",
        "unrelated",
        "octaves",
        "the same",
        "one",
    ],
)
def test_what_is_a_sum_of_others_needs_no_exponential(scales, exponentials):
    assert several_scales.plan(tuple(scales)).factors.count(several_scales.EXPONENTIAL) == exponentials


@given(st.lists(st.one_of(st.integers(1, 60).map(lambda n: n / 20), st.floats(1e-3, 1e3)), min_size=1, max_size=8))
def test_a_plan_adds_up(scales):
    scales = sorted(scales)
    way = several_scales.plan(tuple(scales))
    helpers, factors = len(way.nodes) - len(scales), []
    assert helpers in (0, 1)
    assert list(way.nodes[helpers:]) == scales
    assert len(way.factors) == len(way.nodes)
    for i, (left, right) in enumerate(way.factors):
        factors.append(1 if (left, right) == several_scales.EXPONENTIAL else factors[left] + factors[right])
        assert max(left, right) < i
        assert (left, right) == several_scales.EXPONENTIAL or way.nodes[left] + way.nodes[right] == pytest.approx(
            way.nodes[i], 1e-11
        )
    assert max(factors) <= several_scales.MOST_FACTORS
    assert way.factors.count(several_scales.EXPONENTIAL) <= len(scales)
    for scale, place in zip(scales, way.doubles, strict=True):
        assert place == -1 or scales[place] == pytest.approx(2 * scale, 1e-11)


@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_rows_without_keys_at_several_scales(device):
    q, k, v = (x.to(device) for x in Case("", 1, 2, queries=83, keys=70, dim=32, value_dim=32).tensors(torch.float16))
    scales = [0.1, 0.2, 0.3]
    for scale, got in zip(scales, kernels.statistics_at(problem(q, k, v, scale=1.0, causal=True), scales), strict=True):
        wide = (x.double().cpu() for x in (q, k, v))
        want = attention(*wide, scale=scale, causal=True, stats=True, impl="reference").stats
        assert want.empty[:, :, :13].all()
        assert torch.equal(got.first_key.cpu(), want.first_key)
        assert_same_statistics(got, want)


@pytest.mark.parametrize("window", [None, 1000], ids=["plain", "window"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_logits_at_several_scales_differ_by_the_scale_alone(window, device):
    q, k, v = (x.to(device) for x in Case("", 1, 2, queries=30, keys=40, dim=32, value_dim=32).tensors(torch.float16))
    scales = [0.1, 0.23, 0.7]
    low, *others = kernels.statistics_at(problem(q, k, v, scale=1.0, causal=True, window=window), scales)
    for scale, high in zip(scales[1:], others, strict=True):
        for name in ("max_logit", "logit_mean", "logit_std", "first_logit"):
            torch.testing.assert_close(getattr(high, name) / scale, getattr(low, name) / scales[0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("scales", [[0.1, 0.23, 0.7], [0.1 * 1.3**i for i in range(8)]], ids=["few", "between others"])
@pytest.mark.parametrize("window", [None, 1000], ids=["plain", "window"])
@pytest.mark.usefixtures("small_tiles")
def test_a_row_that_meets_an_infinite_logit_is_broken_at_every_scale(window, scales, device):
    q, k, v = (x.to(device) for x in Case("", 1, 1, queries=30, keys=40, dim=32, value_dim=32).tensors(torch.float16))
    q[:, :, 4:8], k[:, :, 35, 0] = q[:, :, 4:8].abs(), float("-inf")
    q[:, :, 12, 0] = 0  # 0 · ∞
    for got in kernels.statistics_at(problem(q, k, v, scale=1.0, window=window), scales):
        assert got.invalid.all()
    for got in kernels.statistics_at(problem(q, k, v, scale=1.0, window=window, causal=True), scales):
        assert torch.equal(got.invalid.cpu(), (torch.arange(30) + 10 >= 35).expand_as(got.invalid))


@pytest.mark.parametrize("above", [8, 60], ids=["powers of weights", "weights"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_rows_beyond_the_shared_pass_are_done_again_at_every_scale(above, device, monkeypatch):
    """Late keys are so far above the first sixteen that their weights, or only powers of the weights, leave float32."""
    q, k, v = (x.to(device) for x in Case("", 1, 1, queries=70, keys=83, dim=32, value_dim=32).tensors(torch.float16))
    k[:, :, 40:50] *= above
    scales, asked = [0.2, 0.4, 0.5, 0.8], []
    launch = several_scales._launch_general
    monkeypatch.setattr(several_scales, "_launch_general", lambda *args: (asked.append(args[4]), launch(*args))[1])
    found = kernels.statistics_at(problem(q, k, v, scale=1.0), scales)
    assert [bool(flags.all()) for flags in asked] == [True]
    for scale, got in zip(scales, found, strict=True):
        want = attention(*(x.double().cpu() for x in (q, k, v)), scale=scale, stats=True, impl="reference").stats
        assert_same_statistics(got, want, budget=5e-5)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_logits_as_large_as_without_scaling_are_not_done_again(causal, device, monkeypatch):
    """A row's largest logit is then so far above the first sixteen that squared weights come near float32's limit."""
    g = torch.Generator().manual_seed(3)
    q, k = (torch.randn(1, 1, size, 32, generator=g).to(device, torch.float16) for size in (128, 700))
    scales, asked = [0.25, 0.5, 1.0, 2.0], []
    launch = several_scales._launch_general
    monkeypatch.setattr(several_scales, "_launch_general", lambda *args: (asked.append(args[4]), launch(*args))[1])
    found = kernels.statistics_at(problem(q, k, k, scale=1.0, causal=causal), scales)
    assert [bool(flags.any()) for flags in asked] == [False]
    largest = found[-1].max_logit - 2.0 * (q.double() @ k[:, :, :16].double().mT).amax(-1)
    assert largest.max() * 1.44 > several_scales.LARGEST / 2
    for scale, got in zip(scales, found, strict=True):
        want = attention(
            *(x.double().cpu() for x in (q, k, k)), scale=scale, causal=causal, stats=True, impl="reference"
        )
        assert_same_statistics(got, want.stats, budget=5e-5)


@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_weights_that_a_high_reference_makes_too_small_are_done_again(device, monkeypatch):
    """The smallest of the first sixteen is far below their mean, but none is far above the others."""
    q, k = (torch.zeros(1, 1, size, 32, dtype=torch.float16, device=device) for size in (64, 18))
    q[..., 0] = 1
    logits = torch.tensor([0, -55, *[-61] * 4, *[-75] * 5, *[-120] * 7], device=device)
    flagged, launch = [], several_scales._launch_general
    monkeypatch.setattr(several_scales, "_launch_general", lambda *args: (flagged.append(args[4]), launch(*args))[1])
    for size in (1.0, 0.7):
        k[..., 0] = logits * size
        scales = [0.25, 0.5, 1.0]
        found = kernels.statistics_at(problem(q, k, k, scale=1.0), scales)
        for scale, got in zip(scales, found, strict=True):
            want = attention(*(x.double().cpu() for x in (q, k, k)), scale=scale, stats=True, impl="reference").stats
            torch.testing.assert_close(got.jacobian_trace.cpu(), want.jacobian_trace, rtol=1e-3, atol=0)
            assert_same_statistics(got, want, budget=5e-5)
    assert [bool(flags.any()) for flags in flagged] == [True, False]


def test_blocks_that_are_not_flagged_are_left_alone(device):
    q, k, v = (
        x.to(device) for x in Case("", 1, 1, 1, queries=150, keys=40, dim=32, value_dim=32).tensors(torch.float16)
    )
    call = AttentionCall(q, k, v, torch.arange(150, device=device), None, None, False, 0, 1.0, 0.0)
    fields = Fields.empty(call.shape, q.device, parts=2)
    fields.values.fill_(-7)
    flags = torch.tensor([0, 1, 0], dtype=torch.int8, device=device)
    several_scales._launch_general(call, [0.1, 0.3], key_splits.Split(1, 40), fields, flags)
    done = (fields.values != -7).all(1).flatten(0, 2).cpu()
    assert torch.equal(done, ((torch.arange(150) // 64) == 1).expand_as(done))
