// What every page shares: data, words, numbers, and building elements from text (never from markup).
const data = JSON.parse(document.getElementById("data").textContent);
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
