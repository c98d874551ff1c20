"""Long rows, where float32 sums run out of digits; scales at which logits do."""

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm import attention
from isotherm.ops import Problem, Visibility
from isotherm.ops import triton as kernels
from isotherm.ops.triton import backward, fast, fast_key_sums_kernel, key_splits
from isotherm.ops.triton.attention_call import AttentionCall

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf
KEYS = 8192


@pytest.mark.parametrize(("rest", "spread"), [(0.0025, 1.0), (0.5, 0.45)], ids=["weights", "moments"])
def test_a_sink_above_thousands_of_keys(rest, spread, device, monkeypatch):
    """Beside the sink's weight of 1, the others sum to `rest`, and each is below half a unit in the last place of the sum."""
    if device == "cpu":  # small, for the interpreter's sake
        monkeypatch.setattr(fast, "STATISTICS", {False: {32: fast.Tuning(16, 128, 1, 4)}})
    monkeypatch.setattr(key_splits, "PROGRAMS", 1)  # as with many heads: the keys are not split
    monkeypatch.setattr(fast, "LONG", 2 * KEYS)
    q, k = torch.zeros(1, 1, 16, 32, dtype=torch.float16), torch.zeros(1, 1, KEYS, 32, dtype=torch.float16)
    q[..., 0] = 1
    k[..., 0] = spread * torch.randn(1, 1, KEYS, generator=torch.Generator().manual_seed(1))
    k[..., 0] -= log(KEYS / rest) + spread**2 / 2
    k[:, :, 0] = 0
    want = attention(q.double(), k.double(), k.double(), scale=1.0, stats=True, impl="reference").stats
    seen = Visibility(torch.arange(16, device=device), KEYS)
    got = kernels.statistics(Problem(q.to(device), k.to(device), k.to(device), seen, 1.0))
    for name in ("jacobian_trace", "logit_std", "entropy"):
        torch.testing.assert_close(getattr(got, name).cpu(), getattr(want, name), rtol=1e-4, atol=0, msg=name)


@given(keys=st.integers(4096, 300_000), most=st.integers(1, 600))
def test_chunks_of_keys_fit_where_they_are_put(keys, most):
    chunk = fast.chunk_size(keys, most)
    assert chunk % fast.LEAST_KEYS == 0
    assert 1 <= keys // chunk <= most


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("heads", "t", "s", "d"), [(3, 6000, 6000, 128), (1, 8192, 8100, 128), (1, 4182, 4358, 64)])
def test_sums_of_the_keys_stay_in_their_scratch(heads, t, s, d, causal, monkeypatch):
    asked = []

    class Recorded:
        def __getitem__(self, grid):
            return lambda keys, scratch, *rest, **options: asked.append((grid, scratch.numel(), options))

    monkeypatch.setattr(fast_key_sums_kernel, "sum_keys", Recorded())
    q, k = (torch.empty(1, dtype=torch.bfloat16).expand(1, h, n, d) for h, n in ((8 * heads, t), (8, s)))
    call = AttentionCall(q, k, k, torch.empty(1).expand(t), None, None, causal, 0, 0.1, 0.0)
    monkeypatch.setattr(fast, "tiles", lambda x, rows: x)
    fast.sum_keys(call, torch.empty(1).expand(8 * 2, 8 * heads, t))
    ((programs, chunks), room, options), *_ = asked
    assert not options["SEVERAL"] or programs * chunks * d * d <= room


@pytest.fixture
def default_dtype():
    """A function that sets the default type, which models in bfloat16 often do."""
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("small_tiles")
def test_the_default_type_changes_no_digit(device, sums_pay, default_dtype):
    keys, dtype = sums_pay()
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, keys, 32, generator=g).to(device, dtype) for _ in range(3))
    bias = torch.randn(1, 1, 1, 40, generator=g).to(device).requires_grad_()
    found = []
    for default in (torch.float32, torch.bfloat16):
        default_dtype(default)
        stats = attention(q, k, v, causal=True, stats=True, impl="triton").stats
        short = (x[:, :, :40].float() for x in (q, k, v))
        total = attention(*short, bias=bias, impl="triton").output.square().sum()
        found.append((stats.logit_mean, stats.logit_std, *torch.autograd.grad(total, bias)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-46, 1e-35])
