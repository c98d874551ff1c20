// Predictions for dot products and for the softmax over n logits drawn from N(0, σ²): isotherm/theory.py in JavaScript.
// Integrals are trapezoid rules, which converge exponentially here, so that another grid gives the same digits.

import { logNormalCdf, normalTail } from "./erfc.js";

const EULER_GAMMA = 0.5772156649015329;
const SQRT_2_PI = Math.sqrt(2 * Math.PI);
const EXPECTATIONS = ["jacobian_trace", "collision", "entropy", "lse", "max_logit"];

/** Remember what `compute` gave for its arguments, up to 4096 of them. */
function remembered(compute) {
  const known = new Map();
  return (...given) => {
    const key = given.join();
    if (!known.has(key)) {
      if (known.size >= 4096) known.clear();
      known.set(key, compute(...given));
    }
    return known.get(key);
  };
}

/** Mean and variance of q·k over d independent pairs (qᵢ, kᵢ) with these moments. */
export function dotProductMoments(d, { mean_q = 0, mean_k = 0, var_q = 1, var_k = 1, correlation = 0 } = {}) {
  const covariance = correlation * Math.sqrt(var_q * var_k);
  const independent = var_q * var_k + var_q * mean_k ** 2 + var_k * mean_q ** 2;
  const variance = independent + covariance ** 2 + 2 * covariance * mean_q * mean_k;
  return { mean: d * (mean_q * mean_k + covariance), variance: d * variance };
}

/** σ_c = √(2 ln n): the logit spread at which the softmax over n keys freezes. */
export const freezingThreshold = (n) => Math.sqrt(2 * Math.log(n));

/** 2 ln n: the head dimension at which unscaled unit-variance q·k reaches σ_c. */
export const freezingDimension = (n) => freezingThreshold(n) ** 2;

/** ln n − σ²/2 below σ_c; above, Σ_k m/(k(k − m)) with m = σ_c/σ. */
export function asymptoticEntropy(n, sigma) {
  if (sigma <= freezingThreshold(n)) return Math.log(n) - sigma ** 2 / 2;
  const m = freezingThreshold(n) / sigma;
  let sum = -Math.log1p(-m / 1000.5);
  for (let k = 1000; k >= 1; k--) sum += m / (k * (k - m));
  return sum;
}

/** E[1 − Σp²]: 1 below σ_c and σ_c/σ above. */
export function asymptoticJacobianTrace(n, sigma) {
  return sigma > freezingThreshold(n) ? freezingThreshold(n) / sigma : 1;
}

/** Sums over one row's integrands at t = eˣ, with w = t·eˢ: E[w e⁻ʷ], E[w² e⁻ʷ], −E[w e⁻ʷ (ln w + γ)], E[e⁻ʷ] and
 * 1 − E[e⁻ʷ]. They are computed apart, so that each has its own digits. */
class Laplace {
  constructor(first, second, surprise, low, high) {
    this.first = first;
    this.second = second;
    this.surprise = surprise;
    this.low = low;
    this.high = high;
  }

  /** ln E[e⁻ʷ]. */
  get logMean() {
    return this.high < 0.5 ? Math.log1p(-this.high) : Math.log(Math.max(this.low, 1e-300));
  }
}

const V_STEP = 0.25;
const NARROW_SIGMA = 0.5;

/** The sums at x = V_STEP·point for σ < NARROW_SIGMA, over s. */
function narrowLaplace(sigma) {
  const step = Math.min(0.7, 0.25 / sigma);
  const side = Math.ceil(8.4 / step);
  const places = Float64Array.from({ length: 2 * side + 1 }, (_, j) => step * (j - side));
  const powers = places.map((z) => Math.exp(sigma * z));
  const heights = places.map((z) => Math.exp(-0.5 * z * z));
  const total = heights.reduce((sum, height) => sum + height, 0);
  return (point) => {
    let first = 0;
    let second = 0;
    let surprise = 0;
    let low = 0;
    let high = 0;
    const base = Math.exp(V_STEP * point);
    for (let j = 0; j < places.length; j++) {
      const w = base * powers[j];
      const share = heights[j] / total;
      const missing = w < 1 ? -Math.expm1(-w) : 1 - Math.exp(-w);
      const density = share * (1 - missing) * w;
      first += density;
      second += density * w;
      surprise -= density * (V_STEP * point + sigma * places[j] + EULER_GAMMA);
      low += share * (1 - missing);
      high += share * missing;
    }
    return new Laplace(first, second, surprise, low, high);
  };
}

// For wide rows, at v = V_STEP·(V_FIRST + j): the density of v = ln w when w is exponential, and its products.
const V_FIRST = -180;
const V_COUNT = 197;
const V_VALUES = Float64Array.from({ length: V_COUNT }, (_, j) => V_STEP * (V_FIRST + j));
const GUMBEL = V_VALUES.map((v) => V_STEP * Math.exp(v - Math.exp(v)));
const GUMBEL_SECOND = GUMBEL.map((share, j) => share * Math.exp(V_VALUES[j]));
const GUMBEL_SURPRISE = GUMBEL.map((share, j) => -share * (V_VALUES[j] + EULER_GAMMA));

/** The sums at x = V_STEP·point for σ ≥ NARROW_SIGMA, over v = ln w; asked for at points that fall by `stride`. As x and v are on
 * one grid, the normal density and tail are needed once for each difference v − x. What lies below v = −30 − ln n is
 * too rare for n keys to meet. */
