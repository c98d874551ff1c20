// Which gradients die and which explode: how unevenly rows pass a gradient on, with the rule and without, over d.
import { normalises, scaleOf } from "../maths/rules.js";
import { logAxis } from "./axes.js";
import { drawnRows } from "./draws.js";
import { Labels, SMALL, textWidth } from "./labels.js";
import { shown } from "./numbers.js";
import { Panel, boxes } from "./panel.js";
import { asTurned, powersOfTwo, quantile, shortRule, underRule } from "./settings.js";

const DIMENSIONS = powersOfTwo(4, 1024);
const DRAWN = 60 * 512; // keys of all rows: as many rows as can be computed at once
const MOST_ROWS = 480;
const FLOOR = 1e-12;
const PARTS = { low: "p10", middle: "p50", high: "p90" };

// Gate and |∂L/∂q| of one row. L is linear in the output: ∂L/∂y = t, with t standard normal. With u = Jt = y ⊙ (t − ⟨y, t⟩), ∂L/∂q is
// scale·Σ uⱼkⱼ; the part of the keys along q is spread·z, the part across it is Gaussian and independent of u, so its sum has length
// spread·|u|·√χ². As Σu = 0, z and t are taken relative to those of the largest logit, which is left out of the sums: one pass, and a
// frozen row keeps its digits.
export function rowGradient({ z, t, top }, { query, across }, scale, spread) {
  const factor = scale * spread ** 2 * Math.sqrt(query);
  let rest = 0;
  let rest2 = 0;
  let wt = 0;
  let wz = 0;
  let wtz = 0;
  let w2t = 0;
  let w2t2 = 0;
  for (let key = 0; key < z.length; key++) {
    const below = z[key] - z[top];
    if (key === top || factor * below < -740) continue;
    const weight = Math.exp(factor * below);
    const wanted = weight * (t[key] - t[top]);
    rest += weight;
    rest2 += weight * weight;
    wt += wanted;
    wz += weight * below;
    wtz += wanted * below;
    w2t += weight * wanted;
    w2t2 += wanted * wanted;
  }
  const all = 1 + rest;
  const mean = wt / all;
  const along = (wtz - mean * wz) / all;
  const square = Math.max(w2t2 - 2 * mean * w2t + mean ** 2 * (1 + rest2), 0) / all ** 2;
  return { gate: (2 * rest + rest ** 2 - rest2) / all ** 2, gradient: scale * spread * Math.sqrt(along ** 2 + square * across) };
}

function quantilesOf(values) {
  const sorted = Float64Array.from(values).sort();
  return { low: quantile(sorted, 0.1), middle: quantile(sorted, 0.5), high: quantile(sorted, 0.9) };
}

// At each d the quantiles over the rows. A rule that normalises acts on more than the scale; 1/√d stands in for it.
function computeGradients(state) {
  const rule = normalises(state.rule) === "none" && state.rule !== "none" ? state.rule : "1/sqrt(d)";
  const n = state.keys;
  const rows = Math.min(Math.floor(DRAWN / n), MOST_ROWS);
  const drawn = drawnRows(state.seed, n, rows, DIMENSIONS);
  const curve = (text) => DIMENSIONS.map((d, at) => {
    const scale = scaleOf(text, { d, n });
    const found = drawn.map((row) => rowGradient(row, row.lengths[at], scale, state.spread));
    return { d, gate: quantilesOf(found.map(({ gate }) => gate)), gradient: quantilesOf(found.map(({ gradient }) => gradient)) };
  });
  return { rule, ruled: curve(rule), bare: curve("none"), rows };
}

const decade = (value, up) => 10 ** (up ? Math.ceil(Math.log10(value) - 1e-9) : Math.floor(Math.log10(value) + 1e-9));

function axisFor(data, name) {
  const all = [...data.ruled, ...data.bare].flatMap((point) => [point[name].low, point[name].high]).filter((value) => value > FLOOR);
  return logAxis(Math.min(decade(Math.min(...all), false), 0.01), name === "gate" ? 1 : decade(Math.max(...all), true));
}

