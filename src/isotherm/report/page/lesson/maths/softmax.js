// Closed forms of softmax for one row, as in isotherm/softmax.py: `y` is always an output of `softmax`.

function shiftedRow(x) {
  let top = -Infinity;
  for (let i = 0; i < x.length; i++) if (x[i] > top) top = x[i];
  const base = top === -Infinity ? 0 : top; // a row of nothing but −inf (no visible key) keeps its −inf
  const below = new Float64Array(x.length);
  const powers = new Float64Array(x.length);
  let total = 0;
  for (let i = 0; i < x.length; i++) {
    below[i] = x[i] - base;
    total += powers[i] = Math.exp(below[i]);
  }
  return { below, powers, total: total === 0 ? 1 : total };
}

/** exp(xᵢ)/Σ exp(xⱼ). −inf gets 0, a row of nothing but −inf gives zeros, +inf or NaN gives NaN. */
export function softmax(x) {
  const { powers, total } = shiftedRow(x);
  for (let i = 0; i < powers.length; i++) powers[i] /= total;
  return powers;
}

/** xᵢ − ln Σ exp(xⱼ), finite wherever xᵢ is; a row of nothing but −inf stays −inf. */
export function logSoftmax(x) {
  const { below, total } = shiftedRow(x);
  const logTotal = Math.log(total);
  return below.map((value) => value - logTotal);
}

/** J = diag(y) − y yᵀ, as an array of rows. */
export function jacobian(y) {
  return Array.from(y, (yi, i) => Float64Array.from(y, (yj, j) => (i === j ? yi - yi * yj : -yi * yj)));
}

/** J t = y ⊙ (t − ⟨y, t⟩) without forming J. */
export function jacobianProduct(y, t) {
  let inner = 0;
  for (let i = 0; i < y.length; i++) inner += y[i] * t[i];
  return Float64Array.from(y, (yi, i) => yi * (t[i] - inner));
}

/** tr J = Σ yᵢ(1 − yᵢ) = 1 − Σ yᵢ²: the gate. */
export function jacobianTrace(y) {
  return y.reduce((sum, yi) => sum + yi * (1 - yi), 0);
}

/** max |Jᵢⱼ| = max yᵢ(1 − yᵢ), at most ¼. */
export function jacobianMax(y) {
  return y.reduce((most, yi) => Math.max(most, yi * (1 - yi)), 0);
}

/** ∂(−Σ tᵢ ln ŷᵢ)/∂x = ŷ·Σt − t. `target` is an index (t is then one-hot) or an array of probabilities. */
export function crossEntropyGradient(x, target) {
  const y = softmax(x);
  if (typeof target === "number") return y.map((yi, i) => yi - (i === target ? 1 : 0));
  const sum = target.reduce((all, t) => all + t, 0);
  return y.map((yi, i) => yi * sum - target[i]);
}
