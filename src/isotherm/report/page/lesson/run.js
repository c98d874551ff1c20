// A training run: one statistic of the worst head of each layer, and the loss, with the point of the run dragged along. A run of
// `isotherm watch --demo` that was driven too hot stands there until the reader drops another.
import { element } from "./elements.js";
import { dropPlace } from "./drop_place.js";
import { WORST, readRun, runOf } from "./drop_run.js";
import { Labels, SMALL, textWidth } from "./pictures/labels.js";
import { Panel } from "./pictures/panel.js";
import { linearAxis, logAxis } from "./pictures/axes.js";
import { shown } from "./pictures/numbers.js";

const MOST_POINTS = 400;
const ALERT_LOGIT = 100;
const GUTTER = 42;
let ownRun = null; // the reader's own run, in place of the sample

function currentRun(lesson) {
  lesson.sampleRun ??= lesson.run ? runOf(lesson.run) : null;
  return ownRun || lesson.sampleRun;
}

// The worst of all layers at one reading: its layer, head and value.
function worstAt(run, reading, statistic) {
  let found = null;
  reading.worst[statistic].forEach((each, layer) => {
    if (each && (!found || WORST[statistic](each.value, found.value) !== found.value)) found = { ...each, layer: run.layers[layer].number };
  });
  return found;
}

// Readings that are drawn: every so-manieth of a long run, and the last.
function thinned(readings) {
  const every = Math.ceil(readings.length / MOST_POINTS);
  return readings.filter((_, i) => i % every === 0 || i === readings.length - 1);
}

function runAxis(statistic, values) {
  if (["entropy", "gate", "saturated"].includes(statistic)) return linearAxis(0, 1);
  const positive = values.filter((value) => value > 0);
  const [least, most] = [Math.min(...positive, 1), Math.max(...positive, 10)];
  return logAxis(10 ** Math.floor(Math.log10(least) + 1e-9), 10 ** Math.ceil(Math.log10(most) - 1e-9));
}

function stepsAxis(readings) {
  const [first, last] = [readings[0].step, readings.at(-1).step];
  return linearAxis(first, last > first ? last : first + 1, { label: (step) => shown(Math.round(step), 6) });
}

// Stretches of points without a gap.
function stretches(points) {
  const parts = [[]];
  for (const point of points) if (point[1] === null) parts.push([]); else parts.at(-1).push(point);
  return parts.filter((part) => part.length > 0);
}

function drawRunLine(panel, points, classes) {
  const clear = (value) => Math.min(Math.max(value, panel.upward.low), panel.upward.high);
  for (const part of stretches(points)) panel.add("path", { d: panel.path(part.map(([step, value]) => [step, clear(value)])) + (part.length === 1 ? "h1" : ""), class: classes });
}

function drawStatistic(drawing, labels, box, { run, statistic, here, worst, drawn }, say, right) {
  const all = drawn.flatMap((reading) => reading.worst[statistic].filter(Boolean).map(({ value }) => value));
  const panel = new Panel(drawing, labels, box, stepsAxis(run.readings), runAxis(statistic, all), { title: say("run_title", { statistic: say(`run_${statistic}`) }), right, least: GUTTER });
  for (const { step } of run.alerts) panel.upright(Math.min(Math.max(step, panel.across.low), panel.across.high), "c1 stroke run-alert", "2 3");
  if (statistic === "max_logit" && panel.upward.low < ALERT_LOGIT && panel.upward.high > ALERT_LOGIT) {
    panel.add("path", { class: "frame", d: `M${panel.left} ${panel.y(ALERT_LOGIT)}H${panel.right}`, "stroke-dasharray": "6 4" });
  }
  const chosen = worst ? run.layers.findIndex(({ number }) => number === worst.layer) : -1;
  run.layers.forEach((_, layer) => drawRunLine(panel, drawn.map(({ step, worst: at }) => [step, at[statistic][layer]?.value ?? null]), layer === chosen ? "c0 stroke curve pic-bold" : "model-other"));
  panel.upright(here.step, "cursor-line", null);
  if (!worst) return;
  panel.ring(here.step, Math.max(worst.value, panel.upward.low), "c0");
  const last = drawn.at(-1).worst[statistic][chosen];
  if (last) panel.ends([{ y: Math.max(last.value, panel.upward.low), text: say("run_layer", { layer: worst.layer }), colour: "c0 solid", bold: true }], 12);
  if (run.alerts.length) labels.place(say("run_first_alert"), [[panel.x(run.alerts[0].step) + 5, panel.bottom - 8, "start"], [panel.x(run.alerts[0].step) - 5, panel.bottom - 8, "end"]], { kind: "loud", size: SMALL });
}

