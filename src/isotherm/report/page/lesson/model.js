// Step 7, «your model»: the temperature curves of a check-up, one layer and head at a time, with the factor dragged along them.
import { timesFactor } from "./controls.js";
import { bilingual, element } from "./elements.js";
import { readReport, reportOf } from "./drop.js";
import { dropPlace } from "./drop_place.js";
import { Labels, SMALL } from "./pictures/labels.js";
import { Panel } from "./pictures/panel.js";
import { linearAxis, logAxis } from "./pictures/axes.js";
import { shown } from "./pictures/numbers.js";

let ownReport = null; // the reader's own report, in place of the sample

export function currentReport(lesson) {
  lesson.sample ??= lesson.model ? reportOf(lesson.model) : null;
  return ownReport || lesson.sample;
}

// The measured factor nearest to the one asked for: between two of them nothing was measured.
function nearestFactor(factors, factor) {
  const away = factors.map((each) => Math.abs(Math.log(each / factor)));
  return away.indexOf(Math.min(...away));
}

export const model = {
  controls: ["factor"],
  ratio: [16, 9],

  compute(state, lesson) {
    const report = currentReport(lesson);
    if (!report) return { report };
    const layer = report.layers[Math.min(state.layer, report.layers.length - 1)];
    const head = state.head < layer.heads.length ? state.head : -1;
    return { report, layer, head, curve: head < 0 ? layer.whole : layer.heads[head], place: nearestFactor(layer.factors, state.factor) };
  },

  draw(drawing, { layer, head, curve, place }, state, say) {
    if (!layer) return;
    const { factors } = layer;
    const across = logAxis(factors[0], factors[factors.length - 1], { base: 4, label: timesFactor });
    const labels = new Labels(drawing);
    const panel = new Panel(drawing, labels, { left: 0, right: drawing.width, top: 0, bottom: drawing.height }, across, linearAxis(0, 1), { title: say("model_across"), below: say("model_below"), right: drawing.width < 600 ? 58 : 96 });
    frozenGround(panel, labels, curve, factors, say);
    if (head < 0) for (const each of layer.heads) drawCurve(panel, factors, each.gate, "model-other");
    drawCurve(panel, factors, curve.entropy, "c1 stroke curve", "6 4");
    drawCurve(panel, factors, curve.gate, "c0 stroke curve pic-bold");
    modelLandmarks(panel, labels, curve, factors, say);
    panel.upright(factors[place], "cursor-line", null);
    const ends = [["gate", "c0"], ["entropy", "c1"]].map(([kind, colour]) => ({ y: modelEnd(curve[kind]), text: say(`model_${kind}`), colour: `${colour} solid`, bold: kind === "gate" }));
    panel.ends(ends.filter(({ y }) => y !== null));
    for (const [kind, colour] of [["entropy", "c1"], ["gate", "c0"]]) if (curve[kind][place] !== null) panel.ring(factors[place], curve[kind][place], colour);
  },

  describe({ report, layer, head, curve, place }, state, say) {
    if (!layer) return say("model_none");
    const where = head < 0 ? say("model_layer", { layer: layer.index }) : say("model_head", { layer: layer.index, head });
    const read = say("model_read", { name: report.name, where, factor: timesFactor(layer.factors[place]), gate: shown(curve.gate[place]), entropy: shown(curve.entropy[place]) });
    const marks = [curve.freezing === null ? say("model_never") : say("model_freezes", { factor: `×${shown(curve.freezing, 2)}` }), curve.best === null ? say("model_no_best") : say("model_best", { factor: `×${shown(curve.best, 2)}` })];
    return [read, ...marks].join(say("between_sentences"));
  },

  table({ layer, curve }, state, say) {
    const heads = [say("model_factor"), say("model_gate"), say("model_entropy")];
    return { heads, rows: layer ? layer.factors.map((factor, i) => [factor, curve.gate[i], curve.entropy[i]]) : [] };
  },

  press(x, y, { layer }, state, drawing) {
    if (!layer) return null;
    const { factors } = layer;
    const [left, right] = [pressLeft(drawing), drawing.width - (drawing.width < 600 ? 58 : 96)];
    const part = Math.min(Math.max((x - left) / (right - left), 0), 1);
    return { factor: factors[nearestFactor(factors, factors[0] * (factors[factors.length - 1] / factors[0]) ** part)] };
  },

  above: (world) => modelChooser(world),
};

