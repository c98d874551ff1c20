"""Predictions for attention logits and for the softmax over them, to compare with measurements.

The model of a row is n logits drawn independently from N(0, σ²): the random energy model (Derrida 1981), which freezes
at σ = √(2 ln n). `gaussian_row` is exact at any n; the `asymptotic_*` functions are its limits for large ln n.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, erfc, exp, isfinite, log, log1p, pi, sqrt

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from isotherm.errors import ArgumentError
from isotherm.language import Text

Floats = NDArray[np.float64]
MOST_PARTS = 64
"""Steps of the inner quadrature for one of the outer, up to which they share their values."""

_POSITIVE_INTEGER = Text("an integer of at least 1", "不小于 1 的整数")
_NON_NEGATIVE = Text("a finite number of at least 0", "不小于 0 的有限数")


@dataclass(frozen=True, slots=True)
class DotProductMoments:
    """Mean and variance of one dot product."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class RowExpectation:
    """Expected row statistics (names as in `RowStats`) over n keys whose logits have standard deviation sigma."""

    n: int
    sigma: float
    jacobian_trace: float
    collision: float
    entropy: float
    lse: float
    max_logit: float


@dataclass(frozen=True, slots=True)
class TranslationScore:
    """BLEU on newstest2013: mean and spread over runs, and the best run."""

    attention: str
    dimension: int
    bleu: float
    spread: float
    best: float


BRITZ_2017 = (
    TranslationScore("multiplicative", 128, 22.03, 0.08, 22.14),
    TranslationScore("multiplicative", 256, 22.33, 0.28, 22.64),
    TranslationScore("multiplicative", 512, 21.78, 0.05, 21.83),
    TranslationScore("multiplicative", 1024, 18.22, 0.03, 18.26),
    TranslationScore("additive", 128, 22.23, 0.11, 22.38),
    TranslationScore("additive", 256, 22.33, 0.04, 22.39),
    TranslationScore("additive", 512, 22.47, 0.27, 22.79),
    TranslationScore("additive", 1024, 22.10, 0.18, 22.36),
)
"""The attention table of Britz et al. 2017, arXiv:1703.03906: WMT'15 En–De, unscaled dot product."""


def _check(n: int = 1, d: int = 1, **non_negative: float) -> None:
    for name, count in (("n", n), ("d", d)):
        if count != int(count) or count < 1:
            raise ArgumentError(name, _POSITIVE_INTEGER, got=count)
    for name, value in non_negative.items():
        if not (isfinite(value) and value >= 0):
            raise ArgumentError(name, _NON_NEGATIVE, got=value)


def dot_product_moments(
    d: int,
    *,
    mean_q: float = 0.0,
    mean_k: float = 0.0,
    var_q: float = 1.0,
    var_k: float = 1.0,
    correlation: float = 0.0,
) -> DotProductMoments:
    """Mean and variance of q·k over d independent pairs (qᵢ, kᵢ) with these moments.

    With correlation 0 (q and k independent) it holds for every distribution: mean d·μ_qμ_k, variance
    d·(v_qv_k + v_qμ_k² + v_kμ_q²). A correlation ρ between qᵢ and kᵢ adds dρ√(v_qv_k) to the mean and
    d·(ρ²v_qv_k + 2ρμ_qμ_k√(v_qv_k)) to the variance, where (qᵢ, kᵢ) is bivariate normal; other distributions differ.
    """
    _check(d=d, var_q=var_q, var_k=var_k)
    if not -1 <= correlation <= 1:
        raise ArgumentError("correlation", Text("a number from −1 to 1", "−1 到 1 之间的数"), got=correlation)
    covariance = correlation * sqrt(var_q * var_k)
    variance = var_q * var_k + var_q * mean_k**2 + var_k * mean_q**2
    variance += covariance**2 + 2 * covariance * mean_q * mean_k
    return DotProductMoments(d * (mean_q * mean_k + covariance), d * variance)


def freezing_threshold(n: int) -> float:
    """σ_c = √(2 ln n): the logit spread at which the softmax over n keys freezes."""
    _check(n)
    return sqrt(2 * log(n))


def freezing_dimension(n: int) -> float:
    """2 ln n: the head dimension at which unscaled unit-variance q·k (σ = √d) reaches σ_c."""
    return freezing_threshold(n) ** 2


def frozen(sigma: float, n: int) -> bool:
    """Whether logits of this spread lie in the frozen phase, σ > σ_c."""
    _check(n, sigma=sigma)
    return sigma > freezing_threshold(n)


def asymptotic_entropy(n: int, sigma: float) -> float:
    """Ln n − σ²/2 below σ_c; above, Σ_k m/(k(k − m)) with m = σ_c/σ, the mean entropy of Poisson–Dirichlet(m, 0)."""
    _check(n, sigma=sigma)
    if not frozen(sigma, n):
        return log(n) - sigma**2 / 2
    m, terms = freezing_threshold(n) / sigma, 1000
    k = np.arange(1, terms + 1)
    return float((m / (k * (k - m))).sum()) - log1p(-m / (terms + 0.5))


