// Free play: where in (d, n) a rule leaves the softmax open and where it freezes. Theory.
import { freezingThreshold } from "../maths/theory.js";
import { logAxis } from "./axes.js";
import { exactRow, expectedRow, rowSpread } from "./expected.js";
import { cellText, letterClass, rampColour } from "./heat.js";
import { Labels } from "./labels.js";
import { percentShown, shown } from "./numbers.js";
import { Panel, wholeBox } from "./panel.js";
import { powersOfTwo, underRule } from "./settings.js";

const ACROSS = powersOfTwo(1, 1024);
const UPWARD = powersOfTwo(2, 512);
const HALF = Math.SQRT2;
const FINE = 4;

const excess = (state, d, n) => rowSpread({ ...state, d, n }) - freezingThreshold(n);

// Where a sign changes along an edge between two corners; null where it does not.
function crossing(a, b) {
  if (a.value > 0 === b.value > 0) return null;
  const part = a.value / (a.value - b.value);
  return [a.d * (b.d / a.d) ** part, a.n * (b.n / a.n) ** part];
}

// The line σ = √(2 ln n), as short pieces through the squares of a fine grid.
function freezingLine(state) {
  const fine = (low, count) => Array.from({ length: count * FINE + 1 }, (_, step) => low * 2 ** (step / FINE));
  const [ds, ns] = [fine(ACROSS[0] / HALF, ACROSS.length), fine(UPWARD[0] / HALF, UPWARD.length)];
  const corner = ns.map((n) => ds.map((d) => ({ d, n, value: excess(state, d, n) })));
  const pieces = [];
  for (let i = 1; i < ns.length; i++) {
    for (let j = 1; j < ds.length; j++) {
      const around = [corner[i - 1][j - 1], corner[i - 1][j], corner[i][j], corner[i][j - 1]];
      const found = around.map((it, number) => crossing(it, around[(number + 1) % 4])).filter(Boolean);
      for (let pair = 0; pair + 1 < found.length; pair += 2) pieces.push([found[pair], found[pair + 1]]);
    }
  }
  return pieces;
}

function phasePanel(drawing, labels, title, below) {
  const across = logAxis(ACROSS[0] / HALF, ACROSS.at(-1) * HALF, { ticks: ACROSS });
  const upward = logAxis(UPWARD[0] / HALF, UPWARD.at(-1) * HALF, { ticks: UPWARD });
  return new Panel(drawing, labels, wholeBox(drawing), across, upward, { title, below, right: 6 });
}

function drawCells(drawing, panel, cells) {
  for (const { d, n, gate } of cells) {
    const [left, right, top, bottom] = [panel.x(d / HALF), panel.x(d * HALF), panel.y(n * HALF), panel.y(n / HALF)];
    const colour = rampColour(gate);
    panel.add("rect", { x: left, y: top, width: right - left + 0.3, height: bottom - top + 0.3, fill: colour });
    const text = gate >= 0.995 ? "1" : gate < 0.005 ? "0" : gate.toFixed(2).replace(/^0/, "");
    cellText(drawing, text, left, top, right - left, bottom - top, letterClass(colour));
  }
}

function drawFreezing(panel, pieces) {
  const d = pieces.map((piece) => panel.path(piece)).join("");
  if (!d) return;
  panel.add("path", { d, class: "pic-edge-ground" });
  panel.add("path", { d, class: "pic-edge" });
}

export const playPhase = {
  controls: ["d", "n", "mean", "correlation", "spread", "rule", "growth"],
  ratio: [16, 10],
  tall: [4, 4.4],
  compute(state) {
    const cells = UPWARD.flatMap((n) => ACROSS.map((d) => {
      const spread = rowSpread({ ...state, d, n });
      return { d, n, spread, ...expectedRow(n, spread) };
    }));
    const spread = rowSpread(state);
    return { cells, line: freezingLine(state), here: { spread, threshold: freezingThreshold(state.n), ...exactRow(state.n, spread) } };
  },
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    const panel = phasePanel(drawing, labels, say("play_phase_title", { under: underRule(state.rule, say) }), say("picture_d_axis"));
    drawing.panel = panel;
    drawCells(drawing, panel, data.cells);
    drawFreezing(panel, data.line);
    const here = { cx: panel.x(state.d), cy: panel.y(state.n), r: 14 };
    for (const kind of ["pic-here-ground", "pic-here"]) panel.add("circle", { ...here, class: kind });
  },
  describe(data, state, say) {
    const { spread, threshold, gate, entropy } = data.here;
    return say("play_phase_describe", {
      d: shown(state.d), n: shown(state.n), under: underRule(state.rule, say), spread: shown(spread), threshold: shown(threshold),
      gate: shown(gate), entropy: percentShown(entropy),
      side: say(spread > threshold ? "lengths_is_frozen" : "lengths_is_open"),
    });
  },
  table(data, state, say, expected = expectedRow) {
    const heads = ["d", "n", say("play_phase_spread"), say("play_phase_gate")];
    return { heads, rows: data.cells.map(({ d, n, spread }) => [d, n, spread, expected(n, spread).gate]) };
  },
  press(x, y, data, state, drawing) {
    if (!drawing.panel) return null;
    const [d, n] = drawing.panel.valueAt(x, y);
    return { d: Math.min(Math.max(Math.round(d), 1), 1024), n: Math.min(Math.max(Math.round(n), 2), 512) };
  },
};
