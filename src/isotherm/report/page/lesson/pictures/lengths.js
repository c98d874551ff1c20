// When 1/√d is not enough: longer contexts, and training that multiplies q·k. Theory throughout; with 1/√d it is the same at every d.
import { scaleOf } from "../maths/rules.js";
import { freezingThreshold, gaussianRow } from "../maths/theory.js";
import { linearAxis, logAxis } from "./axes.js";
import { exactRow, expectedRow } from "./expected.js";
import { Labels, SMALL, textWidth } from "./labels.js";
import { shown } from "./numbers.js";
import { Panel, boxes } from "./panel.js";
import { powersOfTwo } from "./settings.js";

const LENGTHS = powersOfTwo(16, 65536);
const TRAINED_ON = 512;
const CAP = 100;

// The spread of a row's logits over n keys, whose q·k training has multiplied by `growth`. A clip shrinks the weights until the largest
// logit, as theory expects it, is at most the cap.
const WAYS = [
  { name: "constant", colour: "c0", spread: (n, growth) => growth },
  { name: "clip", colour: "c3", spread: (n, growth) => Math.min(growth, CAP / gaussianRow(n, 1).max_logit) },
  { name: "log", colour: "c2", spread: (n, growth) => growth * scaleOf(`log-n:${TRAINED_ON}`, { d: 1, n }) },
  { name: "norm", colour: "c1", spread: () => 1 },
];

function wayAt(way, n, growth, expected = expectedRow) {
  const spread = way.spread(n, growth);
  const { gate, entropy } = expected(n, spread);
  return { n, spread, gate, entropy: entropy * Math.log(n), frozen: spread > freezingThreshold(n) };
}

// One panel above two where that fits, and all three stacked on a phone.
function lengthBoxes(drawing) {
  const { width, height } = drawing;
  if (width < 0.9 * height) return boxes(drawing, 3, { gap: 22 });
  const middle = height * 0.48;
  const [left, right] = boxes({ width, height: Math.min(height - middle - 22, width / 3) }, 2);
  return [{ left: 0, right: width, top: 0, bottom: middle }, ...[left, right].map((box) => ({ ...box, top: middle + 22, bottom: height }))];
}

function drawLengthPanel(drawing, labels, box, data, { what, upward, right }, state, say) {
  const across = logAxis(LENGTHS[0], LENGTHS.at(-1), { base: 2 });
  const panel = new Panel(drawing, labels, box, across, upward, { title: say(`lengths_${what}`), below: say("lengths_n"), right });
  panel.upright(state.context);
  for (const { points } of data.ways) panel.avoid(points.map((point) => [point.n, point[what]]));
  if (what === "spread") {
    const line = LENGTHS.map((n) => [n, freezingThreshold(n)]);
    panel.line(line, "c-ink", { dash: "2 4" });
    panel.avoid(line);
    const beside = (n, off) => [panel.x(n) - 2, panel.y(freezingThreshold(n)) + off, "end"];
    const places = [LENGTHS.at(-1), LENGTHS.at(-3)].flatMap((n) => [beside(n, -10), beside(n, 22), beside(n, -40)]);
    labels.place(say("lengths_frozen"), places, { kind: "loud", size: SMALL });
  }
  for (const { name, colour, points } of data.ways) {
    panel.line(points.map((point) => [point.n, point[what]]), colour, { theory: true, more: `pic-way-${name}` });
  }
  panel.ends(data.ways.map(({ name, colour, points }) => ({ y: points.at(-1)[what], text: say(`lengths_${name}`), colour: `${colour} solid` })));
}

export const lengthsPicture = {
  controls: ["trained", "context"],
  ratio: [10, 9],
  tall: [4, 8.6],
  compute(state) {
    const ways = WAYS.map((way) => ({
      name: way.name, colour: way.colour, here: wayAt(way, state.context, state.trained, exactRow), points: LENGTHS.map((n) => wayAt(way, n, state.trained)),
    }));
    return { ways, threshold: freezingThreshold(state.context) };
  },
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    const right = Math.max(...WAYS.map(({ name }) => textWidth(say(`lengths_${name}`), SMALL))) + 10;
    const panels = [
      { what: "spread", upward: logAxis(0.5, 128, { base: 2 }), right },
      { what: "entropy", upward: linearAxis(0, 12, { most: 6 }), right },
      { what: "gate", upward: linearAxis(0, 1), right },
    ];
    lengthBoxes(drawing).forEach((box, number) => drawLengthPanel(drawing, labels, box, data, panels[number], state, say));
  },
  describe(data, state, say) {
    const [constant, clip, log] = data.ways;
    const { spread, entropy, gate, frozen } = constant.here;
    const [near, far] = [LENGTHS.indexOf(TRAINED_ON), LENGTHS.length - 1].map((at) => (way) => shown(way.points[at].entropy));
    const said = say("lengths_describe", {
      n: shown(state.context), growth: shown(state.trained), spread: shown(spread), threshold: shown(data.threshold), gate: shown(gate),
      entropy: shown(entropy), near: near(constant), far: far(constant), log_near: near(log), log_far: far(log),
      side: say(frozen ? "lengths_is_frozen" : "lengths_is_open"),
    });
    const capped = clip.here.spread < constant.here.spread * (1 - 1e-9);
    return capped ? say("picture_sentences", { first: said, second: say("lengths_capped", { cap: CAP, spread: shown(clip.here.spread) }) }) : said;
  },
  table(data, state, say, expected = expectedRow) {
    const heads = [say("lengths_way"), "n", say("lengths_spread"), say("lengths_entropy"), say("lengths_gate"), "√(2 ln n)"];
    const line = (name, { n, spread }) => {
      const { entropy, gate } = expected(n, spread);
      return [say(`lengths_${name}`), n, spread, entropy * Math.log(n), gate, freezingThreshold(n)];
    };
    return { heads, rows: data.ways.flatMap(({ name, points }) => points.map((point) => line(name, point))) };
  },
};
