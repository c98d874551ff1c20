// What softmax makes of a row: its weights with the rule and without it, and the triple (a, a, 2a).
import { rowStats } from "../maths/stats.js";
import { row } from "../maths/sample.js";
import { softmax } from "../maths/softmax.js";
import { linearAxis, logAxis } from "./axes.js";
import { Labels, SMALL } from "./labels.js";
import { percentShown, shown } from "./numbers.js";
import { Panel, boxes } from "./panel.js";
import { asTurned, comparedRule, shortRule, underRule } from "./settings.js";

const DOCUMENT_A = [1, 10, 100];
const LEAST_A = 0.1;
const COLOURS = { bare: "c1", ruled: "c0" };

// One row under the rule and without it, in the order of the rule's weights.
export function comparedRow(given) {
  const state = { ...given, rule: comparedRule(given.rule) };
  const { scores, logits, weights } = row(state);
  const raw = scores.map((score) => score * state.growth);
  const bare = softmax(raw);
  const order = Array.from(weights.keys()).sort((i, j) => weights[j] - weights[i]);
  return { rule: state.rule, scores, order, ruled: { weights, stats: rowStats(logits) }, bare: { weights: bare, stats: rowStats(raw) } };
}

const tripleWeight = (a) => 1 / (1 + 2 * Math.exp(-a));

function bar(panel, left, width, value, colour) {
  const y = panel.inside(value);
  if (panel.bottom - y > 3) panel.labels.keep(left, y, left + width, panel.bottom);
  panel.add("rect", { x: left, y, width, height: Math.max(panel.bottom - y, 0.6), class: `${colour} solid pic-weight` });
}

// Two bars a key, the largest weights first. The largest bar of each kind has its number.
function drawBars(drawing, labels, box, data, state, say) {
  const count = Math.max(2, Math.min(data.order.length, Math.floor((box.right - box.left - 40) / 11)));
  const across = { ...linearAxis(0, count), ticks: [] };
  const upward = linearAxis(0, 1, { label: percentShown, most: 5 });
  const title = say("weights_row", { d: shown(state.d), n: shown(state.n) });
  const left = state.n - count;
  const below = left > 0 ? say("weights_first", { count: shown(count), n: shown(state.n) }) : say("weights_keys", { n: shown(state.n) });
  const panel = new Panel(drawing, labels, box, across, upward, { title, below });
  const slot = (panel.right - panel.left) / count;
  const kinds = ["bare", "ruled"];
  const width = (slot * 0.84) / kinds.length;
  data.order.slice(0, count).forEach((key, place) => kinds.forEach((kind, number) => {
    bar(panel, panel.left + (place + 0.08) * slot + number * width, width, data[kind].weights[key], COLOURS[kind]);
  }));
  for (const kind of kinds) largestLabel(panel, labels, data, kind, slot, say);
}

// The largest weight's number at the height of its bar, where no bar stands.
function largestLabel(panel, labels, data, kind, slot, say) {
  const text = `${kind === "bare" ? say("picture_no_scale") : shortRule(data.rule, say)} ${percentShown(data[kind].stats.top1)}`;
  const place = data.order.reduce((best, key, number) => (data[kind].weights[key] > data[kind].weights[data.order[best]] ? number : best), 0);
  const x = Math.min(panel.left + (place + 0.92) * slot, panel.right) + 5;
  const y = Math.min(panel.inside(data[kind].stats.top1) + 11, panel.bottom - 7);
  const places = [];
  for (let up = 0; up < 4; up++) {
    for (let across = 0; across < 30; across++) places.push([x + across * 8, y - up * 16, "start"]);
  }
  labels.place(text, places, { kind: `${COLOURS[kind]} solid pic-title` });
}

