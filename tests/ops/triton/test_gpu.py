"""What only a GPU can show: real sizes, compiled operators, streams, memory. `make test-gpu`."""

import pytest
import torch

from isotherm import attention
from isotherm.ops import Problem, Visibility, reference
from isotherm.ops import triton as kernels
from isotherm.ops.triton import backward, fast, several_scales
from isotherm.ops.triton import several_scales_interpolation as interpolation
from isotherm.ops.triton.attention_call import AttentionCall
from isotherm.scale import InverseSqrt, SoftCap
from isotherm.stats import STATISTICS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HALF = torch.bfloat16


def draw(b, h, t, d, *, s=None, hk=None, dv=None, dtype=HALF, seed=0, grad=False, size=1.0):
    g = torch.Generator("cuda").manual_seed(seed)
    shapes = ((b, h, t, d), (b, hk or h, s or t, d), (b, hk or h, s or t, dv or d))
    return tuple(
        (torch.randn(shape, generator=g, device="cuda") * size).to(dtype).requires_grad_(grad) for shape in shapes
    )


def exact(q, k, v, **options):
    return attention(*(x.detach().double() for x in (q, k, v)), stats=True, impl="reference", **options)


def eager(q, k, v, *, causal, scale):
    """Attention with the whole weight matrix at the inputs' precision. Its error is the budget."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = (q @ k.mT) * scale
    if causal:
        s = s.masked_fill(
            ~torch.ones(s.shape[-2:], dtype=torch.bool, device="cuda").tril(s.shape[3] - s.shape[2]), -torch.inf
        )
    p = torch.softmax(s, -1)
    wide = torch.where(s > -torch.inf, s, 0).double()
    n = (s > -torch.inf).sum(-1)
    log_p = torch.where(p > 0, p.log(), 0)
    mean = wide.sum(-1) / n
    own = torch.where(s > -torch.inf, s, 0).sum(-1) / n
    away = torch.where(s > -torch.inf, s - own.unsqueeze(-1), 0)
    return p @ v, {
        "lse": s.logsumexp(-1),
        "max_logit": s.amax(-1),
        "top1": p.amax(-1),
        "entropy": -(p * log_p).sum(-1),
        "collision": p.square().sum(-1),
        "jacobian_trace": 1 - p.square().sum(-1),
        "logit_mean": mean,
        "logit_std": (away.square().sum(-1) / n).sqrt(),
        "sink": p[..., 0],
    }


def hopper_launches(monkeypatch, persistent):
    """Require or forbid the persistent kernel, and return the list of its launches."""
    if persistent and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("Hopper's own kernel")
    calls, stay = [], fast._launch_hopper
    monkeypatch.setattr(fast, "uses_persistent_kernel", lambda call: persistent)
    monkeypatch.setattr(fast, "_launch_hopper", lambda *given: (calls.append(given), stay(*given)))
    return calls


@pytest.mark.parametrize("size", [1.0, 5.6], ids=["logits near 4", "logits near 1e3"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("d", "persistent"), [(64, False), (128, False), (128, True)])
@pytest.mark.parametrize("dtype", [HALF, torch.float16, torch.float32], ids=str)
def test_error_is_at_most_twice_eagers(dtype, d, persistent, causal, size, monkeypatch):
    """At 5.6² · √d the largest logits reach 1e3: far past the point where a softmax freezes."""
    launches = hopper_launches(monkeypatch, persistent)
    q, k, v = draw(1, 4, 1000, d, hk=2, dtype=dtype, size=size)
    scale = d**-0.5 * (1.0 if size == 1.0 else d**0.5 / 8)
    want = exact(q, k, v, causal=causal, scale=scale)
    got = attention(q, k, v, causal=causal, scale=scale, stats=True)
    assert got.impl == "triton"
    assert len(launches) == (persistent and dtype is not torch.float32)
    output, low = eager(q, k, v, causal=causal, scale=scale)
    error = (got.output.double() - want.output).abs().max()
    assert error <= 2 * (output.double() - want.output).abs().max() + torch.finfo(dtype).eps
    for name, value in low.items():
        truth = getattr(want.stats, name)
        budget = 2 * (value.double() - truth).abs().nan_to_num(0).max() + 1e-5
        assert (getattr(got.stats, name) - truth).abs().max() <= budget, name
    assert (got.stats.entropy - want.stats.entropy).abs().max() <= 1e-3


@pytest.mark.parametrize("d", [16, 32, 64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize("dtype", [HALF, torch.float16, torch.float32], ids=str)
def test_head_dimensions(d, dtype):
    q, k, v = draw(2, 4, 197, d, s=211, hk=2, dtype=dtype)
    want, got = exact(q, k, v, causal=True), attention(q, k, v, causal=True, stats=True, impl="triton")
    tolerance = 2e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got.output.double(), want.output, rtol=tolerance, atol=tolerance)
    for name in STATISTICS:
        torch.testing.assert_close(
            getattr(got.stats, name).double(), getattr(want.stats, name).double(), rtol=1e-4, atol=1e-4, equal_nan=True
        )


@pytest.mark.parametrize("outlier", [0.0, 40.0], ids=["ordinary keys", "an outlier dimension"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("d", "persistent"), [(64, False), (128, False), (128, True)])
def test_moments_where_sums_of_the_keys_pay(d, persistent, causal, outlier, monkeypatch):
    launches = hopper_launches(monkeypatch, persistent)
    n = 8500 if causal else 4500
    q, k, v = draw(1, 4, n - 100, d, s=n, hk=1)
    k[..., 3] += outlier
    used, make = [], fast.sum_keys
    monkeypatch.setattr(fast, "sum_keys", lambda *given: (used.append(make(*given)), used[-1])[1])
    got = attention(q, k, v, causal=causal, stats=True, impl="triton")
    assert used[0].chunk > 0
    assert len(launches) == persistent
    rows = torch.tensor([0, 1, 700, 2047, n - 101], device="cuda")
    s = q[:, :, rows].double() @ k.double().mT * d**-0.5
    seen = (
        torch.arange(n, device="cuda") <= rows.view(-1, 1) + 100 if causal else torch.ones(1, n, device="cuda").bool()
    )
    mean = torch.where(seen, s, 0).sum(-1) / seen.sum(-1)
    spread = (torch.where(seen, s - mean.unsqueeze(-1), 0).square().sum(-1) / seen.sum(-1)).sqrt()
    torch.testing.assert_close(got.stats.logit_mean[:, :, rows], mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.stats.logit_std[:, :, rows], spread, rtol=2e-4, atol=0)
    output = torch.softmax(s.masked_fill(~seen, -torch.inf), -1) @ v.double()
    torch.testing.assert_close(got.output[:, :, rows].double(), output, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("sink", [0.0, 3.0], ids=["ordinary keys", "a sink"])
@pytest.mark.parametrize(("n", "causal"), [(4500, False), (2000, True), (33_000, True)], ids=str)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("step", [2**0.5, 1.34], ids=["half-octaves", "between others"])
def test_eight_scales_up_to_none_at_all(d, n, causal, sink, step, monkeypatch):
    """Scales up to 1, where rows freeze, with and without key sums, and with a sink 3 σ above the other logits."""
    q, k, v = draw(1, 4, n, d, hk=1)
    q[..., 3] += 3
    k[:, :, 0] = 0
    k[:, :, 0, 3] = sink * d**0.5 / 3
    flagged, launch = [], several_scales._launch_general
    monkeypatch.setattr(several_scales, "_launch_general", lambda *given: (flagged.append(given[4]), launch(*given))[1])
    scales = [step ** (i - 7) for i in range(8)]
    found = kernels.statistics_at(Problem(q, k, v, Visibility(torch.arange(n, device="cuda"), n, causal), 1.0), scales)
    assert flagged[0].float().mean() < 0.15
    rows = torch.tensor([0, 1, 70, 2 * n // 3, n - 1], device="cuda")
    seen = Visibility(rows, n, causal)
    for scale, got in zip(scales, found, strict=True):
        want = reference.solve(Problem(q[:, :, rows].double(), k.double(), v.double(), seen, scale), stats=True).stats
        for name in STATISTICS:
            a, b = getattr(got, name)[:, :, rows].double(), getattr(want, name).double()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_scales_between_others_in_a_graph(monkeypatch):
    """With and without a table: nothing can be copied to the GPU while a graph is captured."""
    monkeypatch.setattr(interpolation, "_tables", {})
    x, y = (draw(1, 2, 300, 64, seed=seed) for seed in (1, 2))
    scales, seen = [0.05 * 1.34**i for i in range(8)], Visibility(torch.arange(300, device="cuda"), 300, True)

    def run(q, k, v):
        return torch.stack([stats.entropy for stats in kernels.statistics_at(Problem(q, k, v, seen, 1.0), scales)])

    want = run(*y)
    with monkeypatch.context() as without:
        without.setattr(several_scales, "MOST_EXPONENTIALS", several_scales.SCALES_AT_ONCE)
        own = run(*y)
    assert not torch.equal(own, want)
    for ready in (True, False):
        if not ready:
            interpolation._tables.clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run(*x)
        for old, new in zip(x, y, strict=True):
            old.copy_(new)
        graph.replay()
        assert torch.equal(found, want if ready else own)
        torch.testing.assert_close(found, own, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("stats", [True, False])
@pytest.mark.parametrize("kind", ["plain", "window", "mask"])
def test_of_a_frozen_row_the_output_is_the_value_to_the_last_bit(kind, stats):
    """The largest weight, in a later tile, is 2³⁰ · 1.0037, which bfloat16 rounds by almost its largest error."""
    q, k, v = draw(1, 1, 64, 64, s=300)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., :2] = 1
    k[:, :, 200, :2] = torch.tensor([20.75, 0.0481])
    everything = torch.ones(1, 1, 1, 300, dtype=torch.bool, device="cuda")
    options = {"window": {"causal": True, "window": 1000}, "mask": {"mask": everything}}.get(kind, {})
    got = attention(q, k, v, scale=1.0, stats=stats, impl="triton", **options)
    assert torch.equal(got.output, v[:, :, 200:201].expand_as(got.output))


def test_values_of_another_width_and_a_soft_cap():
    q, k, v = draw(2, 3, 150, 96, dv=200)
    scale = InverseSqrt() * SoftCap(3.0)
    got = attention(q, k, v, scale=scale, stats=True, impl="triton")
    want = exact(q, k, v, scale=scale)
    torch.testing.assert_close(got.output.double(), want.output, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(got.stats.entropy, want.stats.entropy, rtol=1e-4, atol=1e-4)


def test_more_than_65535_heads():
    q, k, v = draw(70_001, 1, 16, 32)
    got = attention(q, k, v, stats=True, impl="triton")
    want = exact(q[-5:], k[-5:], v[-5:])
    torch.testing.assert_close(got.stats.entropy[-5:], want.stats.entropy, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "key padding"])
def test_131072_keys(masked):
    q, k, v = draw(1, 1, 131_072, 64)
    mask = (torch.arange(131_072, device="cuda") < 131_000).view(1, 1, 1, -1) if masked else None
    got = attention(q, k, v, causal=not masked, mask=mask, stats=True, impl="triton")
    few = torch.tensor([0, 1, 777, 65_536, 131_071], device="cuda")
    s = q[:, :, few].double() @ k.double().mT / 8
    seen = mask[0, 0] if masked else torch.arange(131_072, device="cuda") <= few.view(-1, 1)
    lse = s.masked_fill(~seen, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(got.stats.lse[:, :, few], lse, rtol=1e-5, atol=1e-5)


def test_transposed_inputs_take_the_fast_kernel():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in draw(2, 4, 256, 64))
    assert fast.can(AttentionCall(q, k, v, torch.arange(256, device="cuda"), None, None, False, 0, 0.125, 0.0))
    got, want = attention(q, k, v, stats=True, impl="triton"), exact(q, k, v)
    torch.testing.assert_close(got.output.double(), want.output, rtol=2e-2, atol=2e-2)


@pytest.fixture
def taken(monkeypatch):
    """The names of the functions that computed gradients."""
    ways = []
    for name in ("by_cudnn", "by_our_kernels"):
        original = getattr(backward, name)
        monkeypatch.setattr(backward, name, lambda *a, _o=original, _n=name, **k: (ways.append(_n), _o(*a, **k))[1])
    return ways


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("path", ["cudnn", "ours"])
def test_gradients_in_half_precision(groups, causal, path, taken):
    leaves = draw(2, 8, 300, 64, hk=8 // groups, grad=True)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    got = attention(*leaves, causal=causal, stats=True, impl="triton")
    want = attention(*wide, causal=causal, impl="reference")
    g = torch.randn_like(want.output)
    z = 0.0 if path == "cudnn" else 0.1
    loss = (got.output * g.to(HALF)).sum() + (z * got.lse.sum() if z else 0.0)
    loss.backward()
    ((want.output * g.to(HALF).double()).sum() + z * want.lse.sum()).backward()
    assert taken == ["by_cudnn" if path == "cudnn" else "by_our_kernels"]
    for a, b in zip(leaves, wide, strict=True):
        assert (a.grad.double() - b.grad).norm() / b.grad.norm() < 1e-2


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_gradients_with_a_negative_scale(causal, d, taken):
    """cuDNN returns NaN for it."""
    leaves = draw(2, 8, 391, d, hk=4, grad=True)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    seen = Visibility(torch.arange(391, device="cuda"), 391, causal)
    got = kernels.solve(Problem(*leaves, seen, -(d**-0.5)), stats=True).output
    want = reference.solve(Problem(*wide, seen, -(d**-0.5)), stats=False).output
    g = torch.randn_like(got)
    got.backward(g)
    want.backward(g.double())
    assert taken == ["by_our_kernels"]
    for a, b in zip(leaves, wide, strict=True):
        assert (a.grad.double() - b.grad).norm() / b.grad.norm() < 1e-2


def test_deterministic_on_request():
    leaves = draw(2, 4, 500, 64, grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        runs = [
            torch.autograd.grad(attention(*leaves, causal=True, impl="triton").output.square().sum(), leaves)
            for _ in range(3)
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from inside Inductor
def test_compiles_without_graph_breaks():
    leaves = draw(2, 4, 256, 64, grad=True)
    positions = torch.arange(256, device="cuda")

    def step(q, k, v):
        out, lse, values, *_ = torch.ops.isotherm.attend(
            q, k, v, positions, None, None, True, 0, 0.125, 0.0, None, True
        )
        return out.float().square().sum() + lse.sum(), values

    attention(*leaves, causal=True, impl="triton")  # registers the operator
    plain = torch.autograd.grad(step(*leaves)[0], leaves)
    compiled = torch.autograd.grad(torch.compile(step, fullgraph=True)(*leaves)[0], leaves)
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_cuda_graphs():
    q, k, v = draw(1, 4, 512, 64)
    for _ in range(2):
        want = attention(q, k, v, scale=0.125, stats=True, impl="triton")
    graph = torch.cuda.CUDAGraph()
    problem = _problem(q, k, v)
    kernels.solve(problem, stats=True)
    with torch.cuda.graph(graph):
        captured = kernels.solve(problem, stats=True)
    captured.stats.rest.fill_(torch.nan)
    graph.replay()
    torch.testing.assert_close(captured.output, want.output, rtol=0, atol=0)
    torch.testing.assert_close(captured.stats.entropy, want.stats.entropy, rtol=0, atol=0)


def _problem(q, k, v, *, causal=False):
    from isotherm.ops import Problem, Visibility

    return Problem(q, k, v, Visibility(torch.arange(q.shape[2], device="cuda"), k.shape[2], causal), q.shape[3] ** -0.5)


def test_several_streams():
    inputs = [draw(1, 4, 1024, 64, seed=i) for i in range(4)]
    alone = [attention(*x, causal=True, stats=True, impl="triton") for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    together = []
    for stream, x in zip(streams, inputs, strict=True):
        with torch.cuda.stream(stream):
            together.append(attention(*x, causal=True, stats=True, impl="triton"))
    torch.cuda.synchronize()
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.output, b.output)
        assert torch.equal(a.stats.rest, b.stats.rest)


@pytest.mark.parametrize("d", [64, 128])
def test_memory_grows_with_n(d):
    q, k, v = draw(1, 16, 16_384, d)
    problem = _problem(q, k, v, causal=True)
    kernels.solve(problem, stats=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = kernels.solve(problem, stats=True)
    output = result.output.numel() * result.output.element_size()
    assert torch.cuda.max_memory_allocated() - before - output <= 32 << 20


def test_auto_takes_the_kernels_on_a_gpu_and_says_so():
    q, k, v = draw(1, 2, 128, 64)
    assert attention(q, k, v).impl == "sdpa"
    assert attention(q, k, v, stats=True).impl == "triton"
    assert attention(q, k, v, rows=16).impl == "sdpa"
    assert attention(q, k, v, window=9).impl == "triton"
    wide = (x.double() for x in (q, k, v))
    assert attention(*wide, stats=True).impl != "triton"
