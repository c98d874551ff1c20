from dataclasses import astuple
from itertools import pairwise
from math import log, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm import theory
from isotherm.errors import ArgumentError
from isotherm.softmax import log_softmax, softmax

KEYS = [2, 3, 10, 128, 1024, 4096]
SPREADS = [0.1, 0.5, 1, 2, 4, 8, 22.6, 32]
STATISTICS = ("jacobian_trace", "collision", "entropy", "lse", "max_logit")


def entropy_of(logits: np.ndarray) -> np.ndarray:
    return -(softmax(logits) * log_softmax(logits)).sum(-1)


def measured(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Row statistics of logits [rows, n] from their definitions."""
    largest, collision = logits.max(-1), (softmax(logits) ** 2).sum(-1)
    lse = largest + np.log(np.exp(logits - largest[:, None]).sum(-1))
    return dict(zip(STATISTICS, (1 - collision, collision, entropy_of(logits), lse, largest), strict=True))


def assert_mean(samples: np.ndarray, expected: float, label: str) -> None:
    """The sample mean lies within 4.5 standard errors of the expectation."""
    error = samples.std(ddof=1) / sqrt(len(samples))
    assert abs(samples.mean() - expected) <= 4.5 * error, f"{label}: {samples.mean()} ± {error}, expected {expected}"


def assert_moments(samples: np.ndarray, expected: theory.DotProductMoments) -> None:
    assert_mean(samples, expected.mean, "mean")
    assert_mean((samples - expected.mean) ** 2, expected.variance, "variance")


@pytest.fixture(scope="module", params=KEYS, ids=lambda n: f"n={n}")
def normals(request) -> np.ndarray:
    n = request.param
    return np.random.default_rng(n).normal(size=(min(50_000, 1_500_000 // n), n))


@pytest.mark.parametrize("sigma", SPREADS, ids=lambda s: f"sigma={s}")
def test_gaussian_row_is_what_simulation_finds(normals, sigma):
    row = theory.gaussian_row(normals.shape[1], sigma)
    for name, samples in measured(sigma * normals).items():
        assert_mean(samples, getattr(row, name), name)


@pytest.mark.parametrize("n", [*KEYS, 65536])
@pytest.mark.parametrize("sigma", [1e-6, *SPREADS, 64, 1e4])
def test_gaussian_row_agrees_with_itself(n, sigma):
    row = theory.gaussian_row(n, sigma)
    assert row.collision == pytest.approx(1 - row.jacobian_trace, rel=1e-7)
    assert row.entropy == pytest.approx(row.lse - sigma**2 * row.jacobian_trace, rel=1e-7, abs=1e-10 * row.lse)


@pytest.mark.parametrize(("n", "sigma"), [(2, 4.0), (10, 0.5), (1024, 3.0), (1024, 32.0), (65536, 12.0)])
def test_lse_is_the_integral_of_sigma_times_trace(n, sigma):
    nodes, weights = np.polynomial.legendre.leggauss(40)
    spreads = sigma * (nodes + 1) / 2
    traces = [theory.gaussian_row(n, float(u)).jacobian_trace for u in spreads]
    expected = log(n) + sigma / 2 * float(weights @ (spreads * traces))
    assert theory.gaussian_row(n, sigma).lse == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.1, 1, 4, 9, 64, 1e4])
def test_two_keys_are_a_logistic_of_one_gaussian(sigma):
    z = np.linspace(-9, 9, 4_000_001 if sigma > 100 else 40_001)
    gap = np.abs(sqrt(2) * sigma * z)
    weight = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum()
    share = 1 / (1 + np.exp(-gap))
    row = theory.gaussian_row(2, sigma)
    assert row.jacobian_trace == pytest.approx(float(weight @ (2 * share * np.exp(-gap) * share)), rel=1e-7)
    assert row.entropy == pytest.approx(float(weight @ (np.log1p(np.exp(-gap)) + gap * (1 - share))), rel=1e-5)
    assert row.max_logit == pytest.approx(sigma / sqrt(pi), rel=1e-9)


@pytest.mark.parametrize("n", [2, 1024, 65536])
def test_both_quadratures_meet(n):
    left, right = theory.gaussian_row(n, 8 - 1e-9), theory.gaussian_row(n, 8.0)
    assert astuple(left) == pytest.approx(astuple(right), rel=1e-8)


@pytest.mark.parametrize("n", [1, 2, 17, 1024])
@pytest.mark.parametrize("sigma", [0.0, 1e-5])
def test_no_spread_is_uniform(n, sigma):
    row = theory.gaussian_row(n, sigma)
    assert row.jacobian_trace == pytest.approx(1 - 1 / n, rel=1e-8)
    assert (row.entropy, row.lse) == (pytest.approx(log(n)), pytest.approx(log(n)))


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 10_000), st.floats(0.01, 60), st.floats(1.01, 1.5))
def test_hotter_means_less_entropy_and_more_keys_mean_more(n, sigma, factor):
    row, hotter = theory.gaussian_row(n, sigma), theory.gaussian_row(n, factor * sigma)
    wider = theory.gaussian_row(2 * n, sigma)
    assert hotter.entropy < row.entropy < wider.entropy
    assert hotter.jacobian_trace < row.jacobian_trace < wider.jacobian_trace
    assert row.lse < hotter.lse


@pytest.mark.parametrize(
    ("n", "d", "scale"),
    [(3, 1, 5.0), (17, 2, 0.7), (128, 5, 1.0), (257, 64, 1 / 8), (257, 64, 1.0)],
    ids=["d=1 hot", "d=2", "d=5 unscaled", "d=64 scaled", "d=64 unscaled"],
)
def test_gaussian_attention_is_what_dot_products_give(n, d, scale):
    rng, expected, blocks = np.random.default_rng(3 * n + d), theory.gaussian_attention(n, d, scale), []
    for _ in range(40):
        q, k = rng.normal(size=(50, d)), rng.normal(size=(50, n, d))
        blocks.append(measured(scale * np.einsum("rd,rnd->rn", q, k)))
    for name in STATISTICS:
        assert_mean(np.concatenate([block[name] for block in blocks]), getattr(expected, name), name)


@pytest.mark.parametrize("d", [1, 2, 3, 16, 64, 1024])
def test_radius_quadrature_has_the_moments_of_chi(d):
    radii, weights = theory._chi_nodes(d)
    assert weights @ radii**2 == pytest.approx(d, rel=1e-5)
    assert weights @ radii**4 == pytest.approx(d * (d + 2), rel=1e-5)


def test_scaled_attention_stays_open_and_unscaled_freezes():
    traces = [theory.gaussian_attention(1024, d, scale).jacobian_trace for d in (64, 1024) for scale in (1, d**-0.5)]
    assert traces == pytest.approx([0.40258, 0.99733, 0.10149, 0.99736], abs=1e-5)


@pytest.mark.parametrize(("n", "sigma"), [(10, 2.0), (128, 4.0), (1024, 8.0), (1024, 32.0)])
@pytest.mark.parametrize("quantile", [0.1, 0.5])
def test_trace_floor_is_below_the_quantile_and_close_when_frozen(n, sigma, quantile):
    logits = sigma * np.random.default_rng(n).normal(size=(3000, n))
    traces, floor = measured(logits)["jacobian_trace"], theory.jacobian_trace_floor(n, sigma, quantile)
    assert (traces < floor).mean() <= quantile + 4.5 * sqrt(quantile * (1 - quantile) / 3000)
    if sigma > 8 * theory.freezing_threshold(n):  # n = 1024, σ = 32
        assert log(np.quantile(traces, quantile) / floor) == pytest.approx(0, abs=0.5)


def test_trace_floor_of_one_key_and_of_no_spread():
    assert (theory.jacobian_trace_floor(1, 3.0, 0.5), theory.jacobian_trace_floor(7, 0.0, 0.5)) == (0, 0.5)


DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "sign": lambda rng, shape: rng.choice([-1.0, 1.0], size=shape),
    "uniform": lambda rng, shape: rng.uniform(-sqrt(3), sqrt(3), size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("mean_q", "mean_k", "var_q", "var_k"), [(0, 0, 1, 1), (0.5, -2, 3, 0.25)], ids=["unit", "any"]
)
def test_dot_product_moments_hold_for_any_distribution(name, mean_q, mean_k, var_q, var_k):
    rng, draw = np.random.default_rng(11), DISTRIBUTIONS[name]
    q = mean_q + sqrt(var_q) * draw(rng, (100_000, 7))
    k = mean_k + sqrt(var_k) * draw(rng, (100_000, 7))
    moments = theory.dot_product_moments(7, mean_q=mean_q, mean_k=mean_k, var_q=var_q, var_k=var_k)
    assert_moments((q * k).sum(-1), moments)


@pytest.mark.parametrize("correlation", [-1.0, -0.4, 0.7, 1.0])
def test_dot_product_moments_of_correlated_normals(correlation):
    rng = np.random.default_rng(13)
    a, b = rng.normal(size=(2, 100_000, 5))
    q = 0.5 + 2 * a
    k = -1 + 3 * (correlation * a + sqrt(1 - correlation**2) * b)
    moments = theory.dot_product_moments(5, mean_q=0.5, mean_k=-1, var_q=4, var_k=9, correlation=correlation)
    assert_moments((q * k).sum(-1), moments)


def test_unit_vectors_have_variance_d_and_freeze_at_two_ln_n():
    assert theory.dot_product_moments(512) == theory.DotProductMoments(0, 512)
    assert theory.freezing_dimension(1024) == pytest.approx(13.8629, abs=1e-4)
    assert theory.freezing_threshold(1024) == pytest.approx(3.72330, abs=1e-5)
    assert (theory.frozen(1.0, 1024), theory.frozen(sqrt(13), 1024), theory.frozen(sqrt(14), 1024)) == (
        False,
        False,
        True,
    )


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75, 2.0, 4.0], ids=lambda f: f"{f} of critical")
def test_asymptotics_are_approached_as_keys_grow(fraction):
    entropy_gaps, trace_gaps = [], []
    for n in (2**6, 2**12, 2**24, 2**48):
        sigma = fraction * theory.freezing_threshold(n)
        row = theory.gaussian_row(n, sigma)
        order = log(n) if fraction < 1 else 1.0
        entropy_gaps.append(abs(row.entropy - theory.asymptotic_entropy(n, sigma)) / order)
        trace_gaps.append(abs(row.jacobian_trace - theory.asymptotic_jacobian_trace(n, sigma)))
    for gaps in (entropy_gaps, trace_gaps):
        assert all(later < 0.95 * earlier for earlier, later in pairwise(gaps)), gaps


def test_asymptotic_entropy_at_known_points():
    assert theory.asymptotic_entropy(1024, 1.0) == pytest.approx(theory.gaussian_row(1024, 1.0).entropy, abs=2e-3)
    # ψ(1) − ψ(1/2) = 2 ln 2 at σ = 2σ_c, and ψ(1) − ψ(3/4) = 3 ln 2 − π/2 at σ = 4σ_c.
    critical = theory.freezing_threshold(512)
    assert theory.asymptotic_entropy(512, 2 * critical) == pytest.approx(2 * log(2), rel=1e-6)
    assert theory.asymptotic_entropy(512, 4 * critical) == pytest.approx(3 * log(2) - pi / 2, rel=1e-6)


def test_typical_n_eff_joins_at_half_the_threshold():
    n, critical = 2**16, theory.freezing_threshold(2**16)
    assert theory.asymptotic_n_eff(n, critical / 2) == pytest.approx(sqrt(n))
    assert theory.asymptotic_n_eff(n, critical / 2 * (1 + 1e-9)) == pytest.approx(sqrt(n), rel=1e-6)
    assert theory.asymptotic_n_eff(n, critical) == theory.asymptotic_n_eff(n, 2 * critical) == 1


@pytest.mark.parametrize(("fraction", "frozen_square"), [(0.25, False), (0.75, True)])
def test_typical_n_eff_is_an_exponential_order(fraction, frozen_square):
    n, sigma = 2**16, fraction * theory.freezing_threshold(2**16)
    logits = sigma * np.random.default_rng(17).normal(size=(60, n))
    excess = np.median(-np.log(measured(logits)["collision"])) - log(theory.asymptotic_n_eff(n, sigma))
    # The largest of n normals lies ln(4π ln n)/2σ_c below σ_c, which Σe^(2s) feels once it is frozen.
    slack = fraction * log(4 * pi * log(n)) if frozen_square else 0.0
    assert slack / 2 - 0.02 < excess < slack + 0.02


def extremal(n: int, norm: float) -> np.ndarray:
    row = np.full(n, -norm / sqrt(n * (n - 1)))
    row[0] = norm * sqrt((n - 1) / n)
    return row


@pytest.mark.parametrize("n", [2, 3, 17, 1024])
@pytest.mark.parametrize("norm", [0.0, 0.5, 3.0, 12.0, 400.0])
def test_entropy_bound_is_attained(n, norm):
    row = extremal(n, norm)
    assert np.linalg.norm(row) == pytest.approx(norm)
    assert theory.entropy_lower_bound(norm, n) == pytest.approx(float(entropy_of(row)), rel=1e-9, abs=1e-12)


@given(st.integers(2, 23), st.floats(0, 30), st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 4.0]))
def test_entropy_bound_holds_for_rows_of_every_shape(n, norm, seed, power):
    rows = np.random.default_rng(seed).normal(size=(64, n))
    rows = np.sign(rows) * np.abs(rows) ** power
    rows *= norm / np.linalg.norm(rows, axis=-1, keepdims=True)
    assert entropy_of(rows).min() >= theory.entropy_lower_bound(norm, n) - 1e-9


@pytest.mark.parametrize(("n", "norm"), [(3, 1.0), (5, 4.0), (17, 3.0), (17, 8.0), (101, 6.0)])
def test_entropy_bound_survives_a_search_for_less(n, norm):
    rows = np.random.default_rng(n).normal(size=(32, n))
    for step in np.geomspace(1.0, 1e-2, 1500):
        rows *= norm / np.linalg.norm(rows, axis=-1, keepdims=True)
        y, log_y = softmax(rows), log_softmax(rows)
        slope = -y * (log_y + entropy_of(rows)[:, None])
        rows -= step * norm * slope / np.linalg.norm(slope, axis=-1, keepdims=True)
    rows *= norm / np.linalg.norm(rows, axis=-1, keepdims=True)
    least, bound = entropy_of(rows).min(), theory.entropy_lower_bound(norm, n)
    assert least >= bound - 1e-9
    assert least == pytest.approx(bound, rel=5e-3)  # the search did get there


def test_entropy_bound_follows_from_the_weights():
    rng = np.random.default_rng(19)
    x, w_q, w_k = rng.normal(size=(11, 5)) / 3, rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    norm = np.linalg.norm(w_k @ w_q.T, 2) * np.linalg.norm(x @ x.T, 2)
    bound = theory.entropy_lower_bound(float(norm), 11)
    assert 0 < bound <= entropy_of(x @ w_q @ w_k.T @ x.T).min()


def test_entropy_bound_of_one_key_is_zero_and_falls_with_the_norm():
    assert theory.entropy_lower_bound(3.0, 1) == 0
    assert theory.entropy_lower_bound(0.0, 7) == pytest.approx(log(7))
    assert theory.entropy_lower_bound(1.0, 64) > theory.entropy_lower_bound(4.0, 64) > 0


def test_cited_scores_are_whole_and_tell_the_documents_story():
    scores = {(score.attention, score.dimension): score for score in theory.BRITZ_2017}
    assert len(scores) == len(theory.BRITZ_2017) == 8
    assert scores["multiplicative", 128].bleu - scores["multiplicative", 1024].bleu == pytest.approx(3.81)
    assert scores["additive", 128].bleu - scores["additive", 1024].bleu == pytest.approx(0.13)
    assert all(score.bleu < score.best <= score.bleu + 2 * score.spread for score in theory.BRITZ_2017)
    columns = zip(*((score.bleu, score.spread, score.best) for score in theory.BRITZ_2017), strict=True)
    assert [sum(column) for column in columns] == pytest.approx([173.49, 1.04, 174.79], rel=1e-9)  # as in the paper


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: theory.gaussian_row(0, 1.0), "n"),
        (lambda: theory.gaussian_row(2.5, 1.0), "n"),
        (lambda: theory.gaussian_row(3, float("nan")), "sigma"),
        (lambda: theory.dot_product_moments(0), "d"),
        (lambda: theory.dot_product_moments(3, var_q=-1.0), "var_q"),
        (lambda: theory.dot_product_moments(3, var_k=-1.0), "var_k"),
        (lambda: theory.freezing_threshold(0), "n"),
        (lambda: theory.frozen(-1.0, 3), "sigma"),
        (lambda: theory.asymptotic_entropy(3, -1.0), "sigma"),
        (lambda: theory.asymptotic_n_eff(3, -1.0), "sigma"),
        (lambda: theory.asymptotic_jacobian_trace(3, -1.0), "sigma"),
        (lambda: theory.entropy_lower_bound(-1.0, 3), "spectral_norm"),
        (lambda: theory.gaussian_attention(3, 2, -1.0), "scale"),
        (lambda: theory.gaussian_attention(3, 0, 1.0), "d"),
        (lambda: theory.dot_product_moments(3, correlation=1.1), "correlation"),
        (lambda: theory.jacobian_trace_floor(3, 1.0, 1.0), "quantile"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_use_names_the_argument(call, argument):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.argument == argument