def asymptotic_n_eff(n: int, sigma: float) -> float:
    """1/Σp² of a typical row: n·e^(−σ²) up to σ_c/2, e^((σ_c − σ)²) up to σ_c, then of order 1 (returned as 1).

    Σe^(2s) freezes at σ_c/2, where it turns from n·e^(2σ²) into e^(2σσ_c), while (Σeˢ)² stays n²·e^(σ²) up to σ_c. An
    exponential order: at n = 65536 and σ = ¾σ_c it says 4 where the median row has 45.
    """
    _check(n, sigma=sigma)
    critical = freezing_threshold(n)
    if sigma <= critical / 2:
        return n * exp(-(sigma**2))
    return exp(max(critical - sigma, 0.0) ** 2)


def asymptotic_jacobian_trace(n: int, sigma: float) -> float:
    """E[1 − Σp²]: 1 below σ_c and σ_c/σ above."""
    _check(n, sigma=sigma)
    return freezing_threshold(n) / sigma if frozen(sigma, n) else 1.0


def entropy_lower_bound(spectral_norm: float, n: int) -> float:
    """The least entropy of a row of n logits with Euclidean norm ≤ σ (Zhai et al. 2023, arXiv:2303.06296, Theorem 3.1).

    ln(1 + (n−1)β) + σ√(n(n−1))·β/(1 + (n−1)β) with β = e^(−σ√(n/(n−1))). The theorem puts σ = ‖W_K W_Qᵀ‖₂·‖XXᵀ‖₂ (times
    the scale), which bounds the norm of every row; since a shift changes nothing, σ = √n·logit_std serves as well.
    It is attained by one logit at σ√((n−1)/n) and the others at −σ/√(n(n−1)).
    """
    _check(n, spectral_norm=spectral_norm)
    if n == 1:
        return 0.0
    beta = exp(-spectral_norm * sqrt(n / (n - 1)))
    return log1p((n - 1) * beta) + spectral_norm * sqrt(n * (n - 1)) * beta / (1 + (n - 1) * beta)


def _normal_tail(z: Floats) -> Floats:
    return np.array([erfc(u) / 2 for u in (z / sqrt(2)).ravel().tolist()]).reshape(z.shape)


def _log_normal_cdf(z: Floats) -> Floats:
    z = np.maximum(z, -37.0)
    return np.where(z > 0, np.log1p(-np.minimum(_normal_tail(z), 0.5)), np.log(_normal_tail(-z)))


def _laplace(x: Floats, sigma: float) -> tuple[Floats, Floats, Floats, Floats]:
    """At t = eˣ, with w = t·eˢ: E[w e⁻ʷ], E[w² e⁻ʷ], −E[w e⁻ʷ (ln w + γ)] and ln E[e⁻ʷ], for evenly spaced x.

    The trapezoid rule converges exponentially for both forms: over s for small σ; for large σ over v = ln w, where
    e^(v − eᵛ) is a density of unit width and E[e⁻ʷ] its average of P(s < v − x). The spacing of x is a multiple of that
    rule's, so that every function is computed once for each sum or difference of the two, not for each pair; where x is so
    far apart that there are fewer pairs, for each pair.
    """
    spacing, fine = float(x[1] - x[0]), min(0.3, sigma / 2)
    shared = spacing < MOST_PARTS * fine
    parts = ceil(spacing / fine) if shared else 1
    step = spacing / parts if shared else 0.3
    if sigma < 8:
        pace = step / sigma if shared else min(0.5, 0.3 / sigma)
        z = np.arange(-10, 10 + pace, pace)
        first_sum, count = x[0] - 10 * sigma, parts * (len(x) - 1) + len(z)
        v = np.minimum(first_sum + step * np.arange(count) if shared else x[:, None] + sigma * z, 6.0)
        weight = np.exp(-z * z / 2)
        weight /= weight.sum()
        w = np.exp(v)
        density = w * np.exp(-w)
        seen = [density, density * w, density * (-v - np.euler_gamma), np.exp(-w), -np.expm1(-w)]
        if shared:
            seen = [sliding_window_view(it, len(z))[::parts] for it in seen]
        first, second, surprise, low, high = (it @ weight for it in seen)
    else:
        v = np.arange(-45, 6, step)
        w = np.exp(v)
        gumbel = step * w * np.exp(-w)
        apart = v[0] - x[-1] + step * np.arange(parts * (len(x) - 1) + len(v)) if shared else v - x[:, None]
        z = apart / sigma
        density, tail = np.exp(-z * z / 2) / (sigma * sqrt(2 * pi)), _normal_tail(z)
        if shared:
            density, tail = (sliding_window_view(it, len(v))[::parts][::-1] for it in (density, tail))
        low, high = (1 - tail) @ gumbel, tail @ gumbel
        first, second, surprise = (density @ it for it in (gumbel, gumbel * w, gumbel * (-v - np.euler_gamma)))
    log_phi = np.where(high < 0.5, np.log1p(-np.minimum(high, 0.5)), np.log(np.maximum(low, 1e-300)))
    return first, second, surprise, log_phi


