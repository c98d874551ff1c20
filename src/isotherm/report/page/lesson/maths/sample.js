// Seeded draws of dot products and of rows. Nothing here draws the d components of a vector: with Gaussian components
// the few numbers that a dot product depends on have known distributions, exactly, for every setting. Each pair and each
// key has its own stream, so that turning a control moves the numbers and, above d = 3, rarely draws one anew.

import { normalises, scaleOf } from "./rules.js";
import { softmax } from "./softmax.js";

const NORM_EPS = 1e-6; // what QK-norm adds to a mean square

/** A stream of random numbers: sfc32 (Chris Doty-Humphrey, PractRand), another one for each triple of whole numbers. */
export class RandomStream {
  words = new Int32Array(4);

  constructor(seed, row = 0, item = 0) {
    this.start(seed, row, item);
  }

  start(seed, row, item) {
    this.words[0] = seed;
    this.words[1] = row;
    this.words[2] = item;
    this.words[3] = 1;
    this.spare = NaN;
    for (let turn = 0; turn < 12; turn++) this.bits();
    return this;
  }

  bits() {
    const words = this.words;
    const b = words[1];
    const c = words[2];
    const out = (words[0] + b + words[3]) | 0;
    words[0] = b ^ (b >>> 9);
    words[1] = c + (c << 3);
    words[2] = ((c << 21) | (c >>> 11)) + out;
    words[3] += 1;
    return out >>> 0;
  }

  /** Between 0 and 1, both left out. */
  uniform() {
    return ((this.bits() >>> 6) * 67108864 + (this.bits() >>> 6) + 0.5) / 4503599627370496;
  }

  /** Standard normal, by Marsaglia's polar method, which makes two at a time. */
  normal() {
    const kept = this.spare;
    this.spare = NaN;
    if (kept === kept) return kept;
    for (;;) {
      const x = 2 * this.uniform() - 1;
      const y = 2 * this.uniform() - 1;
      const square = x * x + y * y;
      if (square >= 1 || square === 0) continue;
      const factor = Math.sqrt((-2 * Math.log(square)) / square);
      this.spare = y * factor;
      return x * factor;
    }
  }

  /** χ² with k degrees of freedom: squared normals up to 2, then twice a gamma variate (Marsaglia, Tsang 2000). */
  chiSquare(k) {
    if (k <= 2) return k <= 0 ? 0 : this.normal() ** 2 + (k === 2 ? this.normal() ** 2 : 0);
    const shape = k / 2 - 1 / 3;
    const width = 1 / Math.sqrt(9 * shape);
    for (;;) {
      const z = this.normal();
      const root = 1 + width * z;
      const cube = root * root * root;
      if (root > 0 && Math.log(this.uniform()) < (z * z) / 2 + shape * (1 - cube + Math.log(cube))) {
        return 2 * shape * cube;
      }
    }
  }
}

/** Dot products of independent pairs. 4 q·k = |q + k|² − |q − k|², and q + k and q − k are independent Gaussian vectors
 * (their components have equal variances), so each square is one squared normal and a χ²: the distribution is exact. */
export function dots({ d, mean, spread, correlation, seed }, count) {
  const [wide, narrow] = [2 * spread ** 2 * (1 + correlation), 2 * spread ** 2 * (1 - correlation)];
  const [offset, width, pair] = [2 * mean * Math.sqrt(d), Math.sqrt(wide), new RandomStream(seed)];
  const products = new Float64Array(count);
  for (let item = 0; item < count; item++) {
    pair.start(seed, 0, item);
    const along = offset + width * pair.normal();
    products[item] = (along ** 2 + wide * pair.chiSquare(d - 1) - narrow * pair.chiSquare(d)) / 4;
  }
  return products;
}

/** Row number `index`: one q and n keys. With c = √(1 − correlation²), a key is (1 − correlation)·mean·1 + correlation·q
 * + c·spread·b, b standard normal. So given Σq and |q|², a score is one normal, and what |k|² has beyond it, across q, is
 * another and a χ² with d − 2 degrees of freedom: the joint distribution is exact. */
function drawnRow(state, index) {
  const { d, n, mean, spread, correlation, seed, growth } = state;
  const query = new RandomStream(seed, index + 1, 0);
  const alongs = new RandomStream(seed, index + 1, 1);
  const key = new RandomStream(seed, index + 1, 2);
  const sum = d * mean + spread * Math.sqrt(d) * query.normal();
  const square = sum ** 2 / d + spread ** 2 * query.chiSquare(d - 1);
  const length = Math.sqrt(square);
  const fresh = spread * Math.sqrt(1 - correlation ** 2);
  const drift = (1 - correlation) * mean;
  const across = Math.abs(drift) * Math.sqrt(Math.max(0, d - sum ** 2 / square));
  const norm = normalises(state.rule);
  const scale = scaleOf(state.rule, { d, n });
  // Training multiplies q and k by √growth each; a normalisation takes that out again.
  const divisor = (squared) => (norm === "rms" ? Math.sqrt((growth * squared) / d + NORM_EPS) : Math.sqrt(growth * squared));
  const [scores, logits] = [new Float64Array(n), new Float64Array(n)];
  for (let item = 0; item < n; item++) {
    scores[item] = drift * sum + correlation * square + fresh * length * alongs.normal();
    logits[item] = scale * growth * scores[item];
    if (norm === "none") continue;
    key.start(seed, index + 1, item + 2);
    const beyond = d > 1 ? (across + fresh * key.normal()) ** 2 + fresh ** 2 * key.chiSquare(d - 2) : 0;
    logits[item] /= divisor(square) * divisor(scores[item] ** 2 / square + beyond);
  }
  return { scores, logits, weights: softmax(logits) };
}

/** Several rows, each with its own q and keys: raw scores q·k, logits under the state's rule, and weights. */
export function rows(state, count) {
  return Array.from({ length: count }, (_, index) => drawnRow(state, index));
}

/** One row. */
export const row = (state) => drawnRow(state, 0);