const modelEnd = (values) => values.findLast((value) => value !== null) ?? null;
const pressLeft = (drawing) => Number(drawing.root.querySelector(".frame")?.getAttribute("d").match(/^M([\d.]+)/)?.[1] || 0);

function drawCurve(panel, factors, values, kind, dash = null) {
  const known = factors.map((factor, i) => [factor, values[i]]).filter(([, value]) => value !== null);
  if (known.length > 1) panel.add("path", { d: panel.path(known), class: kind, "stroke-dasharray": dash });
}

function frozenGround(panel, labels, { freezing }, factors, say) {
  if (freezing === null || freezing >= factors[factors.length - 1]) return;
  const left = panel.x(Math.max(freezing, factors[0]));
  panel.add("rect", { class: "frozen", x: left, y: panel.top, width: panel.right - left, height: panel.bottom - panel.top });
  labels.place(say("model_frozen"), [[left + 6, panel.top + 15, "start"], [panel.right - 4, panel.top + 15, "end"]], { size: SMALL });
}

function modelLandmarks(panel, labels, curve, factors, say) {
  panel.upright(1, "here", null);
  labels.place(say("model_here"), [[panel.x(1) - 6, panel.bottom - 8, "end"], [panel.x(1) + 6, panel.bottom - 8, "start"]], { kind: "loud", size: SMALL });
  const best = curve.best === null ? -1 : factors.findIndex((factor) => Math.abs(factor / curve.best - 1) < 0.01);
  if (best < 0 || curve.gate[best] === null) return;
  const [x, y] = [panel.x(factors[best]), panel.y(curve.gate[best])];
  panel.add("path", { class: "best", d: `M${x - 6} ${y}l6 -6l6 6l-6 6z` });
  labels.place(say("model_best_mark"), [[x + 9, y - 8, "start"], [x - 9, y - 8, "end"], [x + 9, y + 18, "start"], [x - 9, y + 18, "end"]], { size: SMALL });
}

// Which report, layer and head; and a place to drop a report on.
function modelChooser(world) {
  const { store, lesson, words, say } = world;
  const [layers, heads] = ["layer", "head"].map((key) => element("select", { id: `choose-${key}`, "data-key": key, onchange: (event) => store.set({ [key]: Number(event.target.value) }) }));
  const refill = () => {
    const report = currentReport(lesson);
    if (!report) return;
    const layer = report.layers[Math.min(store.state.layer, report.layers.length - 1)];
    const option = (value, text) => element("option", { value, translate: "no" }, text);
    layers.replaceChildren(...report.layers.map((each, i) => option(i, each.name ? `${each.index} · ${each.name}` : String(each.index))));
    heads.replaceChildren(option(-1, say("model_all_heads")), ...layer.heads.map((_, i) => option(i, String(i))));
    layers.value = String(report.layers.indexOf(layer));
    heads.value = String(store.state.head < layer.heads.length ? store.state.head : -1);
  };
  const taken = (report) => {
    ownReport = report;
    store.set({ layer: 0, head: -1, factor: 1 });
    refill();
    world.painter.spoil();
  };
  refill();
  store.subscribe(refill);
  return element("div", { class: "model-chooser" },
    element("div", { class: "control choice" }, element("label", { for: "choose-layer" }, bilingual(words.model_layer_label)), layers),
    element("div", { class: "control choice" }, element("label", { for: "choose-head" }, bilingual(words.model_head_label)), heads),
    ...dropPlace({ id: "report-file", here: "drop_here", read: readReport, taken }, words));
}
