import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isotherm import softmax as closed
from isotherm.errors import ArgumentError

finite_rows = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=1, max_dims=3, max_side=7), elements=st.floats(-1e4, 1e4)
)
gentle_row = hnp.arrays(np.float64, st.integers(2, 11), elements=st.floats(-20, 20))
kinds = pytest.mark.parametrize("kind", [np.array, torch.tensor], ids=["numpy", "torch"])


def rows(*shape: int, spread: float = 2.0) -> np.ndarray:
    return spread * np.random.default_rng(7).normal(size=shape)


@pytest.mark.parametrize(
    ("a", "expected"), [(0.0, 1 / 3), (1.0, 0.5761168847658291), (10.0, 0.99990920838434098), (100.0, 1.0), (1e6, 1.0)]
)
@kinds
def test_two_equal_and_one_double(kind, a, expected):
    y3 = float(closed.softmax(kind(np.array([a, a, 2 * a])))[2])
    assert abs(y3 - expected) <= np.spacing(expected)


def test_the_documents_digits_at_ten_are_those_of_the_unshifted_formula():
    exact = 1 / (1 + 2 * np.exp(-10.0))
    assert 0.9999092083843412 - exact == pytest.approx(2.2e-16, abs=1.2e-16)


@given(finite_rows)
def test_rows_sum_to_one_and_match_torch(x):
    y = closed.softmax(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-14)
    np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-13, atol=1e-300)
    expected = torch.log_softmax(torch.from_numpy(x), -1).numpy()
    np.testing.assert_allclose(closed.log_softmax(x), expected, rtol=1e-13, atol=1e-13)


@given(finite_rows, st.integers(-(2**20), 2**20))
def test_shift_changes_nothing(x, shift):
    grid = np.round(x * 64) / 64  # so that adding the shift is exact
    np.testing.assert_array_equal(closed.softmax(grid + shift), closed.softmax(grid))
    np.testing.assert_array_equal(closed.log_softmax(grid + shift), closed.log_softmax(grid))


