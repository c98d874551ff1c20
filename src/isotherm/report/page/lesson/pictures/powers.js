// Divide by d to a power p: only ½ keeps the spread of the logits, and with it the entropy, the same at every d.
import { dots } from "../maths/sample.js";
import { rowStats } from "../maths/stats.js";
import { linearAxis, logAxis } from "./axes.js";
import { drawnRows } from "./draws.js";
import { exactRow, expectedRow } from "./expected.js";
import { Labels, SMALL, textWidth } from "./labels.js";
import { percentShown, shown } from "./numbers.js";
import { Panel, boxes } from "./panel.js";
import { asTurned, momentsOf, powersOfTwo } from "./settings.js";

const SIZES = powersOfTwo(4, 1024);
const SAMPLED = 300;
const SAMPLED_KEYS = 6144;
const FIXED = [[0, "c1"], [0.5, "c0"], [1, "c2"]];

function powerCurve(p, state, samples, drawn) {
  const points = SIZES.map((d, at) => {
    const spread = state.spread ** 2 * d ** (0.5 - p);
    const entropies = drawn.map(({ z, lengths }) => {
      const factor = (state.spread ** 2 * Math.sqrt(lengths[at].query)) / d ** p;
      return rowStats(z.map((value) => factor * value)).entropy_fraction;
    });
    return { d, spread, measured: samples[at] / d ** p, ...expectedRow(state.n, spread), sampled: momentsOf(entropies).mean };
  });
  return { p, points };
}

function computePowers(state) {
  const samples = SIZES.map((d) => momentsOf(dots({ ...state, d }, SAMPLED)).std);
  const drawn = drawnRows(state.seed, state.n, Math.min(Math.round(SAMPLED_KEYS / state.n), 128), SIZES);
  const powers = FIXED.map(([p]) => p);
  const known = powers.includes(state.power);
  return { curves: [...powers, ...(known ? [] : [state.power])].map((p) => powerCurve(p, state, samples, drawn)) };
}

const powerName = (p) => (p === 0.5 ? "½" : String(Number(p.toFixed(3))));
const powerColour = (p) => (FIXED.find(([power]) => power === p) || [p, "c-ink"])[1];

function drawPowerPanel(drawing, labels, box, data, { upward, title, theory, measured }, state, say) {
  const right = textWidth("p = 0.55", SMALL) * 1.06 + 8;
  const panel = new Panel(drawing, labels, box, logAxis(SIZES[0], SIZES.at(-1), { base: 2 }), upward, { title, below: say("picture_d_axis"), right });
  for (const { p, points } of data.curves) {
    const bold = p === state.power;
    panel.line(points.map((point) => [point.d, point[theory]]), powerColour(p), { theory: true, bold });
    panel.dots(points.map((point) => [point.d, point[measured]]), powerColour(p), bold ? 4 : 2.8);
  }
  panel.ends(data.curves.map(({ p, points }) => ({
    y: points.at(-1)[theory], text: `p = ${powerName(p)}`, colour: `${powerColour(p)} solid`, bold: p === state.power,
  })));
}

const POWERS_CONTROLS = ["power", "n", "spread", "seed"];

export const powersPicture = {
  controls: POWERS_CONTROLS,
  ratio: [16, 9],
  tall: [4, 6.4],
  compute: (state) => computePowers(asTurned(state, POWERS_CONTROLS)),
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    const [first, second] = boxes(drawing, 2);
    const all = data.curves.flatMap(({ points }) => points.map(({ spread }) => spread));
    const spreads = logAxis(Math.min(...all) / 1.4, Math.max(...all) * 1.4);
    const spread = { upward: spreads, title: say("powers_spread"), theory: "spread", measured: "measured" };
    drawPowerPanel(drawing, labels, first, data, spread, state, say);
    const shares = linearAxis(0, 1, { label: percentShown });
    const entropy = { upward: shares, title: say("powers_entropy", { n: shown(state.n) }), theory: "entropy", measured: "sampled" };
    drawPowerPanel(drawing, labels, second, data, entropy, state, say);
  },
  describe(data, state, say) {
    const { points } = data.curves.find(({ p }) => p === state.power);
    const [first, last] = [points[0], points.at(-1)];
    const values = {
      p: powerName(state.power), n: shown(state.n), from: shown(first.spread), to: shown(last.spread),
      entropy_from: percentShown(exactRow(state.n, first.spread).entropy), entropy_to: percentShown(exactRow(state.n, last.spread).entropy),
    };
    const lesson = say(state.power < 0.5 ? "powers_freezes" : state.power > 0.5 ? "powers_flattens" : "powers_keeps");
    return say("picture_sentences", { first: say("powers_describe", values), second: lesson });
  },
  table(data, state, say, expected = expectedRow) {
    const heads = ["p", "d", say("powers_head_spread"), say("powers_head_measured"), say("powers_head_entropy"), say("powers_head_sampled")];
    const line = (p, { d, spread, measured, sampled }) => [p, d, spread, measured, expected(state.n, spread).entropy, sampled];
    return { heads, rows: data.curves.flatMap(({ p, points }) => points.map((point) => line(p, point))) };
  },
};
