// The Jacobian of softmax for one row, entry by entry: diag(y) − yyᵀ.
import { jacobian } from "../maths/softmax.js";
import { cellText } from "./heat.js";
import { LINE, Labels, SMALL, wrapped } from "./labels.js";
import { mark } from "./marks.js";
import { shown } from "./numbers.js";
import { boxes } from "./panel.js";
import { asTurned, underRule } from "./settings.js";
import { comparedRow } from "./weights.js";

const MOST = 24;
const LARGEST = 0.25;

// The entries among the keys with the largest weights, and the trace of the whole matrix.
function sideOf({ weights, stats }) {
  const order = Array.from(weights.keys()).sort((i, j) => weights[j] - weights[i]).slice(0, MOST);
  const y = order.map((key) => weights[key]);
  const entries = jacobian(y);
  // 1 − y₁ loses its digits where y₁ is nearly 1: there the other weights of the row say it.
  entries.forEach((line, i) => { line[i] = i === 0 ? stats.jacobian_max : y[i] * (1 - y[i]); });
  return { order, y, entries, trace: stats.jacobian_trace };
}

function computeJacobian(state, both) {
  const { rule, ruled, bare } = comparedRow(state);
  const sides = [{ rule: "none", ...sideOf(bare) }, { rule, ...sideOf(ruled) }];
  return { sides: both ? sides : sides.filter((side) => side.rule === state.rule), n: state.n };
}

// Colours grow with the square root: an entry of 1/100 of the largest is still seen.
const strength = (value) => Math.sqrt(Math.min(Math.abs(value) / LARGEST, 1));

function explained({ entries, y, order }, i, j, say) {
  const values = { i: order[i] + 1, j: order[j] + 1, yi: shown(y[i]), yj: shown(y[j]), value: shown(entries[i][j]) };
  return say(i === j ? "jacobian_diagonal" : "jacobian_off", values);
}

function drawCell(drawing, side, i, j, { left, top, cell }) {
  const value = side.entries[i][j];
  const deep = strength(value);
  if (deep < 0.02) return;
  const gap = cell > 14 ? 1 : 0.4;
  const [x, y, size] = [left + j * cell, top + i * cell, cell - gap];
  mark(drawing, "rect", { x, y, width: size, height: size, class: `${value > 0 ? "c0" : "c1"} solid`, "fill-opacity": 0.92 * deep });
  if (Math.abs(value) < 0.005) return;
  const text = value.toFixed(2).replace("-", "−");
  const kind = deep > 0.62 ? "paper" : "loud";
  if (!cellText(drawing, text, x, y, size, size, kind)) cellText(drawing, text.replace("0.", "."), x, y, size, size, kind);
}

// The titles of the matrices; returns how far down they reach.
function drawTitles(labels, places, sides, say) {
  return Math.max(...sides.map((side, number) => {
    const { left, right, top } = places[number];
    const title = say("jacobian_title", { under: underRule(side.rule, say), trace: shown(side.trace) });
    return labels.lines(title, left, top + 13, right - left, { kind: "loud pic-title" }) - 5 - top;
  }));
}

// One matrix in its box, this far below its top, and lines below that explain the cell under the pointer.
function drawSide(drawing, labels, box, below, side, say) {
  const top = box.top + below;
  const cell = Math.min((box.right - box.left) / side.y.length, (box.bottom - top - 2 * LINE - 8) / side.y.length, 64);
  const frame = { left: box.left, top, cell };
  const size = cell * side.y.length;
  mark(drawing, "rect", { x: box.left, y: top, width: size, height: size, class: "pic-cell" });
  side.entries.forEach((line, i) => line.forEach((_, j) => drawCell(drawing, side, i, j, frame)));
  const tell = explainer(drawing, labels, box, top + size + 15);
  tell(explained(side, 0, 0, say));
  pointAt(drawing, frame, side, (i, j) => tell(explained(side, i, j, say)));
}

// Two lines of text that can be replaced.
function explainer(drawing, labels, box, top) {
  const lines = [0, 1].map((number) => mark(drawing, "text", { x: box.left, y: top + number * LINE, class: "pic-text pic-small word" }));
  labels.keep(box.left, top - 12, box.right, top + LINE + 4);
  return (text) => {
    const said = wrapped(text, box.right - box.left, SMALL);
    lines.forEach((line, number) => { line.textContent = said[number] || ""; });
  };
}

function pointAt(drawing, { left, top, cell }, side, tell) {
  const size = cell * side.y.length;
  const pointer = mark(drawing, "rect", { x: left, y: top, width: cell, height: cell, class: "c-ink stroke pic-pointed" });
  const cover = mark(drawing, "rect", { x: left, y: top, width: size, height: size, class: "pic-cover" });
  const follow = (event) => {
    const box = cover.getBoundingClientRect();
    const [j, i] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]
      .map((part) => Math.min(Math.max(Math.floor(part * side.y.length), 0), side.y.length - 1));
    pointer.setAttribute("x", (left + j * cell).toFixed(1));
    pointer.setAttribute("y", (top + i * cell).toFixed(1));
    tell(i, j);
  };
  cover.addEventListener("pointermove", follow);
  cover.addEventListener("pointerdown", follow);
}

function drawJacobian(drawing, data, state, say) {
  const labels = new Labels(drawing);
  const places = boxes(drawing, data.sides.length, { gap: 24 });
  const below = drawTitles(labels, places, data.sides, say);
  places.forEach((box, number) => drawSide(drawing, labels, box, below, data.sides[number], say));
}

function describeJacobian(data, state, say) {
  const ruled = data.sides[data.sides.length - 1];
  const numbers = (side) => ({ trace: shown(side.trace), largest: shown(side.entries[0][0]) });
  const said = say("jacobian_describe", { d: shown(state.d), n: shown(data.n), under: underRule(ruled.rule, say), ...numbers(ruled) });
  if (data.sides.length === 1) return said;
  return say("picture_sentences", { first: said, second: say("jacobian_describe_bare", numbers(data.sides[0])) });
}

function tableJacobian(data, state, say) {
  const heads = [say("jacobian_rule"), say("jacobian_row"), say("jacobian_column"), say("jacobian_entry")];
  const entry = ({ rule, order }, i, j, value) => [rule, order[i] + 1, order[j] + 1, value];
  const linesOf = (side) => side.entries.flatMap((line, i) => Array.from(line, (value, j) => entry(side, i, j, value)));
  return { heads, rows: data.sides.flatMap(linesOf) };
}

const JACOBIAN_CONTROLS = ["d", "n", "spread", "rule", "seed"];

export const jacobianPicture = {
  controls: JACOBIAN_CONTROLS,
  ratio: [2, 1.12],
  tall: [4, 9.4],
  compute: (state) => computeJacobian(asTurned(state, JACOBIAN_CONTROLS), true),
  draw: drawJacobian,
  describe: describeJacobian,
  table: tableJacobian,
};

export const playJacobian = {
  controls: ["d", "n", "mean", "correlation", "spread", "rule", "growth", "seed"],
  ratio: [1, 1.12],
  tall: [4, 4.8],
  compute: (state) => computeJacobian(state, false),
  draw: drawJacobian,
  describe: describeJacobian,
  table: tableJacobian,
};