function wideLaplace(n, sigma, stride, points) {
  const from = Math.max(0, Math.floor((-30 - Math.log(n)) / V_STEP) - V_FIRST);
  const fresh = Math.min(stride, V_COUNT - from);
  const size = V_COUNT + (points - 1) * fresh;
  const [densities, tails] = [new Float64Array(size), new Float64Array(size)];
  let [start, filled] = [0, from];
  return (point) => {
    for (let j = filled; j < V_COUNT; j++) {
      const z = (V_STEP * (V_FIRST + j - point)) / sigma;
      densities[start + j] = Math.exp(-0.5 * z * z) / (sigma * SQRT_2_PI);
      tails[start + j] = Math.abs(z) > 10 ? Number(z < 0) : normalTail(z);
    }
    let first = 0;
    let second = 0;
    let surprise = 0;
    let low = 0;
    let high = 0;
    for (let j = from; j < V_COUNT; j++) {
      const density = densities[start + j];
      const tail = tails[start + j];
      first += density * GUMBEL[j];
      second += density * GUMBEL_SECOND[j];
      surprise += density * GUMBEL_SURPRISE[j];
      low += (1 - tail) * GUMBEL[j];
      high += tail * GUMBEL[j];
    }
    start += fresh;
    filled = V_COUNT - fresh;
    return new Laplace(first, second, surprise, low, high);
  };
}

/** E[max] of n standard normals: ∫ z n f(z) Φ(z)ⁿ⁻¹ dz. */
const largestOf = remembered((n) => {
  let sum = 0;
  for (let j = -200; j < 200; j++) {
    const z = 0.05 * j;
    sum += z * Math.exp((n - 1) * logNormalCdf(z) - 0.5 * z * z);
  }
  return (0.05 * n * sum) / SQRT_2_PI;
});

/** Exact expectations over a row of n logits iid N(0, σ²), by quadrature over x = ln t of 1/Z = ∫ e^(−tZ) dt. */
export const gaussianRow = remembered((n, sigma) => {
  if (n === 1 || sigma === 0) {
    const [collision, entropy] = [1 / n, Math.log(n)];
    return { n, sigma, jacobian_trace: 1 - collision, collision, entropy, lse: entropy, max_logit: 0 };
  }
  const critical = freezingThreshold(n);
  // −x spreads about lse, which lies between ln n + mean(s) and ln n + max(s), up to e⁻²⁵ of the probability.
  const last = Math.ceil((-Math.log(n) + (7 * sigma) / Math.sqrt(n) + 3.5) / V_STEP);
  const depth = last + (Math.log(n) + sigma * Math.sqrt(critical ** 2 + 50) + 27) / V_STEP;
  const stride = Math.max(1, Math.floor(sigma / critical)); // beyond σ_c lse spreads like σ/σ_c
  const points = Math.ceil(depth / stride) + 1;
  const laplace = sigma < NARROW_SIGMA ? narrowLaplace(sigma) : wideLaplace(n, sigma, stride, points);
  let [trace, collision, entropy, mean] = [0, 0, 0, 0];
  for (let i = 0; i < points; i++) {
    const point = last - i * stride;
    const at = laplace(point);
    const others = Math.exp((n - 1) * at.logMean);
    trace += at.first ** 2 * Math.exp((n - 2) * at.logMean);
    collision += at.second * others;
    entropy += at.surprise * others;
    mean -= V_STEP * point * at.first * others;
  }
  const share = n * V_STEP * stride;
  return {
    n,
    sigma,
    jacobian_trace: (n - 1) * share * trace,
    collision: share * collision,
    entropy: share * entropy,
    lse: share * mean - EULER_GAMMA,
    max_logit: sigma * largestOf(n),
  };
});

/** Nodes and weights over the radius of a standard normal vector: the trapezoid rule in ln χ_d, at Python's nodes. */
function chiNodes(d) {
  const step = Math.min(0.25, 0.6 / Math.sqrt(d));
  const nodes = Array.from({ length: 120 }, (_, j) => {
    const u = Math.log(d) / 2 + step * (j - 80);
    return { radius: Math.exp(u), height: d * u - Math.exp(2 * u) / 2 };
  });
  const top = Math.max(...nodes.map(({ height }) => height));
  const kept = nodes.filter(({ height }) => height - top > -18);
  const total = kept.reduce((sum, { height }) => sum + Math.exp(height - top), 0);
  return kept.map(({ radius, height }) => ({ radius, weight: Math.exp(height - top) / total }));
}

/** Exact expectations for logits scale·q·k, q and k standard normal in d dimensions: `gaussianRow` averaged over |q|. */
export const gaussianAttention = remembered((n, d, scale) => {
  const expected = { n, sigma: scale * Math.sqrt(d) };
  for (const name of EXPECTATIONS) expected[name] = 0;
  for (const { radius, weight } of chiNodes(d)) {
    const row = gaussianRow(n, scale * radius);
    for (const name of EXPECTATIONS) expected[name] += weight * row[name];
  }
  return expected;
});

/** The gap between the two largest of n standard normals that this share of rows exceeds: P(gap > g) = n∫ f(z) Φ(z − g)ⁿ⁻¹ dz. */
const gapOf = remembered((n, share) => {
  let [low, high] = [0, 20];
  for (let turn = 0; turn < 50; turn++) {
    const gap = (low + high) / 2;
    let beyond = 0;
    for (let j = -200; j < 200; j++) {
      const z = 0.05 * j;
      beyond += Math.exp((n - 1) * logNormalCdf(z - gap) - 0.5 * z * z);
    }
    if ((0.05 * n * beyond) / SQRT_2_PI > share) low = gap;
    else high = gap;
  }
  return high;
});

/** A lower bound on this quantile of tr J over rows of n logits iid N(0, σ²): a gap g leaves tr J ≥ ½·sech²(g/2). */
export function jacobianTraceFloor(n, sigma, quantile) {
  if (n === 1) return 0;
  const weight = Math.exp(-sigma * gapOf(n, quantile));
  return (2 * weight) / (1 + weight) ** 2;
}
