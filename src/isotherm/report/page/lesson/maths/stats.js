// Statistics of one softmax row, by the formulas of isotherm/stats.py. The largest logit is left out of the sums, so
// that nothing is subtracted from 1: a gate of 1e-30 has as many digits as a gate of 0.5.

function rowExtent(logits, visible) {
  let [n, top, sum, finite] = [0, -1, 0, true];
  for (let j = 0; j < logits.length; j++) {
    if (visible && !visible[j]) continue;
    n += 1;
    sum += logits[j];
    if (!Number.isFinite(logits[j])) finite = false;
    if (top < 0 || logits[j] > logits[top]) top = j;
  }
  return { n, top, mean: sum / n, valid: finite && n > 0 };
}

/** Statistics of the visible keys (all, unless told). NaN where no key is visible, or a visible logit is not finite. */
export function rowStats(logits, visible = null) {
  const { n, top, mean, valid } = rowExtent(logits, visible);
  const peak = valid ? logits[top] : NaN;
  let [rest, rest2, cross, deviation] = [valid ? 0 : NaN, 0, 0, 0];
  for (let j = 0; j < logits.length; j++) {
    if (visible && !visible[j]) continue;
    deviation += (logits[j] - mean) ** 2;
    if (j === top) continue;
    const gap = logits[j] - peak;
    const weight = Math.exp(gap);
    rest += weight;
    rest2 += weight * weight;
    cross += weight * gap;
  }
  const all = 1 + rest;
  const entropy = Math.log1p(rest) - cross / all;
  const collision = (1 + rest2) / (all * all);
  return {
    n,
    max_logit: peak,
    lse: peak + Math.log1p(rest),
    entropy,
    entropy_fraction: entropy / Math.log(n), // 0/0 for one key
    collision,
    n_eff: 1 / collision,
    top1: 1 / all,
    jacobian_trace: (2 * rest + rest * rest - rest2) / (all * all),
    jacobian_max: rest / (all * all),
    logit_mean: valid ? mean : NaN,
    logit_std: valid ? Math.sqrt(deviation / n) : NaN,
  };
}
