// The normal distribution's tails, to about 1e-15 of their own size.

const ERFC_STEP = 0.5;
const ERFC_SQUARES = Array.from({ length: 13 }, (_, k) => (ERFC_STEP * k) ** 2);
const ERFC_WEIGHTS = ERFC_SQUARES.map((square) => Math.exp(-square));

/** e^(−x²); x² is split, since rounding it would cost digits of a small result. */
function expOfMinusSquare(x) {
  const high = Math.round(x * 16) / 16;
  return Math.exp(-high * high) * Math.exp((high - x) * (high + x));
}

/** 1 − erf(x). Up to ½ by erf's series; beyond, by the trapezoid rule with its pole's residue (Chiarella, Reichel 1968). */
export function erfc(x) {
  if (x < 0) return 2 - erfc(-x);
  if (x > 27) return 0;
  const square = x * x;
  if (x < 0.5) {
    let [term, sum] = [x, x];
    for (let k = 1; term > 1e-17 * sum; k++) sum += term *= square / (k + 0.5);
    return 1 - (2 / Math.sqrt(Math.PI)) * Math.exp(-square) * sum;
  }
  let sum = 1 / (2 * square);
  for (let k = 1; k < 13; k++) sum += ERFC_WEIGHTS[k] / (square + ERFC_SQUARES[k]);
  const residue = x < 6 ? 2 / Math.expm1((2 * Math.PI * x) / ERFC_STEP) : 0;
  return ((2 * ERFC_STEP * x) / Math.PI) * expOfMinusSquare(x) * sum - residue;
}

/** P(Z > z). */
export const normalTail = (z) => erfc(z * Math.SQRT1_2) / 2;

/** ln P(Z < z). */
export function logNormalCdf(z) {
  return z > 0 ? Math.log1p(-normalTail(z)) : Math.log(normalTail(-Math.max(z, -37)));
}
