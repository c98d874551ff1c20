// How wide dot products are: a histogram of q·k, theory beside it, and the same pairs under the rule.
import { dots, row, rows } from "../maths/sample.js";
import { dotProductMoments } from "../maths/theory.js";
import { normalises, scaleOf } from "../maths/rules.js";
import { linearAxis } from "./axes.js";
import { Labels, SMALL, textWidth } from "./labels.js";
import { shown } from "./numbers.js";
import { Panel } from "./panel.js";
import { asTurned, momentsOf, underRule } from "./settings.js";

const PAIRS = 2400;
const BINS = 48;
const GHOST = 16;

function momentsOfDots(state, d) {
  const variance = state.spread ** 2;
  const { mean, correlation } = state;
  const moments = dotProductMoments(d, { mean_q: mean, mean_k: mean, var_q: variance, var_k: variance, correlation });
  return { mean: moments.mean, std: Math.sqrt(moments.variance) };
}

// The same pairs as logits. Under a norm these are not multiples of q·k, and are drawn as rows of keys.
function ruledLogits(state, raw) {
  if (normalises(state.rule) === "none") {
    const factor = state.growth * scaleOf(state.rule, state);
    return raw.map((value) => value * factor);
  }
  const drawn = rows({ ...state, n: 60 }, PAIRS / 60);
  return Float64Array.from(drawn.flatMap(({ logits }) => Array.from(logits)));
}

function ruledTheory(state, raw) {
  const scale = scaleOf(state.rule, state);
  const norm = normalises(state.rule);
  if (norm === "none") return { mean: state.growth * scale * raw.mean, std: state.growth * scale * raw.std };
  if (state.mean || state.correlation) return null;
  return { mean: 0, std: scale * (norm === "rms" ? Math.sqrt(state.d) : 1 / Math.sqrt(state.d)) };
}

// The range is about a power of two wide, so that it stands still while a slider moves a little and the histogram widens in it.
function rangeOf(parts) {
  const low = Math.min(0, ...parts.map(({ mean, std }) => mean - 3.4 * std));
  const high = Math.max(0, ...parts.map(({ mean, std }) => mean + 3.4 * std));
  const unit = 2 ** Math.ceil(Math.log2(Math.max(high - low, 1e-6))) / 8;
  const [from, to] = [Math.floor(low / unit) * unit, Math.ceil(high / unit) * unit];
  return from === -to || to - from > 6 * unit ? [from, to] : [from - unit, to + unit];
}

// Shares of the values in bins over four standard deviations to each side, and what theory says of each bin's middle.
function binned(values, theory) {
  const measured = momentsOf(values);
  const about = theory || measured;
  const width = (8 * about.std || 1e-6) / BINS;
  const low = about.mean - (width * BINS) / 2;
  const shares = new Array(BINS).fill(0);
  for (const value of values) {
    const bin = Math.floor((value - low) / width);
    if (bin >= 0 && bin < BINS) shares[bin] += 1 / values.length;
  }
  const bins = shares.map((share, bin) => ({ left: low + bin * width, right: low + (bin + 1) * width, share }));
  return { bins, measured, theory };
}

function computeDots(state) {
  const raw = dots(state, PAIRS);
  const ruled = ruledLogits(state, raw);
  const theory = momentsOfDots(state, state.d);
  const ghost = state.d === GHOST ? null : momentsOfDots(state, GHOST);
  const under = ruledTheory(state, theory);
  const range = rangeOf([theory, ghost, under].filter(Boolean));
  return {
    range, ghost, pairs: PAIRS,
    raw: binned(raw, theory), ruled: binned(ruled, under),
  };
}

const bell = ({ mean, std }, x, width) => (width * Math.exp(-((x - mean) ** 2) / (2 * std ** 2))) / (std * Math.sqrt(2 * Math.PI));

function bellPoints(part, [low, high]) {
  const points = [];
  for (let step = -40; step <= 40; step++) {
    const x = part.mean + (part.std * step) / 10;
    if (x >= low && x <= high) points.push([x, bell(part, x, 1) / bell(part, part.mean, 1)]);
  }
  return points;
}

// One strip: bars against the tallest, its curve of theory, and the curve of another d for comparison.
function strip(panel, part, colour, range, ghost) {
  const width = part.bins[0].right - part.bins[0].left;
  const top = part.theory ? bell(part.theory, part.theory.mean, width) : 0;
  const peak = Math.max(top, ...part.bins.map(({ share }) => share));
  for (const { left, right, share } of part.bins) {
    if (!share || left < range[0] || right > range[1]) continue;
    const [from, to, y] = [panel.x(left), panel.x(right), panel.y(share / peak)];
    if (panel.bottom - y > 4) panel.labels.keep(from, y, to, panel.bottom);
    const wide = to - from > 3 ? to - from - 0.6 : Math.max(to - from, 0.8);
    panel.add("rect", { x: from, y, width: wide, height: panel.bottom - y, class: `${colour} solid pic-bar` });
  }
  if (ghost) panel.line(bellPoints(ghost, range), "pic-ghost");
  const wide = part.theory ? panel.x(part.theory.std) - panel.x(0) : 0;
  if (wide > 4) panel.line(bellPoints(part.theory, range).map(([x, y]) => [x, (y * top) / peak]), "c-ink", { theory: true });
}

function widthArrow(panel, labels, { mean, std }, text) {
  const y = panel.y(0.607);
  const [left, right] = [panel.x(mean - std), panel.x(mean + std)];
  if (right - left > 16) {
    const [from, to, level] = [left, right, y].map((value) => value.toFixed(1));
    panel.add("path", { d: `M${from} ${level}H${to}m-5 -4l5 4l-5 4M${from} ${level}m5 -4l-5 4l5 4`, class: "c-ink stroke pic-arrow" });
  }
  const room = textWidth(text) + 8;
  labels.place(text, [
    [right + 8, y - 8, "start"], [left - 8, y - 8, "end"],
    [Math.min(right + 8, panel.right - room), panel.top + 14, "start"], [panel.left + 2, panel.top + 14, "start"],
  ], { kind: "loud" });
}

