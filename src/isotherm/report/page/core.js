// Data, words, numbers, and building elements from text (never from markup).
const data = JSON.parse(document.getElementById("data").textContent);
const view = { lang: data.language, theme: null, stat: "state", rule: 1, open: null };
const column = () => (view.lang === "zh" ? 1 : 0);

const either = (pair) => (Array.isArray(pair) ? pair[column()] : pair);
const say = (number) => (number === null || number === undefined ? "" : either(data.texts[number]));
const t = (key, values = {}) =>
  data.words[key][column()].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

// A name or code: belongs to no language.
const name = (text, tag = "code", attributes = {}) => el(tag, { translate: "no", ...attributes }, String(text));
// A sentence of the record, in the language of the page.
const said = (text, tag = "span", attributes = {}) => el(tag, { "data-said": true, ...attributes }, text);

function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size < 1e-3 || size >= 1e6) {
    const [mantissa, exponent] = size.toExponential(digits - 1).split("e");
    text = `${mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa}e${Number(exponent)}`;
  } else {
    text = size.toFixed(Math.max(digits - 1 - Number(size.toExponential(digits - 1).split("e")[1]), 0));
    if (text.includes(".") && (size < 0.1 || Number.isInteger(size))) text = text.replace(/\.?0+$/, "");
  }
  return value < 0 ? `−${text}` : text;
}

const thousands = (n) => n.toLocaleString("en-US");

// Two characters a number, for models with thousands of heads; see `pack` in payload.py.
function unpack(packed) {
  if (Array.isArray(packed)) return packed;
  const { low, high, steps, log, codes } = packed;
  const places = new Map([...data.alphabet].map((letter, place) => [letter, place]));
  const values = new Array(codes.length / 2);
  for (let i = 0; i < values.length; i += 1) {
    const code = places.get(codes[2 * i]) * data.alphabet.length + places.get(codes[2 * i + 1]);
    const place = low + ((code - 2) / steps) * (high - low);
    values[i] = code === 0 ? null : code === 1 ? 0 : Number((log ? Math.exp(place) : place).toPrecision(3));
  }
  return values;
}

const stateNames = Object.keys(data.state_kinds);
const columns = { state: [...data.heads.state].map((digit) => stateNames[Number(digit)]) };
for (const { key } of data.statistics) columns[key] = unpack(data.heads[key]);

// Where each layer's heads start in the columns.
const starts = [];
let headCount = 0;
for (const layer of data.layers) {
  starts.push(headCount);
  headCount += layer.shape[0];
}
const widest = Math.max(0, ...data.layers.map((layer) => layer.shape[0]));
const rowOf = new Map(data.layers.map((layer, row) => [layer.index, row]));
const headId = (row, place) => (data.layers[row].ids ? data.layers[row].ids[place] : place);
const headPlace = (row, id) => (data.layers[row].ids ? data.layers[row].ids.indexOf(id) : id);
const details = new Map(data.details.map((detail) => [detail[0], detail]));

const statOf = (key) => data.statistics.find((stat) => stat.key === key);
const statName = (key) => (key === "state" ? t("state") : either(statOf(key).name));
const stateName = (state) => either(data.state_kinds[state].name);
const headTitle = (row, place) => t("head_n", { layer: data.layers[row].index, head: headId(row, place) });

// The URL's hash keeps language, theme, statistic and the open head, so that a link shows what its sender saw.
function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  if (["en", "zh"].includes(hash.get("lang"))) view.lang = hash.get("lang");
  if (["light", "dark"].includes(hash.get("theme"))) view.theme = hash.get("theme");
  if (hash.get("stat") === "state" || statOf(hash.get("stat"))) view.stat = hash.get("stat");
  const [layer, head] = (hash.get("head") || "").split(".").map(Number);
  if (rowOf.has(layer)) {
    const row = rowOf.get(layer);
    const place = headPlace(row, head);
    if (place >= 0 && place < data.layers[row].shape[0]) view.open = [row, place];
  }
}

function writeHash() {
  const hash = new URLSearchParams({ lang: view.lang });
  if (view.theme) hash.set("theme", view.theme);
  if (view.stat !== "state") hash.set("stat", view.stat);
  if (view.chosen) hash.set("head", `${data.layers[view.open[0]].index}.${headId(...view.open)}`);
  try {
    history.replaceState(null, "", `#${hash}`);
  } catch {
    // A page inside a notebook's frame has no address of its own to keep this in.
  }
}

function section(id, title, lead, ...children) {
  const heading = el("h2", { id: `${id}-title` }, title);
  return el("section", { id, "aria-labelledby": `${id}-title` }, heading, lead ? el("p", { class: "lead" }, lead) : null, children);
}

// A table wider than its place scrolls by itself, by keyboard too. Long ones show their first rows.
function table(caption, heads, rows, { first = 24, className = "" } = {}) {
  const body = el("tbody", {}, rows.slice(0, first));
  const header = el("tr", {}, heads.map(([text, kind]) => el("th", { scope: "col", class: kind || null }, text)));
  const whole = el("table", { class: className || null }, el("caption", { class: "unseen" }, caption), el("thead", {}, header), body);
  const box = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole);
  if (rows.length <= first) return box;
  return [box, more(rows.length, () => body.append(...rows.slice(first)))];
}

function more(total, show) {
  const button = el("button", { type: "button", class: "more", onclick: () => { show(); button.remove(); } }, t("show_all", { n: total }));
  return button;
}
