// Many rows at many d, drawn once for each seed and n: what a control does to them is computed from these numbers.
import { RandomStream } from "../maths/sample.js";

const drawn = new Map();

// For each row: z (each key's component along q; `top` is the largest), t (what the loss wants of each weight), and for each d the
// length of q and of a key's part across q, as χ² variates. Given these, scores and gradients have their exact joint distribution for
// Gaussian vectors.
export function drawnRows(seed, n, count, dimensions) {
  const name = `${seed} ${n} ${count} ${dimensions.join()}`;
  if (!drawn.has(name)) {
    if (drawn.size > 8) drawn.clear();
    drawn.set(name, Array.from({ length: count }, (_, index) => {
      const stream = new RandomStream(seed, index + 1, 70000);
      const z = Float64Array.from({ length: n }, () => stream.normal());
      const t = Float64Array.from({ length: n }, () => stream.normal());
      const lengths = dimensions.map((d) => ({ query: stream.chiSquare(d), across: stream.chiSquare(d - 1) }));
      return { z, t, top: z.indexOf(Math.max(...z)), lengths };
    }));
  }
  return drawn.get(name);
}