@lru_cache(maxsize=512)
def _largest_of(n: int) -> float:
    """E[max] of n standard normals: ∫ z n f(z) Φ(z)ⁿ⁻¹ dz."""
    z = np.arange(-10, 10, 0.02)
    density = 0.02 * n / sqrt(2 * pi) * np.exp(-z * z / 2 + (n - 1) * _log_normal_cdf(z))
    return float(z @ density)


@lru_cache(maxsize=4096)
def gaussian_row(n: int, sigma: float) -> RowExpectation:
    """Exact expectations over a row of n logits iid N(0, σ²), by quadrature over ln t of 1/Z = ∫ e^(−tZ) dt.

    With φ(t) = E[e^(−teˢ)] and w = teˢ: E[tr J] = n(n−1)∫ E[we⁻ʷ]² φⁿ⁻² d ln t, E[Σp²] = n∫ E[w²e⁻ʷ] φⁿ⁻¹ d ln t,
    E[entropy] = −n∫ E[we⁻ʷ(ln w + γ)] φⁿ⁻¹ d ln t, E[lse] = −γ − n∫ ln t·E[we⁻ʷ] φⁿ⁻¹ d ln t. They are computed apart;
    trace + collision = 1 and entropy = lse − σ²·trace (Gaussian integration by parts) check one another.
    """
    _check(n, sigma=sigma)
    if n == 1 or sigma == 0:
        return RowExpectation(n, sigma, 1 - 1 / n, 1 / n, log(n), log(n), 0.0)
    critical = freezing_threshold(n)
    # −ln t spreads about lse, which lies between ln n + mean(s) and ln n + max(s), up to e⁻²⁵ of the probability.
    low = -log(n) - sigma * sqrt(critical**2 + 50) - 27
    high = -log(n) + 7 * sigma / sqrt(n) + 3.5
    points = ceil((high - low) / (0.2 * max(1.0, sigma / critical)))
    x, step = np.linspace(low, high, points, retstep=True)
    first, second, surprise, log_phi = _laplace(x, sigma)
    others = n * float(step) * np.exp((n - 1) * log_phi)
    trace = n * (n - 1) * float(step) * float(first**2 @ np.exp((n - 2) * log_phi))
    return RowExpectation(
        n,
        sigma,
        jacobian_trace=trace,
        collision=float(second @ others),
        entropy=float(surprise @ others),
        lse=-float(np.euler_gamma) - float((x * first) @ others),
        max_logit=sigma * _largest_of(n),
    )


def _chi_nodes(d: int) -> tuple[Floats, Floats]:
    """Nodes and weights over the radius of a standard normal vector: the trapezoid rule in ln χ_d."""
    step = min(0.25, 0.6 / sqrt(d))
    u = log(d) / 2 + step * np.arange(-80, 40)
    log_weight = d * u - np.exp(2 * u) / 2
    log_weight -= log_weight.max()
    kept = log_weight > -18
    weight = np.exp(log_weight[kept])
    return np.exp(u[kept]), weight / weight.sum()


def gaussian_attention(n: int, d: int, scale: float) -> RowExpectation:
    """Exact expectations for logits scale·q·k, q and k standard normal in d dimensions; `sigma` is scale·√d.

    Given q the logits are iid N(0, (scale·|q|)²), so this averages `gaussian_row` over σ = scale·χ_d.
    """
    _check(n, d, scale=scale)
    radii, weights = _chi_nodes(d)
    rows = [gaussian_row(n, scale * float(radius)) for radius in radii]
    names = ("jacobian_trace", "collision", "entropy", "lse", "max_logit")
    averages = {name: float(weights @ np.array([getattr(row, name) for row in rows])) for name in names}
    return RowExpectation(n, scale * sqrt(d), **averages)


def jacobian_trace_floor(n: int, sigma: float, quantile: float) -> float:
    """A lower bound on this quantile of tr J over rows of n logits iid N(0, σ²); nearly equal to it well above σ_c.

    A gap g between the two largest logits leaves tr J ≥ ½·sech²(g/2), and P(gap > g) = n∫ f(z) Φ(z − g/σ)ⁿ⁻¹ dz.
    """
    _check(n, sigma=sigma)
    if not 0 < quantile < 1:
        raise ArgumentError("quantile", Text("a number between 0 and 1", "0 与 1 之间的数"), got=quantile)
    if n == 1:
        return 0.0
    z = np.arange(-10, 10, 0.05)
    log_density = np.log(0.05 * n / sqrt(2 * pi)) - z * z / 2
    low, high = 0.0, 20.0
    for _ in range(50):
        gap = (low + high) / 2
        beyond = float(np.exp(log_density + (n - 1) * _log_normal_cdf(z - gap)).sum())
        low, high = (gap, high) if beyond > quantile else (low, gap)
    weight = exp(-sigma * high)
    return 2 * weight / (1 + weight) ** 2
