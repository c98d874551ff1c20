"""The dot product: dot-variance, variance-is-sqrt-d, sqrt-is-the-right-power, bounded-inputs."""

import pytest

from isotherm import scale, theory
from isotherm.lab.claims.bounded_inputs import experiment as bounded_inputs
from isotherm.lab.claims.dot_variance import experiment as dot_variance
from isotherm.lab.claims.sqrt_is_the_right_power import experiment as sqrt_is_the_right_power
from isotherm.lab.claims.variance_is_sqrt_d import experiment as variance_is_sqrt_d
from isotherm.scale import Resolved

from .running import multiplies_by, run, value_of

SMALL = {
    dot_variance: {
        "dimensions": (1, 16, 256),
        "components": 1 << 20,
        "departure_dimensions": (4, 16),
        "departure_components": 1 << 19,
    },
    variance_is_sqrt_d: {"dimensions": (1, 8, 64, 512), "components": 1 << 17},
    sqrt_is_the_right_power: {
        "dimensions": (2, 32, 512),
        "components": 1 << 20,
        "softmax_dimensions": (4, 64),
        "seeds": 3,
        "keys": 64,
    },
    bounded_inputs: {"dimensions": (1, 16, 256), "seeds": 4},
}


def to_the_power(exponent):
    """A rule that multiplies by another power of d than it should."""
    return lambda self, site: Resolved(multiplier=site.head_dim**exponent)


@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.CLAIM.id)
def test_the_verdict_is_the_one_on_record_and_repeats(module):
    record = run(module.CLAIM, **SMALL[module])
    assert record.verdict == module.CLAIM.expected
    assert run(module.CLAIM, **SMALL[module]) == record


@pytest.mark.parametrize(
    ("module", "rule", "resolve", "verdict"),
    [
        (dot_variance, scale.NoScale, to_the_power(-0.5), "refuted"),
        (variance_is_sqrt_d, scale.NoScale, to_the_power(-0.25), "confirmed"),
        (sqrt_is_the_right_power, scale.InverseSqrt, to_the_power(-1), "refuted"),
        (sqrt_is_the_right_power, scale.MuP, to_the_power(-0.5), "refuted"),
        (bounded_inputs, scale.NoScale, multiplies_by(1.5), "refuted"),
    ],
    ids=lambda value: value.CLAIM.id if hasattr(value, "CLAIM") else getattr(value, "__name__", value),
)
def test_a_broken_rule_changes_the_verdict(module, rule, resolve, verdict, monkeypatch):
    monkeypatch.setattr(rule, "resolve", resolve)
    assert run(module.CLAIM, **SMALL[module]).verdict == verdict


def test_the_documents_formula_for_means_is_found_wrong(monkeypatch):
    def subtracting(d, *, mean_q=0.0, mean_k=0.0, **_):
        return theory.DotProductMoments(d * mean_q * mean_k, d * (1.5 - mean_q**2 * mean_k**2))

    monkeypatch.setattr(theory, "dot_product_moments", subtracting)
    assert run(dot_variance.CLAIM, **SMALL[dot_variance]).verdict == "refuted"


def test_variance_follows_d_and_not_its_root():
    record = run(variance_is_sqrt_d.CLAIM, **SMALL[variance_is_sqrt_d])
    assert value_of(record, "power of d in the variance") == pytest.approx(1, abs=0.02)
    assert value_of(record, "power of d in the standard deviation") == pytest.approx(0.5, abs=0.01)
    assert [number.holds for number in record.measured[:4]] == [True, False, False, False]