def test_a_scale_beyond_float32(scale, device):
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 40, 32, generator=g).half() for _ in range(3))
    want = attention(q.double(), k.double(), v.double(), scale=scale, stats=True, impl="reference").stats
    q, k, v = q.to(device), k.to(device), v.to(device)
    got = attention(q, k, v, scale=scale, stats=True, impl="triton").stats
    at = kernels.statistics_at(Problem(q, k, v, Visibility(torch.arange(40, device=device), 40), 1.0), [scale])
    for found in (got, *at):
        torch.testing.assert_close(found.entropy.cpu(), want.entropy, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fast", "general"])
@pytest.mark.parametrize(
    "scales",
    [[1e-22, 1e22], [1e22, 2e22], [1e9, 3e9, 7e9], [1e9 * 1.3**i for i in range(8)]],
    ids=lambda scales: f"{len(scales)} from {scales[0]}",
)
@pytest.mark.parametrize("largest", [0, 64], ids=["first", "in a whole block"])
def test_scales_at_which_rounding_a_logit_leaves_over_more_than_weights_can_be(largest, scales, dtype, device):
    """Every key occurs twice and some are far larger, so two logits of a row are equal and all others far below."""
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, size, 32, generator=g).to(dtype) for size in (40, 120, 120))
    k[:, :, :largest] /= 64
    k[:, :, largest + 16 :] /= 64
    k[:, :, 1::2] = k[:, :, ::2]
    seen = Visibility(torch.arange(40, device=device), 120)
    there = q.to(device), k.to(device), v.to(device)
    found = kernels.statistics_at(Problem(*there, seen, 1.0), scales)
    for scale, stats in zip(scales, found, strict=True):
        want = attention(q.double(), k.double(), v.double(), scale=scale, stats=True, impl="reference")
        whole = attention(*there, scale=scale, stats=True, impl="triton")
        for got in (stats, whole.stats):
            for name in ("entropy", "max_logit", "jacobian_trace", "logit_mean"):
                a, b = getattr(got, name).cpu(), getattr(want.stats, name)
                torch.testing.assert_close(a, b, rtol=1e-6, atol=5e-6 * b.abs().max().clamp(min=1.0).item(), msg=name)
        torch.testing.assert_close(whole.output.double().cpu(), want.output, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_no_weight_is_above_one_where_lse_was_rounded(dtype, device):
    """Frozen rows at logits of 1e10, with lse a few units in the last place too low: thousands, as an exponent."""
    g = torch.Generator().manual_seed(5)
    q, k, v, d_output = (torch.randn(1, 1, size, 32, generator=g).to(dtype).to(device) for size in (24, 40, 40, 24))
    call = AttentionCall(q, k, v, torch.arange(24, device=device), None, None, False, 0, 1e10, 0.0)
    largest, first = (q.double() @ k.double().mT).max(-1)
    output, lse = v[0, 0][first], (largest * 1e10 * (1 - 2.0**-21)).float()
    got = backward.by_our_kernels(call, output, lse, d_output, None, wants_bias=False)
    want = torch.nn.functional.one_hot(first, 40).double().mT @ d_output.double()
    torch.testing.assert_close(got.v.double(), want, rtol=2.0**-7, atol=0)
    assert all(x.isfinite().all() for x in (got.q, got.k))
    k[0, 0, 3, 3] = torch.nan
    assert backward.by_our_kernels(call, output, lse, d_output, None, wants_bias=False).v[0, 0, 3].isnan().all()
