"""Derivatives of any order are right or refused: every implementation, every option, `torch.func` and forward mode."""

import threading
import weakref
from functools import partial

import pytest
import torch
from torch import func
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from isotherm import attention
from isotherm.errors import UnsupportedError
from isotherm.ops import Problem, Visibility, derivatives
from isotherm.scale import Cosine, InverseSqrt, LogN, PerHead, QKNorm, Sigmoid, Sinks, SoftCap
from isotherm.stats import STATISTICS
from tests.ops.watch import LargestTensor

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch's forward mode
IMPLEMENTATIONS = ("reference", "blockwise", "sdpa", "auto")
QUERIES, KEYS = 3, 5


def numbers(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tensors(queries=QUERIES, keys=KEYS, heads=2, groups=1, dim=2):
    shapes = ((1, heads * groups, queries, dim), (1, heads, keys, dim), (1, heads, keys, dim))
    return [numbers(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def half_hidden():
    """A mask with a row that sees no key."""
    mask = numbers(1, 2, QUERIES, KEYS, seed=7) > -0.3
    mask[0, 1, 1] = False
    return mask


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "causal, top left": {"causal": "top-left"},
    "window": {"window": 2},
    "causal window": {"window": 2, "causal": True},
    "cap": {"scale": InverseSqrt() * SoftCap(0.7)},
    "mask": {"mask": half_hidden()},
    "sigmoid": {"scale": InverseSqrt() * Sigmoid()},
    "log-n": {"scale": InverseSqrt() * LogN(2), "causal": True},
    "qk-norm": {"scale": InverseSqrt() * QKNorm()},
    "cosine": {"scale": Cosine(0.3)},
}
LEARNED = {
    "bias": (lambda x: {"bias": x}, (1, 2, QUERIES, KEYS)),
    "bias of the keys": (lambda x: {"bias": x, "causal": True}, (1, 1, 1, KEYS)),
    "cap and bias": (lambda x: {"bias": x, "scale": InverseSqrt() * SoftCap(0.7)}, (1, 2, 1, KEYS)),
    "sink": (lambda x: {"scale": InverseSqrt() * Sinks(x), "mask": half_hidden()}, (2,)),
    "per head": (lambda x: {"scale": PerHead(x)}, (2,)),
}


def outputs(q, k, v, *, impl, **options):
    """Output, and lse of the rows that see a key, where there is one."""
    result = attention(q, k, v, impl=impl, **options)
    return result.output if result.lse is None else (result.output, result.lse.masked_fill(result.lse.isneginf(), 0))


def right_or_refused(function, inputs, may_refuse):
    try:
        function(*inputs)
    except UnsupportedError:
        assert may_refuse
        return
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("groups", [1, 2], ids=["", "grouped"])
def test_first_and_second_derivatives_are_those_of_finite_differences(impl, options, groups):
    sigmoid = not options.get("scale", InverseSqrt()).has_softmax
    may_refuse = impl == "sdpa" or (impl == "blockwise" and sigmoid)
    right_or_refused(partial(outputs, impl=impl, **options), tensors(heads=2 // groups, groups=groups), may_refuse)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("learned", LEARNED.values(), ids=LEARNED.keys())
def test_derivatives_of_what_is_learned_beside_q_k_and_v(impl, learned):
    options, shape = learned
    right_or_refused(
        lambda q, k, v, x: outputs(q, k, v, impl=impl, **options(x)),
        [*tensors(), (numbers(*shape, seed=5).abs() + 0.1).requires_grad_()],
        impl == "sdpa",
    )


def penalised(impl, order=2, **options):
    """Gradients of the output and of 100 times the square of its own gradient, once or twice over."""
    q, k, v = tensors(11, 11, dim=5)
    total = y = attention(q, k, v, impl=impl, **options).output.sin().sum()
    for _ in range(order - 1):
        (g,) = grad(total, q, create_graph=True)
        total = y + 100 * (g**2).sum()
    return grad(total, (q, k, v))


@pytest.mark.parametrize("impl", ["blockwise", "sdpa", "auto"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"window": 5, "causal": True}], ids=["plain", "causal window"])
def test_a_penalty_on_the_gradient_is_the_references(impl, order, options):
    if impl == "sdpa" and options:
        pytest.skip("sdpa has no window")
    for got, want in zip(penalised(impl, order, **options), penalised("reference", order, **options), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9 * want.abs().max().item())


def test_pytorchs_kernel_of_plain_operations_keeps_its_own_second_derivatives():
    with sdpa_kernel(SDPBackend.MATH):
        got = penalised("sdpa")
    for mine, other in zip(got, penalised("reference"), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9 * other.abs().max().item())


def test_second_derivatives_through_a_padded_head_dimension():
    """PyTorch pads the head dimension for some fused kernels of a GPU and slices the output."""

    def call(q, k, v):
        padded = (pad(x, (0, 6)) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            output = scaled_dot_product_attention(*padded, scale=0.7)[..., :2]
        derivatives.twice_differentiable(output, Problem(q, k, v, Visibility(torch.arange(QUERIES), KEYS), 0.7))
        return output

    assert gradgradcheck(call, tensors())


@pytest.mark.parametrize("impl", ["sdpa", "blockwise"])
def test_after_the_backward_pass_the_output_keeps_no_input_alive(impl):
    q, k, v = (x * 1 for x in tensors())
    watched = weakref.ref(q)
    output = attention(q, k, v, impl=impl).output
    output.sum().backward()
    del q
    assert output.grad_fn is not None
    assert watched() is None


@pytest.mark.parametrize("impl", ["reference", "blockwise", "auto"])
def test_the_gradient_of_a_sum_is_not_taken_for_a_constant(impl):
    """The gradient that enters is then a constant 1, which PyTorch's `once_differentiable` lets pass without a word."""
    q, k, v = tensors(11, 11, dim=5)
    (first,) = grad(attention(q, k, v, window=5, causal=True, impl=impl).output.sum(), q, create_graph=True)
    (second,) = grad((first**2).sum(), q)
    assert second.abs().max() > 1e-3


@pytest.mark.parametrize("impl", ["blockwise", "sdpa"])
@pytest.mark.parametrize("order", [1, 2])
def test_autocast_around_the_backward_pass_changes_no_gradient(impl, order):
    """A model computes attention in float32 with autocast off, and the training loop calls backward inside autocast."""
    found = []
    for enabled in (False, True):
        q, k, v = (x.detach().float().requires_grad_() for x in tensors(11, 11, dim=5))
        total = attention(q, k, v, impl=impl).output.sin().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for _ in range(order - 1):
                total = grad(total, q, create_graph=True)[0].square().sum()
            found.append(grad(total, (q, k, v)))
    assert all(map(torch.equal, *found))


def loss(q, k, v, *, impl="auto", **options):
    return attention(q, k, v, impl=impl, **options).output.sin().sum()


def of_a_batch(function, q, k, v):
    return func.vmap(function)(*(x.unsqueeze(0).expand(3, *x.shape) * torch.ones(3, 1, 1, 1, 1) for x in (q, k, v)))


TRANSFORMS = {
    "grad": lambda f, q, k, v: func.grad(f, (0, 1, 2))(q, k, v),
    "vjp": lambda f, q, k, v: func.vjp(f, q, k, v)[1](torch.ones((), dtype=q.dtype)),
    "jvp": lambda f, q, k, v: func.jvp(f, (q, k, v), (k[:, :, :QUERIES], k, q[:, :, :1].expand_as(v))),
    "jacrev": lambda f, q, k, v: func.jacrev(f, (0, 2))(q, k, v),
    "jacfwd": lambda f, q, k, v: func.jacfwd(f, 1)(q, k, v),
    "hessian": lambda f, q, k, v: func.hessian(f)(q, k, v),
    "vmap": of_a_batch,
    "vmap of grad": lambda f, q, k, v: of_a_batch(func.grad(f, (0, 1, 2)), q, k, v),
    "grad of grad": lambda f, q, k, v: func.grad(lambda q: func.grad(f)(q, k, v).square().sum())(q),
}
TRANSFORMED = {
    "plain": {},
    "causal": {"causal": True},
    "causal window": {"window": 2, "causal": True},
    "cap": {"scale": InverseSqrt() * SoftCap(0.7)},
    "mask": {"mask": half_hidden()},
    "bias": {"bias": torch.where(half_hidden(), numbers(1, 2, QUERIES, KEYS), -torch.inf)},
    "sink": {"scale": InverseSqrt() * Sinks(0.4), "mask": half_hidden()},
    "sigmoid": {"scale": InverseSqrt() * Sigmoid()},
}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("options", TRANSFORMED.values(), ids=TRANSFORMED.keys())
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transforms_are_right_or_refused(impl, options, transform):
    q, k, v = (x.detach() for x in tensors())
    want = transform(partial(textbook, **options), q, k, v)
    try:
        got = transform(partial(loss, impl=impl, **options), q, k, v)
    except UnsupportedError as error:
        assert impl in ("blockwise", "sdpa")
        assert impl in str(error)  # noqa: PT017
        return
    torch.testing.assert_close(got, want)


def textbook(q, k, v, *, scale=None, causal=False, window=None, mask=None, bias=None):
    """`loss` once more, in one expression per option and without anything of ours."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    if scale is not None and (caps := [rule for rule in scale.factors if isinstance(rule, SoftCap)]):
        s = caps[0].cap * torch.tanh(s / caps[0].cap)
    s = s if bias is None else s + bias.masked_fill(bias.isneginf(), 0)
    offset = torch.arange(KEYS) - torch.arange(KEYS - QUERIES, KEYS).view(-1, 1)
    seen = torch.ones_like(offset, dtype=torch.bool)
    seen = seen & (offset <= 0) if causal else seen
    seen = seen & (offset.abs() < window) if window else seen
    seen = seen & mask if mask is not None else seen
    seen = seen & ~bias.isneginf() if bias is not None else seen
    if scale is not None and any(isinstance(rule, Sigmoid) for rule in scale.factors):
        return (torch.sigmoid(s - torch.tensor(float(KEYS), dtype=s.dtype).log()) @ v).sin().sum()
    sink = scale is not None and any(isinstance(rule, Sinks) for rule in scale.factors)
    weights = s.exp() * seen
    total = weights.sum(-1, keepdim=True) + (torch.tensor(0.4, dtype=s.dtype).exp() if sink else 0)
    return (weights / total.masked_fill(total == 0, 1) @ v).sin().sum()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_forward_mode_is_right_or_refused(impl):
    q, k, v = (x.detach() for x in tensors())
    _, want = func.jvp(textbook, (q, k, v), (q, v, k))
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in ((q, q), (k, v), (v, k))]
        try:
            y = loss(*duals, impl=impl)
        except UnsupportedError as error:
            assert impl == "blockwise"
            assert "forward-mode" in str(error)  # noqa: PT017
            return
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, want)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("create_graph", [False, True], ids=["", "differentiable"])
def test_a_batch_of_gradients_at_once(impl, create_graph):
    q, k, v = tensors()
    output = attention(q, k, v, impl=impl).output
    directions = numbers(7, *output.shape, seed=9)
    options = {"retain_graph": True, "create_graph": create_graph}
    batched = grad(output, (q, k, v), directions, is_grads_batched=True, **options)
    each = [grad(output, (q, k, v), direction, **options) for direction in directions]
    for got, want in zip(batched, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(want))
        if create_graph:
            pair = [grad(x.square().sum(), k, retain_graph=True)[0] for x in (got, torch.stack(want))]
            torch.testing.assert_close(*pair)


@pytest.mark.parametrize("impl", ["reference", "blockwise", "auto"])
def test_the_bias_of_a_row_may_be_hidden_under_vmap(impl):
    """Whether a bias hides a key cannot be read inside a transform."""
    q, k, v = (x.detach() for x in tensors())
    bias = torch.stack([torch.zeros(QUERIES, KEYS), torch.zeros(QUERIES, KEYS).fill_diagonal_(-torch.inf)]).double()
    call = func.vmap(lambda bias: attention(q, k, v, bias=bias, impl=impl).output)
    if impl == "blockwise":
        with pytest.raises(UnsupportedError, match=r"'blockwise' does not support torch\.func transforms"):
            call(bias)
        return
    each = [attention(q, k, v, bias=one, impl="reference").output for one in bias]
    torch.testing.assert_close(call(bias), torch.stack(each))


@pytest.mark.parametrize("impl", ["blockwise", "sdpa"])
@pytest.mark.parametrize("order", [1, 2])
def test_memory_of_derivatives_grows_with_n(impl, order, monkeypatch):
    """Second derivatives are taken some rows at a time: nothing as large as the n × n matrix is ever made."""
    n = 211
    monkeypatch.setattr("isotherm.ops.tiles._kept", threading.local())  # other tests' scratch memory may be larger
    monkeypatch.setattr(derivatives, "ENTRIES", n * 8)
    monkeypatch.setattr("isotherm.ops.tiles.KEYS", 16)
    monkeypatch.setattr("isotherm.ops.blockwise.KEYS", 16)
    q, k, v = (numbers(1, 1, n, 3, seed=seed).requires_grad_() for seed in range(3))

    def differentiate(impl):
        total = attention(q, k, v, impl=impl).output.sin().sum()
        if order == 2:
            (g,) = grad(total, k, create_graph=True)
            total = total + (g**2).sum()
        with LargestTensor() as seen:
            grad(total, (q, k, v))
        return seen.largest

    assert differentiate(impl) < n * n * 8 / 4
    assert differentiate("reference") >= n * n * 8  # and the watcher would have seen it


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("rule", [InverseSqrt(), InverseSqrt() * Sinks(0.3)], ids=str)
def test_statistics_carry_no_gradient(impl, rule):
    if impl == "sdpa" and not isinstance(rule, InverseSqrt):
        pytest.skip("sdpa has no sinks")
    for options in ({"stats": True}, {"rows": 2}):
        result = attention(*tensors(), scale=rule, impl=impl, **options)
        assert result.output.requires_grad
        assert not any(getattr(result.stats, name).requires_grad for name in STATISTICS)


@pytest.mark.parametrize("impl", ["reference", "auto", "sdpa"])
def test_statistics_inside_a_transform_are_those_outside(impl):
    q, k, v = (x.detach() for x in tensors())
    want = attention(q, k, v, causal="top-left", stats=True).stats

    def loss_and_entropy(q):
        result = attention(q, k, v, causal="top-left", stats=True, impl=impl)
        return result.output.sum(), result.stats.entropy

    _, entropy = func.grad(loss_and_entropy, has_aux=True)(q)
    torch.testing.assert_close(entropy, want.entropy)
    _, entropy = func.vmap(loss_and_entropy)(q.unsqueeze(0))
    torch.testing.assert_close(entropy[0], want.entropy)
