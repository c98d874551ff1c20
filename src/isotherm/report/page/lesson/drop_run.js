// A run that the reader gives: the JSON of `isotherm export`, checked, and cut down to what is drawn: for each statistic the worst head of
// each layer at each reading.
import { Refusal, WATCH_SCHEMA, listAt, member, numberAt, objectAt, ofSchema, readJson, textAt, wholeAt } from "./drop.js";

const RUN_LIMITS = { layers: 1024, heads: 4096, readings: 100000, events: 100000, steps: 1e12, value: 1e38 };

// Which end of a statistic is the worst.
export const WORST = { max_logit: Math.max, entropy: Math.min, gate: Math.min, logit_std: Math.max, saturated: Math.max };

export const readRun = async (file) => runOf(await readJson(file, "drop_run_no_json"));

export function runOf(plain) {
  const whole = ofSchema(plain, WATCH_SCHEMA);
  const layers = listAt(member(whole, "layers", ""), "layers", RUN_LIMITS.layers).map((layer, i) => watchedLayerOf(layer, `layers[${i}]`));
  const readings = listAt(member(whole, "readings", ""), "readings", RUN_LIMITS.readings).map((reading, i) => readingOf(reading, `readings[${i}]`, layers));
  if (!readings.length || !layers.length) throw new Refusal("drop_no_readings");
  readings.forEach(({ step }, i) => { if (i > 0 && step <= readings[i - 1].step) throw new Refusal("drop_order", { place: `readings[${i}].step` }); });
  const events = listAt(member(whole, "events", ""), "events", RUN_LIMITS.events).map((event, i) => eventOf(event, `events[${i}]`));
  return { name: textAt(member(whole, "model", ""), "model"), layers, readings, alerts: events.filter(({ kind }) => kind === "alert") };
}

function watchedLayerOf(plain, place) {
  const layer = objectAt(plain, place);
  const count = (name, most) => wholeAt(member(layer, name, place), `${place}.${name}`, 0, most);
  return { number: count("number", 1e6), name: textAt(member(layer, "name", place), `${place}.name`), heads: count("heads", RUN_LIMITS.heads) };
}

function readingOf(plain, place, layers) {
  const reading = objectAt(plain, place);
  const loss = member(reading, "loss", place);
  const values = objectAt(member(reading, "values", place), `${place}.values`);
  const worst = Object.entries(WORST).map(([name, pick]) => [name, worstOf(values, `${place}.values`, name, layers, pick)]);
  return {
    step: wholeAt(member(reading, "step", place), `${place}.step`, 0, RUN_LIMITS.steps),
    loss: loss === null ? null : numberAt(loss, `${place}.loss`, -RUN_LIMITS.value, RUN_LIMITS.value),
    worst: Object.fromEntries(worst),
  };
}

// For each layer its worst head and that head's value; null where the layer did not run.
function worstOf(values, place, name, layers, pick) {
  const heads = layers.reduce((sum, layer) => sum + layer.heads, 0);
  const list = listAt(member(values, name, place), `${place}.${name}`, heads);
  if (list.length !== heads) throw new Refusal("drop_heads", { place: `${place}.${name}`, expected: heads, found: list.length });
  let first = 0;
  return layers.map((layer) => {
    let found = null;
    for (let head = 0; head < layer.heads; head++) {
      const value = list[first + head];
      if (value === null) continue;
      numberAt(value, `${place}.${name}[${first + head}]`, -RUN_LIMITS.value, RUN_LIMITS.value);
      if (found === null || pick(value, found.value) !== found.value) found = { value, head };
    }
    first += layer.heads;
    return found;
  });
}

function eventOf(plain, place) {
  const event = objectAt(plain, place);
  const message = objectAt(member(event, "message", place), `${place}.message`);
  const said = ["en", "zh"].map((language) => textAt(member(message, language, `${place}.message`), `${place}.message.${language}`));
  return { step: wholeAt(member(event, "step", place), `${place}.step`, 0, RUN_LIMITS.steps), kind: textAt(member(event, "kind", place), `${place}.kind`), said };
}
