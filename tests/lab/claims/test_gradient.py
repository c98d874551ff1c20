"""The gradient: ten-draws, jacobian-at-high-variance, vanishing-not-exploding, mean-versus-quantile, cross-entropy-is-safe."""

import pytest
import torch

from isotherm import scale
from isotherm import softmax as forms
from isotherm.lab.claim import Setting
from isotherm.lab.claims.cross_entropy_is_safe import experiment as cross_entropy_is_safe
from isotherm.lab.claims.jacobian_at_high_variance import experiment as jacobian_at_high_variance
from isotherm.lab.claims.mean_versus_quantile import experiment as mean_versus_quantile
from isotherm.lab.claims.ten_draws import experiment as ten_draws
from isotherm.lab.claims.vanishing_not_exploding import experiment as vanishing_not_exploding
from isotherm.stats import RowStats

from .running import multiplies_by, run, value_of

SMALL = {
    ten_draws: {"seeds": 4000},
    jacobian_at_high_variance: {"draws": 2000},
    vanishing_not_exploding: {"layers": 16, "per_decade": 2, "n": 32, "width": 32, "dimensions": (64, 128)},
    mean_versus_quantile: {"dimensions": (4, 256, 4096), "keys": 256, "queries": 64, "seeds": 6},
    cross_entropy_is_safe: {"draws": 101, "width": 32},
}


@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.CLAIM.id)
def test_the_verdict_is_the_one_on_record_and_repeats(module):
    record = run(module.CLAIM, **SMALL[module])
    assert record.verdict == module.CLAIM.expected
    assert run(module.CLAIM, **SMALL[module]) == record


def uniform(x):
    return torch.ones_like(x) / x.shape[-1] + 0 * x


def not_normalised(x):
    return x


def through_the_jacobian(logits, target):
    y = forms.softmax(logits)
    t = torch.nn.functional.one_hot(target, y.shape[-1]).to(y)
    return forms.jacobian_product(y, y - t)


@pytest.mark.parametrize(
    ("module", "name", "broken"),
    [
        (ten_draws, "jacobian", torch.diag_embed),
        (ten_draws, "softmax", uniform),
        (jacobian_at_high_variance, "softmax", uniform),
        (vanishing_not_exploding, "softmax", not_normalised),
        (cross_entropy_is_safe, "cross_entropy_gradient", through_the_jacobian),
    ],
    ids=lambda value: value.CLAIM.id if hasattr(value, "CLAIM") else getattr(value, "__name__", value),
)
def test_a_broken_closed_form_changes_the_verdict(module, name, broken, monkeypatch):
    monkeypatch.setattr(forms, name, broken)
    assert run(module.CLAIM, **SMALL[module]).verdict == "refuted"


def test_a_scale_that_does_nothing_is_found_out(monkeypatch):
    monkeypatch.setattr(scale.InverseSqrt, "resolve", multiplies_by(1.0))
    assert run(mean_versus_quantile.CLAIM, **SMALL[mean_versus_quantile]).verdict == "refuted"


def test_a_gate_that_never_shuts_is_found_out(monkeypatch):
    monkeypatch.setattr(RowStats, "jacobian_max", property(lambda self: 0.2 + 0 * self.top1))
    assert run(ten_draws.CLAIM, **SMALL[ten_draws]).verdict == "refuted"
    assert run(jacobian_at_high_variance.CLAIM, **SMALL[jacobian_at_high_variance]).verdict == "refuted"


def test_the_printed_draw_is_consistent_and_has_its_place():
    record = run(ten_draws.CLAIM, **SMALL[ten_draws])
    printed = [number for number in record.measured if number.name.en.startswith("largest entry from")]
    for number in printed:
        assert number.value == pytest.approx(number.document, rel=1e-6)
    assert 0.2 < value_of(record, "share of draws with a smaller largest entry than 2.78") < 0.3
    assert 0.03 < value_of(record, "share of draws with a smaller range than 1.897") < 0.09


def test_the_wrong_variable_hides_the_sharpening():
    record = run(jacobian_at_high_variance.CLAIM, **SMALL[jacobian_at_high_variance])
    assert value_of(record, "largest difference between the document's probs1 and probs2") == 0
    assert value_of(record, "diag(y) − yyᵀ from probs2 as written") == 1
    assert value_of(record, "diag(y) − yyᵀ from probs2 as meant") < 0.2


def test_gradients_follow_the_scale_at_both_ends():
    record = run(vanishing_not_exploding.CLAIM, **SMALL[vanishing_not_exploding])
    assert value_of(record, "power of the scale in the mean ‖∂L/∂q‖, scale ≤") == pytest.approx(1, abs=0.01)
    assert value_of(record, "‖∂L/∂W_q‖ without a scale over with 1/√d, d = 64, squared") > 5
    assert value_of(record, "largest ‖∂L/∂s‖") <= 0.5


@pytest.mark.parametrize("d", [64, 128])
def test_rows_learn_unevenly_without_a_scale_and_the_loss_is_no_confounder(d):
    record = run(vanishing_not_exploding.CLAIM, **SMALL[vanishing_not_exploding])
    for loss in ("squared loss", "fixed upstream gradient"):
        assert (
            value_of(
                record,
                f"unevenness of rows without a scale over with 1/√d (90th over 10th percentile of ‖∂L/∂q‖), d = {d}, {loss}",
            )
            > 10
        )
        assert value_of(record, f"‖∂L/∂W_v‖ without a scale over with 1/√d, d = {d}, {loss}") > 2
    squared, fixed = (
        value_of(record, f"‖∂L/∂W_q‖ without a scale over with 1/√d, d = {d}, {loss}")
        for loss in ("squared loss", "fixed upstream")
    )
    assert squared > fixed > 2
    assert record.sentence.en.startswith("Without 1/√d the rows learn unevenly")


@pytest.mark.parametrize("loss", vanishing_not_exploding.LOSSES)
def test_the_layer_is_attention(loss):
    """Its gradients are those of PyTorch's own attention at the same scale."""
    claim = vanishing_not_exploding.CLAIM
    setting = Setting({**claim.quick, "layers": 2, "n": 5, "width": 7})
    found = vanishing_not_exploding.layer(setting, 3, 2.0, loss)
    generator = setting.generator(3)
    x, target = (torch.randn(2, 5, size, dtype=torch.float64, generator=generator) for size in (7, 3))
    weights = [
        (torch.randn(2, 7, 3, dtype=torch.float64, generator=generator) / 7**0.5).requires_grad_() for _ in range(3)
    ]
    q, k, v = (x @ weight for weight in weights)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=2 / 3**0.5)
    error = (out - target).square().sum() / 2 if loss == "squared" else (out * target).sum()
    expected = torch.autograd.grad(error, (q, *weights))
    assert torch.allclose(found.q, expected[0].norm(dim=-1))
    for ours, theirs in zip((found.w_q, found.w_k, found.w_v), expected[1:], strict=True):
        assert torch.allclose(ours, theirs.flatten(1).norm(dim=-1))