function drawDots(drawing, data, state, say, keys) {
  const labels = new Labels(drawing);
  const across = linearAxis(...data.range, { most: 8 });
  const upward = { ...linearAxis(0, 1.04), ticks: [] };
  const middle = Math.round(drawing.height * 0.56);
  const whole = { left: 0, right: drawing.width };
  const silent = { ...across, ticks: [] };
  const [titles, under] = [{ d: shown(state.d), pairs: shown(data.pairs, 4) }, underRule(state.rule, say)];
  const upper = { title: say("dots_raw", titles), marks: false };
  const lower = { title: say(keys.ruled, { under }), below: say("dots_value"), marks: false };
  const top = new Panel(drawing, labels, { ...whole, top: 0, bottom: middle + 12 }, silent, upward, upper);
  const bottom = new Panel(drawing, labels, { ...whole, top: middle, bottom: drawing.height }, across, upward, lower);
  for (const [panel, part, colour, ghost] of [[top, data.raw, "c1", data.ghost], [bottom, data.ruled, "c0", null]]) {
    strip(panel, part, colour, data.range, ghost);
    if (part.rug) drawRug(panel, part.rug);
    widthArrow(panel, labels, part.measured, say("dots_std", { std: shown(part.measured.std) }));
  }
  if (data.ghost) {
    const x = top.x(data.ghost.mean - 1.3 * data.ghost.std);
    const y = top.y(0.94);
    labels.place(say("dots_ghost", { d: GHOST }), [[x - 8, y, "end"], [2, y, "start"], [drawing.width - 2, y, "end"]], { size: SMALL });
  }
  theoryLabel(top, labels, data.raw.theory, state, say);
}

function theoryLabel(panel, labels, theory, state, say) {
  const centred = !state.mean && !state.correlation;
  const end = panel.right - 2;
  const at = Math.min(panel.x(theory.mean + 1.75 * theory.std) + 8, end);
  const right = [[at, 0.25, "start"], [end, 0.25, "end"], [end, 0.75, "end"]];
  const places = [...right, [2, 0.75, "start"], [2, 0.55, "start"]].map(([x, y, anchor]) => [x, panel.y(y), anchor]);
  const values = { std: shown(theory.std), d: shown(state.d) };
  for (const key of centred ? ["dots_theory_root", "dots_theory"] : ["dots_theory"]) {
    if (labels.place(say(key, values), places, { size: SMALL })) return;
  }
}

// One path for all marks: hundreds of elements would take longer to lay out than all else.
function drawRug(panel, values) {
  const { low, high } = panel.across;
  const marks = Array.from(values).filter((value) => value >= low && value <= high);
  panel.add("path", { d: marks.map((value) => `M${panel.x(value).toFixed(1)} ${panel.bottom.toFixed(1)}v-9`).join(""), class: "c-ink stroke pic-rug" });
}

function describeDots(data, state, say) {
  const { raw, ruled } = data;
  const values = {
    d: shown(state.d), pairs: shown(data.pairs, 4), std: shown(raw.measured.std), theory: shown(raw.theory.std), ruled: shown(ruled.measured.std),
    mean: shown(raw.measured.mean, 2), theory_mean: shown(raw.theory.mean), under: underRule(state.rule, say),
  };
  const shifted = Math.abs(raw.theory.mean) > 1e-9;
  return say(shifted ? "dots_describe_shifted" : "dots_describe", values);
}

function tableDots(data, state, say) {
  const heads = [say("dots_score"), say("dots_share"), say("dots_share_theory"), say("dots_logit"), say("dots_share"), say("dots_share_theory")];
  const half = (part, { left, right, share }) => {
    const x = (left + right) / 2;
    return [x, share, part.theory && part.theory.std ? bell(part.theory, x, right - left) : null];
  };
  return { heads, rows: data.raw.bins.map((bin, number) => [...half(data.raw, bin), ...half(data.ruled, data.ruled.bins[number])]) };
}

const DOTS_CONTROLS = ["d", "spread", "mean", "correlation", "rule", "seed"];

export const dotsPicture = {
  controls: DOTS_CONTROLS,
  ratio: [16, 9],
  compute: (state) => computeDots(asTurned(state, DOTS_CONTROLS)),
  draw: (drawing, data, state, say) => drawDots(drawing, data, state, say, { ruled: "dots_ruled" }),
  describe: describeDots,
  table: tableDots,
};

// Free play: the same, with one row's n scores and logits as small marks.
export const playScores = {
  controls: [...DOTS_CONTROLS, "n", "growth"],
  ratio: [16, 9],
  compute(state) {
    const data = computeDots(state);
    const { scores, logits } = row(state);
    data.raw.rug = scores;
    data.ruled.rug = logits;
    return data;
  },
  draw: (drawing, data, state, say) => drawDots(drawing, data, state, say, { ruled: "play_scores_ruled" }),
  describe(data, state, say) {
    const ends = { low: shown(Math.min(...data.ruled.rug)), high: shown(Math.max(...data.ruled.rug)) };
    return say("picture_sentences", { first: describeDots(data, state, say), second: say("play_scores_row", { n: shown(state.n), ...ends }) });
  },
  table(data, state, say) {
    const heads = [say("picture_key"), say("dots_score"), say("dots_logit")];
    return { heads, rows: Array.from(data.raw.rug, (score, key) => [key + 1, score, data.ruled.rug[key]]) };
  },
};
