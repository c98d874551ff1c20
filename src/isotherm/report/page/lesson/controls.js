// The controls: one description for each key of the state, and the elements that turn it. A slider walks over stops, so that one press
// of an arrow key always changes what is shown; the box beside it takes any number of the range.
import { RULES } from "./maths/rules.js";
import { RANGES, admissible } from "./state.js";
import { bilingual, element, inLanguage } from "./elements.js";
import { factorShown, shown } from "./pictures/numbers.js";

export const timesFactor = (factor) => `×${factorShown(factor)}`;
const octaves = (low, high, parts) => Array.from({ length: Math.round(Math.log2(high / low) * parts) + 1 }, (_, i) => low * 2 ** (i / parts));
const wholes = (low, high, parts) => [...new Set(octaves(low, high, parts).map(Math.round))];
const evenly = (low, high, step) => Array.from({ length: Math.round((high - low) / step) + 1 }, (_, i) => Number((low + i * step).toFixed(6)));

export const CONTROLS = {
  d: { label: ["Dimension d", "维数 d"], stops: wholes(1, 1024, 4) },
  n: { label: ["Keys n", "键数 n"], stops: wholes(2, 512, 4) },
  spread: { label: ["Spread of the components", "分量的标准差"], stops: octaves(0.25, 4, 4), digits: 3 },
  mean: { label: ["Mean of the components", "分量的均值"], stops: evenly(-1, 1, 0.05) },
  correlation: { label: ["Correlation of q and k", "q 与 k 的相关系数"], stops: evenly(-1, 1, 0.05) },
  rule: { label: ["Rule of the scale", "缩放规则"] },
  a: { label: ["a", "a"], stops: [...evenly(0, 10, 0.25), ...evenly(11, 40, 1)] },
  power: { label: ["Power p of d", "d 的幂次 p"], stops: evenly(0, 1.5, 0.05) },
  growth: { label: ["Growth of q·k in training", "训练使 q·k 增大的倍数"], stops: octaves(1, 64, 4), text: timesFactor },
  keys: { label: ["Keys n", "键数 n"], stops: wholes(2, 512, 4) },
  trained: { label: ["Growth of q·k in training", "训练使 q·k 增大的倍数"], stops: octaves(1, 64, 4), text: timesFactor },
  context: { label: ["Context length n", "上下文长度 n"], stops: wholes(16, 65536, 2) },
  seed: { label: ["Draw", "抽样"], again: ["Draw again", "再抽一次"] },
  statistic: { label: ["Statistic, of the worst head", "统计量（取最差的头）"] },
  moment: { label: ["Point of the run, in percent", "训练进程（百分比）"], stops: evenly(0, 100, 1) },
  factor: { label: ["Factor on q·k", "q·k 的倍数"], stops: octaves(1 / 16, 16, 2), text: timesFactor },
};

const CHOSEN = {
  rule: RULES.map((rule) => [rule.text, rule.name]),
  statistic: [
    ["max_logit", ["largest logit", "最大 logit"]], ["entropy", ["entropy, share of its maximum", "熵占最大值的比例"]], ["gate", ["gate", "闸门"]],
    ["logit_std", ["spread of the logits", "logit 标准差"]], ["saturated", ["share of saturated rows", "饱和行的比例"]],
  ],
};

let serial = 0;

// A control for `key`: its element, and `show(state)`, which brings it up to date.
export function control(key, store) {
  if (Object.hasOwn(CHOSEN, key)) return choiceControl(key, store);
  return key === "seed" ? seedControl(store) : sliderControl(key, store);
}

function nearestStop(stops, value) {
  let best = 0;
  stops.forEach((stop, i) => { if (Math.abs(stop - value) < Math.abs(stops[best] - value)) best = i; });
  return best;
}

function sliderControl(key, store) {
  const { label, stops, text, digits } = CONTROLS[key];
  const { low, high } = RANGES[key];
  const id = `control-${key}-${(serial += 1)}`;
  const rounded = (stop) => (RANGES[key].whole ? stop : Number(stop.toPrecision(digits || 6)));
  const slider = element("input", {
    type: "range", id, min: 0, max: stops.length - 1, step: 1, "data-key": key,
    oninput: () => store.set({ [key]: admissible(key, rounded(stops[Number(slider.value)])) }),
  });
  const box = numberBox(key, store, { min: low, max: high });
  const show = (state) => {
    const value = state[key];
    const place = String(nearestStop(stops, value));
    if (slider.value !== place) slider.value = place;
    slider.setAttribute("aria-valuetext", (text || shown)(value));
    box.setAttribute("aria-label", inLanguage(label, state.lang));
    if (box !== document.activeElement) box.value = String(Number(value.toPrecision(digits || 4)));
  };
  return { key, show, node: element("div", { class: "control" }, element("label", { for: id }, bilingual(label)), slider, box) };
}

// Enter, leaving the box or its arrows set the value; what is no number puts the old one back.
function numberBox(key, store, attributes) {
  const box = element("input", {
    type: "number", inputmode: "decimal", step: "any", class: "value", "data-key": key, ...attributes,
    onchange: () => {
      const value = admissible(key, box.value);
      if (value !== null) store.set({ [key]: value });
      box.value = String(store.state[key]);
    },
  });
  return box;
}

function choiceControl(key, store) {
  const id = `control-${key}-${(serial += 1)}`;
  const choices = CHOSEN[key];
  const options = choices.map(([value]) => element("option", { value }));
  const select = element("select", { id, "data-key": key, onchange: () => store.set({ [key]: select.value }) }, options);
  const show = (state) => {
    options.forEach((option, i) => { option.textContent = inLanguage(choices[i][1], state.lang); });
    select.value = state[key];
  };
  return { key, show, node: element("div", { class: "control choice" }, element("label", { for: id }, bilingual(CONTROLS[key].label)), select) };
}

function seedControl(store) {
  const { low, high } = RANGES.seed;
  const box = numberBox("seed", store, { min: low, max: high, step: 1 });
  const again = element("button", { type: "button", class: "again", "data-key": "seed", onclick: () => store.set({ seed: store.state.seed < high ? store.state.seed + 1 : low }) }, bilingual(CONTROLS.seed.again));
  const show = (state) => {
    box.setAttribute("aria-label", inLanguage(CONTROLS.seed.label, state.lang));
    if (box !== document.activeElement) box.value = String(state.seed);
  };
  return { key: "seed", show, node: element("div", { class: "control drawn-again" }, again, box) };
}
