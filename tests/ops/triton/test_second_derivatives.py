"""The kernels' derivatives of both orders against the float64 reference, and their refusal inside transforms."""

import pytest
import torch
from torch import func
from torch.autograd import grad

from isotherm import attention
from isotherm.errors import UnsupportedError
from isotherm.scale import InverseSqrt, Sinks, SoftCap
from isotherm.stats import STATISTICS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf
T, S, D = 5, 7, 3


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


OPTIONS = {
    "plain": (1, lambda x: {}),
    "causal": (1, lambda x: {"causal": True}),
    "causal window, grouped": (2, lambda x: {"causal": True, "window": 3}),
    "mask": (1, lambda x: {"mask": draw(1, 1, T, S, seed=8).to(x.device) > 0}),
    "cap and bias": (1, lambda x: {"scale": InverseSqrt() * SoftCap(0.7), "bias": x.view(1, 1, 1, S)}),
    "sink": (2, lambda x: {"scale": InverseSqrt() * Sinks(x[:2]), "causal": True}),
}


def derivatives(impl, groups, options, dtype, device):
    """First derivatives, and those of a penalty on them."""
    shapes = ((1, 2, T, D), (1, 2 // groups, S, D), (1, 2 // groups, S, D), (S,))
    inputs = [draw(*shape, seed=i).to(device, dtype).requires_grad_() for i, shape in enumerate(shapes)]
    y = attention(*inputs[:3], impl=impl, **options(inputs[3])).output.sin().sum()
    wanted = {"create_graph": True, "allow_unused": True}
    first = [g for g in grad(y, inputs, **wanted) if g is not None]
    second = grad(sum((g**2).sum() for g in first), inputs, allow_unused=True)
    return [*first, *(g for g in second if g is not None)]


@pytest.mark.parametrize(("groups", "options"), OPTIONS.values(), ids=OPTIONS.keys())
def test_derivatives_are_the_references(groups, options, device):
    got = derivatives("triton", groups, options, torch.float32, device)
    want = derivatives("reference", groups, options, torch.float64, "cpu")
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine.cpu().double(), other, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_sum_is_not_taken_for_a_constant(device):
    q, k, v = (draw(1, 1, T, D, seed=i).to(device).requires_grad_() for i in range(3))
    (first,) = grad(attention(q, k, v, window=3, impl="triton").output.sum(), q, create_graph=True)
    (second,) = grad((first**2).sum(), q)
    assert second.abs().max() > 1e-3


def test_transforms_are_refused(device):
    q, k, v = (draw(1, 1, T, D, seed=i).to(device) for i in range(3))
    with pytest.raises(UnsupportedError, match=r"'triton' does not support torch\.func transforms"):
        func.grad(lambda q: attention(q, k, v, impl="triton").output.sum())(q)


def test_statistics_carry_no_gradient(device):
    q, k, v = (draw(1, 1, T, D, seed=i).to(device).requires_grad_() for i in range(3))
    result = attention(q, k, v, stats=True, impl="triton")
    assert result.output.requires_grad
    assert not any(getattr(result.stats, name).requires_grad for name in STATISTICS)
