"""The kernels against the reference in float64: compiled on a GPU, under Triton's interpreter anywhere else."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from isotherm import attention
from isotherm.errors import UnsupportedError
from isotherm.ops import triton as kernels
from isotherm.ops.triton import attention_call, fast, general, key_splits, registration
from isotherm.scale import InverseSqrt, PerHead, SoftCap
from tests.ops.cases import CASES, Case, assert_same_statistics, problem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def moved(options, device):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}


@by_name
@pytest.mark.usefixtures("poisoned_memory")
def test_triton_is_the_reference(case, device):
    if isinstance(case.arguments().get("scale"), PerHead) or case.name == "sinks":
        pytest.skip("rules with tensors of their own: test_rules_with_tensors")
    q, k, v = case.tensors(torch.float32)
    want = attention(*(x.double() for x in (q, k, v)), stats=True, impl="reference", **case.arguments())
    options = moved(case.arguments(), device)
    got = attention(*(x.to(device) for x in (q, k, v)), stats=True, impl="triton", **options)
    assert got.impl == "triton"
    budget = 3e-4 if case.name == "large logits" else 1e-5
    assert_same_statistics(got.stats, want.stats, budget=budget)
    torch.testing.assert_close(got.output.double().cpu(), want.output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.lse.double().cpu(), want.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["per head", "sinks"])
def test_rules_with_tensors(name, device):
    case = next(case for case in CASES if case.name == name)
    q, k, v = case.tensors(torch.float32)
    want = attention(*(x.double() for x in (q, k, v)), stats=True, impl="reference", **case.arguments())
    options = case.arguments()
    for rule in getattr(options["scale"], "rules", [options["scale"]]):
        for key, value in list(vars(rule).items()):
            if isinstance(value, torch.Tensor):
                object.__setattr__(rule, key, value.to(device))
    got = attention(*(x.to(device) for x in (q, k, v)), stats=True, impl="triton", **options)
    assert_same_statistics(got.stats, want.stats)
    torch.testing.assert_close(got.output.double().cpu(), want.output, rtol=1e-5, atol=1e-5)


GRADIENT_CASES = [
    case
    for case in CASES
    if case.name
    in {
        "grouped",
        "wide values",
        "causal bottom-right T < S",
        "causal bottom-right T > S",
        "causal window grouped",
        "documents, causal, grouped",
        "documents by id, T < S",
        "documents by id, window, mask",
        "mask everywhere, causal",
        "bias",
        "bias per key, causal",
        "soft cap and bias",
        "log-n",
    }
]


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_gradients_are_autograds_through_the_reference(case, device):
    gradients = []
    for impl, dtype, where in (("reference", torch.float64, "cpu"), ("triton", torch.float32, device)):
        leaves = [x.to(where).requires_grad_() for x in case.tensors(dtype)]
        options = moved(case.arguments(), where)
        if "bias" in options:
            options["bias"] = options["bias"].to(dtype).requires_grad_()
            leaves.append(options["bias"])
        result = attention(*leaves[:3], impl=impl, **options)
        finite = result.lse.isfinite()
        (result.output.sin().sum() + torch.where(finite, result.lse, 0).cos().sum()).backward()
        gradients.append([leaf.grad.double().cpu() for leaf in leaves])
    for wanted, got in zip(*gradients, strict=True):
        assert wanted.abs().sum() > 0
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rows", [5, torch.tensor([0, 3, 30])], ids=["five", "these"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 6}], ids=str)
def test_sampled_rows_are_the_rows_of_the_exact_answer(rows, options, device, splitting):
    q, k, v = (x.to(device) for x in Case("", batch=1, heads=1, queries=31, keys=37, groups=2).tensors(torch.float32))
    exact = attention(*(x.double().cpu() for x in (q, k, v)), stats=True, impl="reference", **options).stats
    rows = rows.to(device) if isinstance(rows, torch.Tensor) else rows
    got = attention(q, k, v, rows=rows, impl="triton", **options).stats
    assert (got.label, got.total_rows) == ("sampled", 31)
    assert_same_statistics(got, exact.map(lambda x: x[:, :, got.rows.cpu()]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_nan_and_inf_make_exactly_the_rows_that_see_them_invalid(bad, causal, device):
    q, k, v = (x.abs() for x in Case("", groups=2).tensors(torch.float32))
    q[0, 1, 3, 0] = bad
    k[1, 2, 6, 1] = bad
    q, k, v = (x.to(device) for x in (q, k, v))
    expected = torch.zeros(2, 6, 13, dtype=torch.bool)
    expected[0, 1, 3] = True
    expected[1, 4:6, 6 if causal else 0 :] = True
    stats = attention(q, k, v, causal=causal, stats=True, impl="triton").stats
    assert torch.equal(stats.invalid.cpu(), expected)
    assert stats.entropy.isnan().sum() == expected.sum()
    at_scales = kernels.statistics_at(problem(q, k, v, scale=1.0, causal=causal), [0.5])[0]
    assert torch.equal(at_scales.invalid.cpu(), expected)


@pytest.mark.parametrize(("t", "s"), [(0, 5), (5, 0), (0, 0)], ids=["no queries", "no keys", "nothing"])
def test_zero_length_works_and_has_gradients(t, s, device):
    q = torch.randn(2, 4, t, 3, requires_grad=True, device=device)
    k = torch.randn(2, 2, s, 3, requires_grad=True, device=device)
    result = attention(q, k, k, stats=True, impl="triton")
    assert result.output.shape == (2, 4, t, 3)
    assert result.output.abs().sum() == 0
    assert result.stats.empty.sum() == 2 * 4 * t
    result.output.sum().backward()


def test_rows_that_see_nothing_give_zero_and_finite_gradients(device):
    q, k, v = (x.to(device).requires_grad_() for x in Case("").tensors(torch.float32))
    mask = torch.ones(13, 13, dtype=torch.bool, device=device)
    mask[4] = False
    result = attention(q, k, v, mask=mask, stats=True, impl="triton")
    assert result.output[:, :, 4].abs().sum() == 0
    assert result.stats.empty.sum() == 2 * 3
    result.output.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def recomputed_rows(monkeypatch):
    """The list of how many rows each launch recomputed."""
    marked, again = [], fast.recompute_marked
    monkeypatch.setattr(
        fast,
        "recompute_marked",
        lambda call, cut, marks, **o: (marked.append(int(marks.sum())), again(call, cut, marks, **o)),
    )
    return marked


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("size", [1.0, 60.0], ids=["ordinary", "large logits"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_the_fast_kernel(causal, size, device, monkeypatch):
    """Logits of ±60 exceed the room of a fixed reference, so such rows are recomputed."""
    case = Case("", batch=1, heads=1, groups=2, queries=67, keys=83, dim=32, value_dim=32)
    q, k, v = (x.to(device) for x in case.tensors(torch.float16))
    marked = recomputed_rows(monkeypatch)
    got = attention(q, k, v, causal=causal, scale=size * 32**-0.5, stats=True, impl="triton")
    assert len(marked) == 1
    assert (marked[0] > 0) == (size > 1)
    wide = (x.double().cpu() for x in (q, k, v))
    want = attention(*wide, causal=causal, scale=size * 32**-0.5, stats=True, impl="reference")
    assert_same_statistics(got.stats, want.stats, budget=2e-5 * size)
    torch.testing.assert_close(got.output.double().cpu(), want.output, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("size", [1.0, 60.0], ids=["ordinary", "large logits"])
@pytest.mark.parametrize(("dim", "value_dim"), [(24, 24), (24, 16), (32, 8)])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_the_fast_kernel_fills_other_head_dimensions_up_with_zeros(dim, value_dim, size, causal, device, monkeypatch):
    case = Case("", batch=1, heads=1, groups=2, queries=35, keys=41, dim=dim, value_dim=value_dim)
    q, k, v = (x.to(device) for x in case.tensors(torch.float16))
    marked = recomputed_rows(monkeypatch)
    monkeypatch.setattr(general, "run", None)  # another path would fail
    options = {"causal": causal, "scale": size * dim**-0.5, "stats": True}
    got = attention(q, k, v, impl="triton", **options)
    want = attention(*(x.double().cpu() for x in (q, k, v)), impl="reference", **options)
    assert (marked[0] > 0) == (size > 1)
    assert_same_statistics(got.stats, want.stats, budget=2e-5 * size)
    torch.testing.assert_close(got.output.double().cpu(), want.output, rtol=2e-3, atol=2e-3)
    some = attention(q, k, v, rows=torch.tensor([3, 20, 34], device=device), impl="triton", **options).stats
    assert_same_statistics(some, want.stats.map(lambda x: x[:, :, [3, 20, 34]]), budget=2e-5 * size)


@pytest.mark.parametrize("offset", [0.0, 2.0, 90.0], ids=["centred", "off centre", "far keys"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_moments_from_sums_of_the_keys(causal, offset, device, sums_pay, monkeypatch):
    """Keys far from 0, compared with their spread, leave too few digits, so such rows are recomputed."""
    keys, dtype = sums_pay()
    case = Case("", batch=1, heads=1, groups=2, queries=keys - 13, keys=keys, dim=32, value_dim=32)
    q, k, v = (x.to(device) for x in case.tensors(dtype))
    k = k / 8 + offset * torch.eye(32, dtype=dtype, device=device)[3]
    folded = []
    fold = fast.sum_keys
    monkeypatch.setattr(fast, "sum_keys", lambda *given: (folded.append(fold(*given)), folded[-1])[1])
    marked = recomputed_rows(monkeypatch)
    got = attention(q, k, v, causal=causal, stats=True, impl="triton").stats
    want = attention(*(x.double().cpu() for x in (q, k, v)), causal=causal, stats=True, impl="reference").stats
    assert folded[0].chunk
    assert folded[0].stored > 1 if causal else folded[0].stored == 1
    assert (marked[0] > 0) == (offset > 2)
    names = ("n", "lse", "max_logit", "logit_mean", "logit_std", "entropy")
    assert_same_statistics(got, want, names, budget=2e-5 * max(1, offset))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_the_fast_kernel_on_sampled_rows(causal, device, monkeypatch):
    monkeypatch.setattr(key_splits, "LEAST_SPLIT", 32)
    case = Case("", batch=1, heads=2, queries=67, keys=83, dim=32, value_dim=32)
    q, k, v = (x.to(device) for x in case.tensors(torch.float16))
    monkeypatch.setattr(general, "run", None)  # another path would fail
    rows = torch.tensor([0, 5, 11, 66], device=device)
    got = kernels.statistics(problem(q, k, v, scale=0.2, causal=causal), rows)
    want = attention(*(x.double().cpu() for x in (q, k, v)), causal=causal, scale=0.2, stats=True, impl="reference")
    assert_same_statistics(got, want.stats.map(lambda x: x[:, :, rows.cpu()]), budget=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_error_is_at_most_twice_eagers(dtype, device):
    if dtype is torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter cuts bfloat16 off where a GPU rounds it")
    q, k, v = (3 * x for x in Case("", queries=37, keys=37, dim=16, value_dim=16).tensors(dtype))
    exact = attention(*(x.double() for x in (q, k, v)), causal=True, stats=True, impl="reference")
    s = (q @ k.mT * 16**-0.5).masked_fill(~torch.ones(37, 37, dtype=torch.bool).tril(), -torch.inf)
    p = torch.softmax(s, -1)
    got = attention(*(x.to(device) for x in (q, k, v)), causal=True, stats=True, impl="triton")
    assert got.output.dtype == dtype
    budget = 2 * ((p @ v).double() - exact.output).abs().max() + torch.finfo(dtype).eps
    assert (got.output.double().cpu() - exact.output).abs().max() <= budget
    for name, low in (("collision", p.double().square().sum(-1)), ("lse", s.double().logsumexp(-1))):
        want = getattr(exact.stats, name)
        error = (getattr(got.stats, name).cpu() - want).abs().max()
        assert error <= 2 * (low - want).abs().max() + 1e-6, name


def test_a_nearly_frozen_row_keeps_its_digits(device):
    """A gate of 1e-9 has as many digits as one of 0.5: the largest key is left out, not subtracted."""
    q = torch.ones(1, 1, 1, 16, device=device)
    k = torch.zeros(1, 1, 40, 16, device=device)
    k[:, :, 17] = 25 / 16
    stats = attention(q, k, k, scale=1.0, stats=True, impl="triton").stats
    want = attention(q.double(), k.double(), k.double(), scale=1.0, stats=True, impl="reference").stats
    assert 1e-10 < stats.jacobian_trace.item() < 1e-8
    torch.testing.assert_close(stats.jacobian_trace, want.jacobian_trace, rtol=1e-5, atol=0)


def test_non_contiguous_inputs(device):
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in Case("", groups=2).tensors(torch.float32))
    assert not q.is_contiguous()
    want = attention(*(x.double() for x in (q, k, v)), stats=True, impl="reference")
    assert_same_statistics(attention(*(x.to(device) for x in (q, k, v)), stats=True, impl="triton").stats, want.stats)


def test_what_a_kernel_does_not_take_is_refused_by_name(device, monkeypatch):
    x = torch.randn(1, 1, 3, 8, device=device)
    with pytest.raises(UnsupportedError, match=r"impl='triton' does not support torch\.float64"):
        attention(x.double(), x.double(), x.double(), impl="triton")
    wide = torch.randn(1, 1, 3, 257, device=device)
    with pytest.raises(UnsupportedError, match="head dimensions above 256"):
        attention(wide, wide, wide, impl="triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedError, match="tensors on cpu"):
        attention(x.cpu(), x.cpu(), x.cpu(), impl="triton")
    assert attention(x.double(), x.double(), x.double(), stats=True).impl in ("blockwise", "sdpa")


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"scale": InverseSqrt() * SoftCap(5)}], ids=str)
def test_statistics_carry_no_gradient(options, device):
    q, k, v = (x.to(device).requires_grad_() for x in Case("").tensors(torch.float32))
    result = attention(q, k, v, stats=True, impl="triton", **options)
    assert not result.stats.entropy.requires_grad
    assert result.output.requires_grad


def transposed(x):
    """A view of one fused projection, as models make it."""
    return torch.cat([x, x, x], 3).transpose(1, 2).contiguous().transpose(1, 2)[..., : x.shape[3]]


def misaligned(x):
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": transposed,
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "sliced": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    "misaligned": misaligned,
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_operators_pass_pytorchs_own_checks(layout, device):
    q, k, v = (layout(x.to(device)).requires_grad_() for x in Case("", batch=2, heads=2).tensors(torch.float32))
    positions = torch.arange(13, device=device)
    arguments = (q, k, v, positions, None, None, True, 0, 0.5, 0.0, None, True)
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    utilities += ("test_aot_dispatch_dynamic",) if layout is transposed else ()  # seconds each
    torch.library.opcheck(registration.attend_op, arguments, test_utils=utilities)
    out, lse, *_ = registration.attend_op(*arguments)
    plain = (*(x.detach() for x in arguments[:4]), *arguments[4:11])
    given = (*plain, out.detach(), lse.detach(), layout(out.detach()), None, False)
    torch.library.opcheck(registration.gradients_op, given, test_utils=utilities)
    bias = layout(torch.zeros(1, 2, 13, 13, dtype=torch.float16, device=device))
    torch.library.opcheck(registration.gradients_op, (*given[:5], bias, *given[6:-1], True), test_utils=utilities)
    for rows in (None, positions[:5]):
        torch.library.opcheck(registration.measure_op, (*plain, rows, [0.25, 0.5, 1.0]), test_utils=utilities)


@pytest.mark.parametrize("key_heads", [4, 2])
def test_gradients_are_laid_out_for_a_graph_as_cudnn_lays_them_out(key_heads):
    """cuDNN's gradients follow q, k and v in memory. A graph that expects another order stops with an error."""
    with FakeTensorMode():
        q, k, v = (
            torch.empty(2, 32, heads, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
            for heads in (4, key_heads, key_heads)
        )
        positions = torch.empty(32, dtype=torch.int64, device="cuda")
        numbers = (True, 0, 0.125, 0.0, None)
        out, lse, *_ = torch.ops.isotherm.attend(q, k, v, positions, None, None, *numbers, False)
        given = (q, k, v, positions, None, None, *numbers, out, lse, out)
        by_cudnn = torch.ops.isotherm.attend_backward(*given, None, False)
        by_ours = torch.ops.isotherm.attend_backward(*given, lse, False)
    assert by_cudnn[0].stride() == q.stride()
    if key_heads == 4:
        assert by_cudnn[1].stride() == by_cudnn[2].stride() == k.stride()
    for got in (by_cudnn, by_ours):
        assert [x.shape for x in got[:3]] == [x.shape for x in (q, k, v)]
    assert all(x.is_contiguous() for x in by_ours[:3])


@pytest.mark.parametrize("narrow", [lambda x: x.int(), lambda x: x.repeat_interleave(2)[::2]], ids=["int32", "strided"])
@pytest.mark.parametrize("dim", [5, 32], ids=["general", "fast"])
@pytest.mark.usefixtures("small_tiles")
def test_rows_and_positions_however_they_lie_in_memory(narrow, dim, device):
    case = Case("", batch=1, heads=2, queries=20, keys=24, dim=dim, value_dim=dim)
    p = problem(*(x.to(device) for x in case.tensors(torch.float16)), scale=0.5, causal=True)
    rows = torch.tensor([1, 3, 4, 17], device=device)
    other = replace(p, visibility=replace(p.visibility, positions=narrow(p.visibility.positions)))
    for got, want in (
        (kernels.statistics(other, narrow(rows)), kernels.statistics(p, rows)),
        (kernels.statistics_at(other, [0.2, 0.5], narrow(rows))[1], kernels.statistics_at(p, [0.2, 0.5], rows)[1]),
        (kernels.solve(other, stats=True).stats, kernels.solve(p, stats=True).stats),
    ):
        assert torch.equal(got.n, want.n)
        assert torch.equal(got.entropy, want.entropy)


def hiding(q, k):
    """A bias that hides a key."""
    return torch.zeros(q.shape[2], k.shape[2], device=q.device).index_fill(
        1, torch.tensor(2, device=q.device), -torch.inf
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda q, k, v: attention(q, k, v, causal=True, stats=True, impl="triton").stats,
        lambda q, k, v: attention(q, k, v, causal=True, stats=True, rows=5, impl="triton").stats,
        lambda q, k, v: kernels.statistics_at(problem(q, k, v, scale=1.0), [0.5, 0.2, 1.0])[1],
        lambda q, k, v: attention(q, k, v, bias=hiding(q, k), stats=True, impl="triton").stats,
    ],
    ids=["every row", "some rows", "several scales", "bias"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from inside Inductor
def test_statistics_are_part_of_a_graph(ask, device):
    """This includes statistics without an output."""
    q, k, v = (x.to(device).requires_grad_() for x in Case("", batch=1, heads=2).tensors(torch.float32))

    def step(q, k, v):
        stats = ask(q, k, v)
        return stats.entropy, stats.logit_std, stats.jacobian_trace

    torch._dynamo.reset()
    for got, want in zip(torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v), step(q, k, v), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("current", [0, 1])
def test_a_tensors_own_gpu_is_made_the_current_one(current, monkeypatch):
    """Triton launches on the current GPU; a model's layers may lie on several."""
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or nullcontext())
    with attention_call.on_device_of(SimpleNamespace(is_cuda=True, device=torch.device("cuda", 1))):
        assert entered == ([torch.device("cuda", 1)] if current == 0 else [])
    with attention_call.on_device_of(torch.zeros(1)):
        assert len(entered) == (current == 0)


def test_every_way_to_the_kernels_goes_there_first(device, monkeypatch):
    q, k, v = (x.to(device) for x in Case("", batch=1, heads=2).tensors(torch.float32))
    asked = []
    monkeypatch.setattr(attention_call, "on_device_of", lambda tensor: asked.append(tensor.data_ptr()) or nullcontext())
    p = problem(q.requires_grad_(), k, v, scale=0.5)
    kernels.solve(p, stats=True).output.sum().backward()
    kernels.statistics(p)
    kernels.statistics_at(p, [0.5, 1.0])
    assert asked == [q.data_ptr()] * 4
