// A file that the reader gives: read, checked field by field, and refused in words. Nothing of it is ever run or taken as markup.
export const MOST_BYTES = 20e6;
export const CHECK_SCHEMA = "isotherm.check/1";
export const WATCH_SCHEMA = "isotherm.watch/1";
const REPORT_LIMITS = { layers: 1024, heads: 1024, factors: 64, letters: 200 };

// Why a report is refused: a word of the page and its values.
export class Refusal extends Error {
  constructor(key, values = {}) {
    super(key);
    this.key = key;
    this.values = values;
  }
}

// The report in a file.
export const readReport = async (file) => reportOf(await readJson(file));

// What a file holds, which is not read where it is too large; `noJson` says what to do about one that is not JSON.
export async function readJson(file, noJson = "drop_no_json") {
  if (file.size > MOST_BYTES) throw new Refusal("drop_large", { size: Math.ceil(file.size / 1e6), most: MOST_BYTES / 1e6 });
  let text;
  try {
    text = await file.text();
  } catch {
    throw new Refusal("drop_unreadable");
  }
  return parsed(text, noJson);
}

function parsed(text, noJson) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Refusal(/\b(NaN|Infinity)\b/.test(text) ? "drop_nan" : noJson);
  }
}

// What the page shows of a report: its name, and the layers that have temperature curves.
export function reportOf(plain) {
  const whole = ofSchema(plain, CHECK_SCHEMA);
  const model = objectAt(member(whole, "model", ""), "model");
  const layers = listAt(member(whole, "layers", ""), "layers", REPORT_LIMITS.layers);
  const curved = layers.map((layer, i) => layerOf(layer, `layers[${i}]`)).filter((layer) => layer !== null);
  if (!curved.length) throw new Refusal("drop_no_curves");
  return { name: textAt(member(model, "name", "model"), "model.name"), layers: curved };
}

// An object that says it is of this schema. A file of the other one is told where it belongs.
export function ofSchema(plain, expected) {
  const schema = plain !== null && Object.hasOwn(plain, "schema") ? plain.schema : undefined;
  if (schema === undefined) throw new Refusal("drop_no_schema");
  if (schema === expected) return objectAt(plain, "$");
  if (schema === WATCH_SCHEMA) throw new Refusal("drop_is_run");
  if (schema === CHECK_SCHEMA) throw new Refusal("drop_is_report");
  throw new Refusal(expected === WATCH_SCHEMA ? "drop_run_schema" : "drop_schema", { found: printedFound(schema), expected });
}

function layerOf(plain, place) {
  const layer = objectAt(plain, place);
  if (!Object.hasOwn(layer, "curve") || layer.curve === null) return null;
  const curve = objectAt(layer.curve, `${place}.curve`);
  const at = (name) => `${place}.curve.${name}`;
  const factors = listAt(member(curve, "factors", `${place}.curve`), at("factors"), REPORT_LIMITS.factors).map((value, i) => numberAt(value, `${at("factors")}[${i}]`, 1e-6, 1e6));
  factors.forEach((factor, i) => { if (i > 0 && factor <= factors[i - 1]) throw new Refusal("drop_order", { place: at("factors") }); });
  if (factors.length < 2 || !factors.includes(1)) throw new Refusal("drop_factors", { place: at("factors") });
  const heads = listAt(member(curve, "heads", `${place}.curve`), at("heads"), REPORT_LIMITS.heads);
  return {
    index: wholeAt(member(layer, "index", place), `${place}.index`, 0, 1e6),
    name: textAt(member(layer, "name", place), `${place}.name`),
    keys: wholeAt(member(layer, "keys", place), `${place}.keys`, 0, 1e9),
    dimension: wholeAt(member(layer, "head_dim", place), `${place}.head_dim`, 0, 1e6),
    factors,
    whole: curveOf(curve, `${place}.curve`, factors.length),
    heads: heads.map((head, i) => curveOf(objectAt(head, `${at("heads")}[${i}]`), `${at("heads")}[${i}]`, factors.length)),
  };
}

function curveOf(plain, place, length) {
  const values = (name) => {
    const list = listAt(member(plain, name, place), `${place}.${name}`, length);
    if (list.length !== length) throw new Refusal("drop_length", { place: `${place}.${name}`, expected: length, found: list.length });
    return list.map((value, i) => (value === null ? null : numberAt(value, `${place}.${name}[${i}]`, 0, 1)));
  };
  const mark = (name) => {
    const value = member(plain, name, place);
    return value === null ? null : numberAt(value, `${place}.${name}`, 0, 1e12);
  };
  return { gate: values("gate"), entropy: values("entropy_fraction"), freezing: mark("freezing"), best: mark("best_open") };
}

export function member(plain, name, place) {
  if (!Object.hasOwn(plain, name)) throw new Refusal("drop_missing", { place: place ? `${place}.${name}` : name });
  return plain[name];
}

export function objectAt(value, place) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Refusal("drop_object", { place, found: printedFound(value) });
  return value;
}

export function listAt(value, place, most) {
  if (!Array.isArray(value)) throw new Refusal("drop_list", { place, found: printedFound(value) });
  if (value.length > most) throw new Refusal("drop_long", { place, most, found: value.length });
  return value;
}

export function numberAt(value, place, low, high) {
  if (typeof value !== "number" || !Number.isFinite(value) || value < low || value > high) throw new Refusal("drop_number", { place, low, high, found: printedFound(value) });
  return value;
}

export function wholeAt(value, place, low, high) {
  if (!Number.isInteger(numberAt(value, place, low, high))) throw new Refusal("drop_whole", { place, found: printedFound(value) });
  return value;
}

// A text without what could steer the reader's eye, cut to a line.
export function textAt(value, place) {
  if (typeof value !== "string") throw new Refusal("drop_text", { place, found: printedFound(value) });
  return value.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu, "□").slice(0, REPORT_LIMITS.letters);
}

// What was found, as JSON and short.
function printedFound(value) {
  if (value === undefined) return "–";
  if (typeof value === "object" && value !== null) return Array.isArray(value) ? "[…]" : "{…}";
  const text = JSON.stringify(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
}