// y₃ of softmax(a, a, 2a), with the document's three values of a and the reader's.
function drawTriple(drawing, labels, box, data, state, say) {
  const across = logAxis(LEAST_A, 200, { ticks: [0.1, 1, 10, 100] });
  const upward = linearAxis(0, 1, { label: percentShown });
  const panel = new Panel(drawing, labels, box, across, upward, { title: say("weights_triple"), below: say("weights_a"), right: 12 });
  const points = Array.from({ length: 90 }, (_, step) => across.value(step / 89)).map((a) => [a, tripleWeight(a)]);
  panel.line(points, "c0", { bold: true });
  panel.dots(data.triple.document.map(({ a, y }) => [a, y]), "c-doc", 4.5);
  const at = Math.max(state.a, LEAST_A);
  panel.ring(at, data.triple.y, "c-ink");
  const text = say("weights_here", { a: shown(state.a), y: percentShown(data.triple.y) });
  const [x, y] = [panel.x(at), panel.y(data.triple.y)];
  panel.avoid(points);
  const beside = [24, 42, 60].map((down) => [x + 12, y + down, "start"]);
  labels.place(text, [...beside, [panel.right, panel.y(0.55), "end"], [panel.right, panel.y(0.12), "end"]], { kind: "loud pic-title" });
  for (const { a, y: weight, rest } of data.triple.document.filter((mark) => mark.a !== state.a)) {
    const [left, top] = [panel.x(a), panel.y(weight)];
    const said = weight === 1 ? `1 − ${shown(rest, 1)}` : percentShown(weight);
    const places = [[left + 10, top + 20, "middle"], [left + 9, top + 6, "start"], [left, top - 10, "middle"], [left + 10, top + 38, "middle"]];
    labels.place(said, places, { kind: "c-doc solid", size: SMALL });
  }
}

function computeWeights(state) {
  const document = DOCUMENT_A.map((a) => ({ a, y: tripleWeight(a), rest: 2 / (2 + Math.exp(a)) }));
  return { ...comparedRow(state), triple: { y: tripleWeight(state.a), rest: 1 / (2 + Math.exp(state.a)), document } };
}

export function describeRow(data, state, say) {
  const [ruled, bare] = [data.ruled.stats, data.bare.stats];
  return say("weights_describe", {
    d: shown(state.d), n: shown(state.n), under: underRule(data.rule, say), ruled: percentShown(ruled.top1), bare: percentShown(bare.top1),
    gate: shown(ruled.jacobian_trace), bare_gate: shown(bare.jacobian_trace),
    entropy: percentShown(ruled.entropy_fraction), bare_entropy: percentShown(bare.entropy_fraction),
  });
}

function tableWeights(data, state, say) {
  const heads = [say("picture_key"), say("dots_score"), say("weights_ruled", { under: underRule(data.rule, say) }), say("weights_bare")];
  return { heads, rows: data.order.map((key) => [key + 1, data.scores[key], data.ruled.weights[key], data.bare.weights[key]]) };
}

const WEIGHTS_CONTROLS = ["d", "n", "spread", "rule", "seed", "a"];

export const weightsPicture = {
  controls: WEIGHTS_CONTROLS,
  ratio: [16, 9],
  tall: [4, 6],
  compute: (state) => computeWeights(asTurned(state, WEIGHTS_CONTROLS)),
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    const [first, second] = boxes(drawing, 2, { shares: [3, 2], gap: 32 });
    drawBars(drawing, labels, first, data, state, say);
    drawTriple(drawing, labels, second, data, state, say);
  },
  describe(data, state, say) {
    const triple = say("weights_describe_triple", { a: shown(state.a), y: percentShown(data.triple.y), rest: percentShown(data.triple.rest) });
    return say("picture_sentences", { first: describeRow(data, state, say), second: triple });
  },
  table: tableWeights,
};

const PLAY_WEIGHTS_CONTROLS = ["d", "n", "mean", "correlation", "spread", "rule", "growth", "seed"];

export const playWeights = {
  controls: PLAY_WEIGHTS_CONTROLS,
  ratio: [16, 9],
  compute: comparedRow,
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    drawBars(drawing, labels, boxes(drawing, 1)[0], data, state, say);
  },
  describe: describeRow,
  table: tableWeights,
};