function drawLoss(drawing, labels, box, { run, here, drawn }, say, right) {
  const losses = drawn.map(({ step, loss }) => [step, loss]);
  const known = losses.map(([, loss]) => loss).filter((loss) => loss !== null);
  const [low, high] = [Math.min(...known, 0), Math.max(...known, 1e-9)];
  const panel = new Panel(drawing, labels, box, stepsAxis(run.readings), linearAxis(low, high, { round: true }), { title: say("run_loss"), below: say("run_step"), right, least: GUTTER });
  for (const { step } of run.alerts) panel.upright(Math.min(Math.max(step, panel.across.low), panel.across.high), "c1 stroke run-alert", "2 3");
  drawRunLine(panel, losses, "c2 stroke curve pic-bold");
  panel.upright(here.step, "cursor-line", null);
  if (here.loss !== null) panel.ring(here.step, here.loss, "c2");
}

const runRight = (run, say) => textWidth(say("run_layer", { layer: run.layers.at(-1).number }), SMALL) * 1.08 + 17;

export const run = {
  controls: ["statistic", "moment"],
  ratio: [16, 10],
  tall: [4, 6],

  compute(state, lesson) {
    const found = currentRun(lesson);
    if (!found) return null;
    const here = found.readings[Math.round((state.moment / 100) * (found.readings.length - 1))];
    return { run: found, statistic: state.statistic, here, worst: worstAt(found, here, state.statistic), drawn: thinned(found.readings) };
  },

  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    if (!data) {
      labels.lines(say("run_none"), 0, 20, drawing.width);
      return;
    }
    const right = runRight(data.run, say);
    const middle = drawing.height * 0.58;
    drawing.across = { right };
    drawStatistic(drawing, labels, { left: 0, right: drawing.width, top: 0, bottom: middle }, data, say, right);
    drawLoss(drawing, labels, { left: 0, right: drawing.width, top: middle + 18, bottom: drawing.height }, data, say, right);
  },

  describe(data, state, say) {
    if (!data) return say("run_none");
    const { run: { name, readings, alerts }, statistic, here, worst } = data;
    const loss = here.loss === null ? say("run_no_loss") : say("run_has_loss", { loss: shown(here.loss) });
    const value = worst ? say("run_worst", { statistic: say(`run_${statistic}`), value: shown(worst.value), layer: worst.layer, head: worst.head }) : say("run_no_value");
    const told = alerts.length ? say("run_alerts", { alerts: alerts.length, step: shown(alerts[0].step, 6), first: alerts[0].said[state.lang === "zh" ? 1 : 0] }) : say("run_no_alert");
    return [say("run_read", { name, step: shown(here.step, 6), last: shown(readings.at(-1).step, 6), loss }), value, told].join(say("between_sentences"));
  },

  table(data, state, say) {
    const heads = ["run_step", "run_loss", `run_${state.statistic}`, "run_layer_head", "run_head"].map((key) => say(key));
    const line = (reading) => {
      const worst = worstAt(data.run, reading, data.statistic);
      return [reading.step, reading.loss, worst && worst.value, worst && worst.layer, worst && worst.head];
    };
    return { heads, rows: data ? data.run.readings.map(line) : [] };
  },

  press(x, y, data, state, drawing) {
    if (!data) return null;
    const left = Number(drawing.root.querySelector(".frame")?.getAttribute("d").match(/^M([\d.]+)/)?.[1] || 0);
    const part = (x - left) / (drawing.width - drawing.across.right - left);
    const [first, last] = [data.run.readings[0].step, data.run.readings.at(-1).step];
    const step = first + Math.min(Math.max(part, 0), 1) * (last - first);
    const place = data.run.readings.reduce((best, reading, i) => (Math.abs(reading.step - step) < Math.abs(data.run.readings[best].step - step) ? i : best), 0);
    return { moment: (100 * place) / Math.max(data.run.readings.length - 1, 1) };
  },

  above: ({ store, painter, words }) => element("div", { class: "model-chooser" }, ...dropPlace({
    id: "run-file", here: "drop_run_here", read: readRun, taken: (found) => { ownRun = found; store.set({ moment: 100 }); painter.spoil(); },
  }, words)),
};
