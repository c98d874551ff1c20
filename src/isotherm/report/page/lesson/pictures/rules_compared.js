// Free play: the rules side by side, over d and over n. Theory.
import { linearAxis, logAxis } from "./axes.js";
import { exactRow, expectedRow, rowSpread } from "./expected.js";
import { Labels, SMALL, textWidth } from "./labels.js";
import { percentShown, shown } from "./numbers.js";
import { Panel, boxes } from "./panel.js";
import { lessonRules, powersOfTwo, shortRule, underRule } from "./settings.js";

const OVER_D = powersOfTwo(4, 1024);
const OVER_N = powersOfTwo(2, 512);
const LEADER = 26; // room for the lines that lead to the names

function expectedAt(state, rule, d, n) {
  const spread = rowSpread({ ...state, rule, d, n });
  return { d, n, spread, ...expectedRow(n, spread) };
}

function drawRulesPanel(drawing, labels, box, data, { key, values, at, title, below }, state, say) {
  const right = Math.max(...data.rules.map(({ rule }) => textWidth(shortRule(rule, say), SMALL))) * 1.06 + LEADER + 3;
  const [across, upward] = [logAxis(values[0], values.at(-1), { base: 2 }), linearAxis(0, 1, { label: percentShown })];
  const panel = new Panel(drawing, labels, box, across, upward, { title, below, right });
  panel.upright(Math.min(Math.max(at, values[0]), values.at(-1)));
  const chosenLast = [...data.rules].sort((a, b) => (a.rule === state.rule) - (b.rule === state.rule));
  for (const { rule, [key]: points } of chosenLast) {
    const chosen = rule === state.rule;
    panel.line(points.map((point, number) => [values[number], point.entropy]), chosen ? "c0" : "pic-other", { theory: true, bold: chosen });
  }
  panel.ends(data.rules.map(({ rule, [key]: points }) => {
    const chosen = rule === state.rule;
    return { y: points.at(-1).entropy, text: shortRule(rule, say), colour: chosen ? "c0 solid" : "word", bold: chosen };
  }), LEADER);
}

export const playRules = {
  controls: ["rule", "d", "n", "mean", "correlation", "spread", "growth"],
  ratio: [16, 9],
  tall: [4, 6.4],
  compute(state) {
    const rules = lessonRules().map((rule) => ({
      rule, overD: OVER_D.map((d) => expectedAt(state, rule, d, state.n)), overN: OVER_N.map((n) => expectedAt(state, rule, state.d, n)),
    }));
    return { rules };
  },
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    const [first, second] = boxes(drawing, 2);
    const overD = { key: "overD", values: OVER_D, at: state.d, title: say("play_rules_over_d", { n: shown(state.n) }), below: say("picture_d_axis") };
    const overN = { key: "overN", values: OVER_N, at: state.n, title: say("play_rules_over_n", { d: shown(state.d) }), below: say("picture_n_axis") };
    drawRulesPanel(drawing, labels, first, data, overD, state, say);
    drawRulesPanel(drawing, labels, second, data, overN, state, say);
  },
  describe(data, state, say) {
    const { overD, overN } = data.rules.find(({ rule }) => rule === state.rule);
    const under = underRule(state.rule, say);
    const values = { under: under[0].toUpperCase() + under.slice(1), n: shown(state.n), d: shown(state.d) };
    const ends = { from: overD[0], to: overD.at(-1), near: overN[0], far: overN.at(-1) };
    for (const [name, { n, spread }] of Object.entries(ends)) values[name] = percentShown(exactRow(n, spread).entropy);
    return say("play_rules_describe", values);
  },
  table(data, state, say, expected = expectedRow) {
    const heads = [say("play_rules_rule"), "d", "n", say("play_rules_entropy"), say("play_rules_gate")];
    const line = (rule, { d, n, spread }) => {
      const { entropy, gate } = expected(n, spread);
      return [rule, d, n, entropy, gate];
    };
    return { heads, rows: data.rules.flatMap(({ rule, overD, overN }) => [...overD, ...overN].map((point) => line(rule, point))) };
  },
};
