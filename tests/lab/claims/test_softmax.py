"""The softmax itself: softmax-saturates, a-a-2a, jacobian, one-hot-kills-gradient."""

import numpy as np
import pytest
import torch

from isotherm import softmax as forms
from isotherm.lab.claim import Setting
from isotherm.lab.claims.a_a_2a import experiment as a_a_2a
from isotherm.lab.claims.jacobian import experiment as jacobian
from isotherm.lab.claims.one_hot_kills_gradient import experiment as one_hot_kills_gradient
from isotherm.lab.claims.softmax_saturates import experiment as softmax_saturates
from isotherm.report.explain import words

from .running import run, value_of

SMALL = {
    softmax_saturates: {"sizes": (3, 10, 31), "draws": 500},
    a_a_2a: {},
    jacobian: {"sizes": (2, 3, 5, 11), "draws": 23},
    one_hot_kills_gradient: {"draws": 500},
}
softmax = forms.softmax


def hot(x):
    """A softmax at twice the temperature."""
    return softmax(x / 2)


def naive(x):
    """The documents' softmax, which overflows."""
    if isinstance(x, torch.Tensor):
        return x.exp() / x.exp().sum(-1, keepdim=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def without_products(y):
    """diag(y), as if the entries did not compete."""
    return torch.diag_embed(y)


def wrong_sign(y):
    return torch.diag_embed(y) + y[..., :, None] * y[..., None, :]


@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.CLAIM.id)
def test_the_verdict_is_the_one_on_record_and_repeats(module):
    record = run(module.CLAIM, **SMALL[module])
    assert record.verdict == module.CLAIM.expected
    assert run(module.CLAIM, **SMALL[module]) == record


@pytest.mark.parametrize(
    ("module", "name", "broken"),
    [
        (softmax_saturates, "softmax", hot),
        (a_a_2a, "softmax", hot),
        (a_a_2a, "softmax", naive),
        (jacobian, "softmax", hot),
        (jacobian, "jacobian", wrong_sign),
        (jacobian, "jacobian_entry", lambda y, i, j: y[..., i] * y[..., j]),
        (one_hot_kills_gradient, "jacobian", without_products),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_closed_form_changes_the_verdict(module, name, broken, monkeypatch):
    monkeypatch.setattr(forms, name, broken)
    setting = Setting({**module.CLAIM.quick, **SMALL[module]})
    assert module.CLAIM.experiment(setting).verdict == "refuted"


def test_a_softmax_that_sees_shifts_is_found_out(monkeypatch):
    monkeypatch.setattr(forms, "softmax", lambda x: softmax(x * (1 + x.mean().abs())))
    assert run(softmax_saturates.CLAIM, **SMALL[softmax_saturates]).verdict == "refuted"


def test_a_a_2a_has_the_documents_digits():
    record = run(a_a_2a.CLAIM)
    values = {number.name.en: number for number in record.measured}
    assert values["y₃ at a = 1"].value == values["y₃ at a = 1"].document == 0.5761168847658291
    assert values["y₃ at a = 10"].document == 0.9999092083843412
    assert values["y₃ at a = 10"].value == values["y₃ at a = 10"].predicted == 0.9999092083843409
    assert words.cell(values["y₃ at a = 10"], "value") == "0.9999092083843409"
    assert words.cell(values["y₃ at a = 10"], "document") == "0.9999092083843412"
    assert values["y₃ at a = 100"].value == values["y₃ at a = 100"].document == 1.0
    assert value_of(record, "largest a the document's formula") == pytest.approx(354.891356446692, abs=1e-9)
    assert str(a_a_2a.exact(10.0)).startswith("0.99990920838434097818")


def test_the_documents_formula_overflows_where_it_is_said_to():
    assert a_a_2a.written(354.0) == 1.0
    with pytest.raises(OverflowError):
        a_a_2a.written(355.0)


def test_the_complex_step_knows_nothing_of_the_formula():
    x = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    y = torch.softmax(x, -1)
    assert torch.allclose(jacobian.complex_step(x), torch.diag(y) - torch.outer(y, y), atol=1e-16, rtol=0)
    assert torch.allclose(jacobian.central(x, 1e-5), torch.diag(y) - torch.outer(y, y), atol=1e-9, rtol=0)