// Both bands, and the medians in them. What lies below the axis is drawn at its foot.
function drawGradientPanel(drawing, labels, box, data, name, state, say, right) {
  const across = logAxis(DIMENSIONS[0], DIMENSIONS.at(-1), { base: 2 });
  const words = { title: say(`gradients_${name}`), below: say("picture_d_axis") };
  const panel = new Panel(drawing, labels, box, across, axisFor(data, name), { ...words, right });
  const clear = (value) => Math.max(value, panel.upward.low);
  panel.upright(DIMENSIONS[nearestAt(state.d)]);
  for (const [kind, colour] of [["bare", "c1"], ["ruled", "c0"]]) {
    const points = data[kind].map((point) => point[name]);
    panel.band(DIMENSIONS, points.map(({ low }) => clear(low)), points.map(({ high }) => clear(high)), colour);
    panel.line(points.map(({ middle }, at) => [DIMENSIONS[at], clear(middle)]), colour, { bold: true });
    for (const end of ["low", "high"]) panel.line(points.map((point, at) => [DIMENSIONS[at], clear(point[end])]), colour);
  }
  const last = (kind) => data[kind].at(-1)[name];
  panel.ends([
    { y: clear(last("bare").high), text: "p90", colour: "c1 solid" }, { y: clear(last("bare").low), text: "p10", colour: "c1 solid" },
    { y: clear(last("bare").middle), text: say("picture_no_scale"), colour: "c1 solid", bold: true },
    { y: clear(last("ruled").middle), text: shortRule(data.rule, say), colour: "c0 solid", bold: true },
  ]);
}

function nearestAt(d) {
  return DIMENSIONS.reduce((best, other, at) => (Math.abs(Math.log(other / d)) < Math.abs(Math.log(DIMENSIONS[best] / d)) ? at : best), 0);
}

const ratio = ({ low, high }) => (low > 0 ? shown(high / low, 2) : "∞");

const GRADIENTS_CONTROLS = ["keys", "spread", "rule", "seed", "d"];

export const gradientsPicture = {
  controls: GRADIENTS_CONTROLS,
  ratio: [16, 9],
  tall: [4, 6.4],
  compute: (state) => computeGradients(asTurned(state, GRADIENTS_CONTROLS)),
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    const right = Math.max(textWidth(say("picture_no_scale"), SMALL), textWidth(shortRule(data.rule, say), SMALL)) * 1.06 + 10;
    const places = boxes(drawing, 2);
    ["gate", "gradient"].forEach((name, number) => drawGradientPanel(drawing, labels, places[number], data, name, state, say, right));
  },
  describe(data, state, say) {
    const at = nearestAt(state.d);
    const [ruled, bare] = [data.ruled[at], data.bare[at]];
    return say("gradients_describe", {
      rows: data.rows, n: shown(state.keys), d: DIMENSIONS[at], under: underRule(data.rule, say),
      ruled: ratio(ruled.gradient), bare: ratio(bare.gradient), ruled_low: shown(ruled.gate.low, 2), bare_low: shown(bare.gate.low, 2),
      median: shown(bare.gradient.middle / ruled.gradient.middle, 2),
    });
  },
  table(data, state, say) {
    const named = { bare: say("picture_without"), ruled: underRule(data.rule, say) };
    const columns = ["bare", "ruled"].flatMap((kind) => ["gate", "gradient"].flatMap(
      (what) => Object.entries(PARTS).map(([part, name]) => ({ kind, what, part, name }))));
    const heads = ["d", ...columns.map(({ kind, what, name }) => `${say(`gradients_${what}_short`)} ${name}, ${named[kind]}`)];
    const line = (d, at) => [d, ...columns.map(({ kind, what, part }) => data[kind][at][what][part])];
    return { heads, rows: DIMENSIONS.map(line) };
  },
};
