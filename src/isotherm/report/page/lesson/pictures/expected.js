// What theory expects of a row: the spread of its logits under a rule, and from that its gate and entropy.
import { normalTail } from "../maths/erfc.js";
import { gaussianRow } from "../maths/theory.js";
import { normalises, scaleOf } from "../maths/rules.js";

// The standard deviation of a row's logits: q is fixed, the keys are drawn. A shift of all keys changes no weight, so it does not
// count. `growth` multiplies q·k, and a norm undoes it; it also divides by |k|, which is larger for keys nearer to q: to first order
// in 1/d this leaves 1 − c²(1 + f/2) of the variance, with c the mean cosine and f the share of a key that is its own.
export function rowSpread({ d, n, rule, growth, spread, mean, correlation }) {
  const scale = scaleOf(rule, { d, n });
  const own = (1 - correlation ** 2) * spread ** 2;
  const whole = spread ** 2 + mean ** 2;
  const norm = normalises(rule);
  if (norm === "none") return growth * scale * Math.sqrt(d * own * whole);
  const [share, cosine] = [own / whole, (mean ** 2 + correlation * spread ** 2) / whole];
  const left = Math.max(share * (1 - cosine ** 2 * (1 + share / 2)), 0);
  return scale * Math.sqrt(norm === "rms" ? d * left : left / d);
}

const EULER = 0.5772156649015329;
const WIDE_SIGMA = 5;

// Nodes of the average over s (σ small: [s, weight]) or over v = ln w (σ large: [v, weight of the Gumbel density]). The trapezoid
// rule's error falls like e^(−π²/step), and n keys multiply it by n.
function averageNodes(n, sigma) {
  const digits = Math.log(n) + 9.2;
  const wide = sigma >= WIDE_SIGMA;
  const end = wide ? 3 : Math.sqrt(2 * digits);
  const step = wide ? Math.PI ** 2 / digits : Math.min(1, Math.PI ** 2 / digits / sigma);
  const [at, weights] = [[], []];
  for (let u = wide ? -digits - 6 : -end; u <= end; u += step) {
    at.push(wide ? u : sigma * u);
    weights.push(step * (wide ? Math.exp(u - Math.exp(u)) : Math.exp((-u * u) / 2) / Math.sqrt(2 * Math.PI)));
  }
  // The Gumbel density's mean of v, as these nodes have it: its error would be multiplied by σ.
  const centre = wide ? at.reduce((sum, v, number) => sum + v * weights[number], 0) : -EULER;
  return { wide, at: Float64Array.from(at), weights: Float64Array.from(weights), sigma, centre };
}

// At t = eˣ, with w = t·eˢ: E[w e⁻ʷ], −E[w e⁻ʷ (ln w + γ)] and 1 − E[e⁻ʷ], written into `sums`.
function averagesAt(x, { wide, at, weights, sigma, centre }, sums) {
  let [first, surprise, beyond] = [0, 0, 0];
  for (let number = 0; number < at.length; number++) {
    const v = wide ? at[number] : Math.min(x + at[number], 6);
    let density = weights[number];
    if (wide) {
      const z = (v - x) / sigma;
      if (z < 8) beyond += density * (z < -8 ? 1 : normalTail(z));
      density *= Math.exp((-z * z) / 2) / (sigma * Math.sqrt(2 * Math.PI));
    } else {
      const w = Math.exp(v);
      const lost = -Math.expm1(-w);
      beyond += density * lost;
      density *= w * (1 - lost);
    }
    first += density;
    surprise -= density * (v - centre);
  }
  sums[0] = first;
  sums[1] = surprise;
  sums[2] = beyond;
}

function integrated(n, sigma) {
  const critical = Math.sqrt(2 * Math.log(n));
  const low = -Math.log(n) - sigma * Math.sqrt(critical ** 2 + 20) - 10;
  const high = -Math.log(n) + (5 * sigma) / Math.sqrt(n) + 3;
  const points = Math.ceil((high - low) / (0.7 * Math.max(1, sigma / critical)));
  const step = (high - low) / points;
  const nodes = averageNodes(n, sigma);
  const sums = [0, 0, 0];
  let [gate, entropy] = [0, 0];
  for (let number = 0; number <= points; number++) {
    averagesAt(low + step * number, nodes, sums);
    if (sums[2] >= 1) continue;
    const log = Math.log1p(-sums[2]);
    gate += sums[0] * sums[0] * Math.exp((n - 2) * log);
    entropy += sums[1] * Math.exp((n - 1) * log);
  }
  return { gate: n * (n - 1) * step * gate, entropy: (n * step * entropy) / Math.log(n) };
}

const known = new Map();

// Expected gate and entropy (of ln n) of n logits that are independent N(0, σ²): the integrals of gaussianRow in maths/theory.js with
// a tenth of its nodes, good to 1e-3, so that a picture can ask for a hundred of them while a control moves.
export function expectedRow(n, sigma) {
  if (sigma < 1e-6) return { gate: 1 - 1 / n, entropy: 1 };
  const key = `${n} ${sigma.toPrecision(9)}`;
  if (!known.has(key)) {
    if (known.size > 4000) known.clear();
    known.set(key, integrated(n, sigma));
  }
  return known.get(key);
}

// The same to every digit, for numbers that are told: a sentence, a file.
export function exactRow(n, sigma) {
  const { jacobian_trace: gate, entropy } = gaussianRow(n, sigma);
  return { gate, entropy: entropy / Math.log(n) };
}