@kinds
def test_minus_infinity_is_a_masked_key(kind):
    inf = float("inf")
    x = kind([[0.0, -inf, 0.0], [-inf, -inf, -inf], [-inf, 3.0, -inf]])
    np.testing.assert_array_equal(closed.softmax(x), [[0.5, 0, 0.5], [0, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(closed.log_softmax(x)[0], [-np.log(2), -inf, -np.log(2)], rtol=1e-6)
    assert bool((closed.log_softmax(x)[1] == -inf).all())
    np.testing.assert_array_equal(closed.jacobian_trace(closed.softmax(x)), [0.5, 0, 0])


@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
@kinds
def test_plus_infinity_and_nan_stay_visible(kind, bad):
    y = closed.softmax(kind([[bad, 0.0], [0.0, 0.0]]))
    assert np.isnan(np.asarray(y[0])).any()
    np.testing.assert_array_equal(y[1], [0.5, 0.5])


def test_differences_past_the_float_range():
    np.testing.assert_array_equal(closed.softmax(np.array([-1e308, 1e308])), [0, 1])


def test_gradient_flows_past_masked_and_empty_rows():
    x = torch.tensor([[1.0, -torch.inf, 2.0], [-torch.inf] * 3], dtype=torch.float64, requires_grad=True)
    (closed.softmax(x) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    expected = closed.jacobian_product(closed.softmax(x.detach()), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("spread", [0.1, 2.0, 20.0])
@kinds
def test_jacobian_is_autograds_and_central_differences(kind, spread):
    x = rows(7, spread=spread)
    matrix = np.asarray(closed.jacobian(closed.softmax(kind(x))))
    exact = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, -1), torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(matrix, exact, atol=1e-15)
    nudge = 1e-5 * np.eye(7)
    numeric = (closed.softmax(x + nudge) - closed.softmax(x - nudge)).T / 2e-5
    np.testing.assert_allclose(matrix, numeric, atol=1e-10)


@kinds
def test_jacobian_of_a_batch_entry_by_entry(kind):
    y = closed.softmax(kind(rows(3, 2, 5)))
    matrix = closed.jacobian(y)
    assert tuple(matrix.shape) == (3, 2, 5, 5)
    assert type(matrix) is type(y)
    for i in range(5):
        for j in range(5):
            np.testing.assert_allclose(closed.jacobian_entry(y, i, j - 5), matrix[..., i, j], rtol=1e-12, atol=1e-17)


@given(gentle_row)
def test_jacobian_is_symmetric_positive_and_kills_constants(x):
    y = closed.softmax(x)
    matrix = closed.jacobian(y)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(-1), 0, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[0] > -1e-15
    assert eigenvalues[-1] <= 0.5 + 1e-15
    assert closed.jacobian_trace(y) == pytest.approx(np.trace(matrix), abs=1e-15)
    assert closed.jacobian_max(y) == pytest.approx(np.abs(matrix).max(), abs=1e-16)
    assert closed.jacobian_max(y) == pytest.approx(y.max() * (1 - y.max()), abs=1e-15)


def test_half_is_the_largest_norm_and_is_reached():
    assert np.linalg.norm(closed.jacobian(np.array([0.5, 0.5])), 2) == pytest.approx(0.5)


@kinds
def test_product_is_jvp_and_vjp(kind):
    x, t = torch.from_numpy(rows(3, 5)), torch.from_numpy(rows(3, 5)[::-1].copy())
    _, forward = torch.autograd.functional.jvp(lambda z: torch.softmax(z, -1), x, t)
    _, backward = torch.autograd.functional.vjp(lambda z: torch.softmax(z, -1), x, t)
    product = closed.jacobian_product(closed.softmax(kind(x.numpy())), kind(t.numpy()))
    np.testing.assert_allclose(product, forward, atol=1e-15)
    np.testing.assert_allclose(product, backward, atol=1e-15)


def test_closed_forms_pass_gradcheck():
    x = torch.from_numpy(rows(2, 5)).requires_grad_()
    assert torch.autograd.gradcheck(closed.softmax, x)
    assert torch.autograd.gradcheck(closed.log_softmax, x)


@pytest.mark.parametrize("target", ["classes", "probabilities", "unnormalised"])
@kinds
def test_cross_entropy_gradient_is_autograds(kind, target):
    logits = rows(3, 2, 5)
    weights = {
        "classes": np.array([[0, 4], [2, 2], [1, 3]]),
        "probabilities": closed.softmax(rows(3, 2, 5)[::-1]),
        "unnormalised": np.abs(rows(3, 2, 5)),
    }[target]
    full = np.eye(5)[weights] if target == "classes" else weights
    x = torch.from_numpy(logits).requires_grad_()
    (-(torch.tensor(full) * torch.log_softmax(x, -1)).sum()).backward()
    np.testing.assert_allclose(closed.cross_entropy_gradient(kind(logits), kind(weights)), x.grad, atol=1e-14)


def test_cross_entropy_keeps_its_gradient_when_saturated_and_wrong():
    gradient = closed.cross_entropy_gradient(np.array([[1e4, 0.0], [1e4, 0.0]]), np.array([0, 1]))
    np.testing.assert_array_equal(gradient, [[0, 0], [1, -1]])


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: closed.softmax([1.0, 2.0]), "x"),
        (lambda: closed.softmax(np.zeros((3, 0))), "x"),
        (lambda: closed.jacobian_entry(np.ones(3) / 3, 0, 3), "j"),
        (lambda: closed.cross_entropy_gradient(np.zeros((2, 3)), np.array([0, 3])), "target"),
        (lambda: closed.cross_entropy_gradient(np.zeros((2, 3)), np.array([0, -1])), "target"),
        (lambda: closed.cross_entropy_gradient(np.zeros((2, 3)), np.ones(2)), "target"),
        (lambda: closed.cross_entropy_gradient(np.zeros((2, 3)), np.array([[0], [1]])), "target"),
    ],
    ids=["a list", "no entries", "index", "class too large", "class negative", "probabilities shape", "classes shape"],
)
def test_wrong_use_names_the_argument(call, argument):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.argument == argument


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_dtype_is_kept_and_integers_become_real(dtype):
    y = closed.softmax(torch.tensor([1, 1, 2], dtype=dtype))
    assert y.dtype is (dtype if dtype.is_floating_point else torch.get_default_dtype())
    assert float(y[2]) == pytest.approx(0.5761, abs=4e-3)
    assert closed.jacobian(y).dtype is y.dtype


@pytest.mark.parametrize("module", ["softmax", "theory"])
def test_import_leaves_torch_alone(module):
    code = f"import sys, isotherm.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_jacobian_is_where_its_input_is():
    """On the meta device: a tensor made elsewhere on the way could not be combined with it."""
    y = torch.zeros(2, 3, device="meta")
    assert closed.jacobian(y).device.type == "meta"
