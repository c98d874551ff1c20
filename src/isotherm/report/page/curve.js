// The temperature curve: gate and entropy over factors on q·k. Small for every layer, large for one head.
const factors = data.factors;
const here = factors.indexOf(1);
const lastFactor = factors.length - 1;
const factorName = (factor) => (factor < 1 ? `÷${num(1 / factor, 2)}` : `×${num(factor, 2)}`);
// Where a factor stands among the factors, perhaps between two of them.
const factorPlace = (factor) => (Math.log(factor / factors[0]) / Math.log(factors[lastFactor] / factors[0])) * lastFactor;
const asCurve = ([gate, entropy, freezing, best, rows, total]) => ({ gate, entropy, freezing, best, rows, total });
view.factor = here;

function curvePicture(curve, { width, height, left, ticks, every, label, choose }) {
  const xLabels = factors.map((factor, i) => [i, factorName(factor), i === 0 ? "start" : i === lastFactor ? "end" : "middle"]).filter(([i]) => (i - here) % every === 0);
  const { drawn, x, y } = lines([{ values: curve.entropy, className: "entropy" }, { values: curve.gate, className: "gate" }],
    { width, height, domain: { low: 0, high: 1, log: false }, ticks, left, right: 6, xLabels });
  const [top, base, end] = [y(1), y(0), x(lastFactor)];
  const upright = (at, kind) => svg("path", { class: kind, d: `M${at.toFixed(1)} ${top}V${base}` });
  const frozen = curve.freezing === null ? lastFactor : Math.min(Math.max(factorPlace(curve.freezing), 0), lastFactor);
  const best = curve.best === null ? -1 : factors.findIndex((factor) => Math.abs(factor / curve.best - 1) < 0.01);
  const cursor = svg("g", { class: "cursor" });
  const move = (i) => cursor.replaceChildren(upright(x(i), "cursor-line"), ...["entropy", "gate"].filter((kind) => curve[kind][i] !== null)
    .map((kind) => svg("circle", { class: `dot-${kind}`, cx: x(i).toFixed(1), cy: y(curve[kind][i]).toFixed(1), r: 3.5 })));
  const nearest = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * width - left) / (end - left);
    return Math.round(Math.min(Math.max(part, 0), 1) * lastFactor);
  };
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, onpointermove: (event) => choose(nearest(event)), onpointerdown: (event) => choose(nearest(event)) },
    frozen < lastFactor && [svg("rect", { class: "frozen", x: x(frozen), y: top, width: end - x(frozen), height: base - top }), frozen > 0 && upright(x(frozen), "freezing")],
    upright(x(here), "here"), curve.low && svg("path", { class: "heads-band", d: bandPath(curve, x, y) }), drawn, cursor,
    best >= 0 && curve.gate[best] !== null && svg("path", { class: "best", d: diamond(x(best), y(curve.gate[best])) }));
  return { picture, move };
}

const diamond = (x, y) => `M${(x - 5).toFixed(1)} ${y.toFixed(1)}l5 -5l5 5l-5 5z`;

// Between the tenth and the ninetieth percentile of the heads; nothing where either is unknown.
function bandPath({ low, high }, x, y) {
  const known = low.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const along_ = (order, values) => order.map((i) => `${x(i).toFixed(1)} ${y(values[i]).toFixed(1)}`);
  return known.length < 2 ? "" : `M${[...along_(known, high), ...along_(known.reverse(), low)].join("L")}z`;
}

// The control of one or many pictures: a slider, which a keyboard and a screen reader know.
function factorSlider(id, said_, changed) {
  const output = el("output", { for: id }, "");
  const input = el("input", { type: "range", id, min: 0, max: lastFactor, step: 1, oninput: () => set(Number(input.value)) });
  const set = (i) => {
    input.value = i;
    output.textContent = factorName(factors[i]);
    input.setAttribute("aria-valuetext", `${factorName(factors[i])}${said_(i)}`);
    changed(i);
  };
  const node = el("div", { class: "factor" }, el("label", { for: id }, t("factor")), input, output);
  return { node, set };
}

const readings = (curve, i) => `${t("curve_gate", { value: num(curve.gate[i], 2) })} · ${t("curve_entropy", { value: num(curve.entropy[i], 2) })}`;

// Between two sentences: a space, or nothing after a Chinese full stop.
const gap = () => (view.lang === "zh" ? "" : " ");
const landmarks = ({ freezing, best }) => [
  freezing === null ? t("freezing_none") : t("freezing_at", { factor: factorName(freezing) }),
  best === null ? t("best_none") : t("best_at", { factor: factorName(best) }),
].join(gap());

// One head's curve, large, in the panel of its details.
function headCurve(packed) {
  if (!packed || here < 0) return null;
  const curve = asCurve(packed);
  if (!curve.gate.some((value) => value !== null)) return null;
  const reading = el("p", { class: "key reading" });
  const read = (i) => ["gate", "entropy"].map((kind) => el("span", { class: kind }, t(kind === "gate" ? "curve_gate" : "curve_entropy", { value: num(curve[kind][i]) })));
  const { node, set } = factorSlider("head-factor", (i) => `: ${readings(curve, i)}`, (i) => { move(i); reading.replaceChildren(...read(i)); });
  const { picture, move } = curvePicture(curve, { width: 292, height: 164, left: 26, ticks: [0, 0.5, 1], every: 4, label: `${t("curve")}. ${landmarks(curve)}`, choose: (i) => set(i) });
  set(here);
  const { rows, total } = curve;
  const how = t("rows_line", rows === total ? { rows: thousands(rows), how: t("exact") } : { rows: `${thousands(rows)}/${thousands(total)}`, how: t("sampled") });
  return el("figure", { class: "curve" }, el("figcaption", {}, t("curve")), picture, node, reading, el("p", { class: "quiet" }, landmarks(curve), gap(), how));
}

// A picture for every layer, all moved by one slider.
function buildCurves() {
  if (here < 0 || !data.curves.length) return null;
  const panels = data.curves.map(([row, low, high, ...packed]) => layerPanel(row, { ...asCurve(packed), low, high }, (i) => set(i)));
  const { node, set } = factorSlider("layer-factor", () => "", (i) => { view.factor = i; panels.forEach((panel) => panel.move(i)); });
  set(view.factor);
  const first = 24;
  const grid = el("div", { class: "panels" }, panels.slice(0, first).map((panel) => panel.node));
  const left = data.left_out.curves;
  return section("curve", t("curve"), t("curve_lead"), curveKey(), node, grid,
    panels.length > first && more(panels.length, () => grid.append(...panels.slice(first).map((panel) => panel.node))),
    left > 0 && el("p", { class: "quiet" }, t("left_curves", { n: left })), curveTable(), el("p", { class: "quiet" }, curveRows()));
}

function layerPanel(row, curve, choose) {
  const title = t("layer_n", { layer: data.layers[row].index });
  const reading = el("p", { class: "reading" });
  const { picture, move } = curvePicture(curve, { width: 168, height: 108, left: 14, ticks: [0, 1], every: 8, label: `${title}. ${landmarks(curve)}`, choose });
  const node = el("figure", { class: "curve" }, el("figcaption", {}, title), picture, reading);
  return { node, move: (i) => { move(i); reading.textContent = readings(curve, i); } };
}

function curveKey() {
  const sample = (...drawn) => svg("svg", { viewBox: "0 0 28 14", width: 28, height: 14, "aria-hidden": "true" }, drawn);
  const entries = [
    [sample(svg("rect", { class: "heads-band", y: 1, width: 28, height: 12 }), svg("path", { class: "line gate", d: "M0 7H28" })), t("key_gate")],
    [sample(svg("path", { class: "line entropy", d: "M0 7H28" })), t("entropy_fraction")],
    [sample(svg("path", { class: "here", d: "M14 0V14" })), t("key_here")],
    [sample(svg("rect", { class: "frozen", x: 8, width: 20, height: 14 }), svg("path", { class: "freezing", d: "M8 0V14" })), t("key_freezing")],
    [sample(svg("path", { class: "best", d: diamond(14, 7) })), t("key_best")],
  ];
  return el("ul", { class: "curve-key" }, entries.map(([picture, text]) => el("li", {}, picture, el("span", {}, text))));
}

function curveTable() {
  const shown = factors.map((_, i) => i).filter((i) => (i - here) % 2 === 0);
  const heads = [[t("layer")], ...shown.map((i) => [factorName(factors[i]), "number"]), [t("freezing"), "number"], [t("best_open"), "number"]];
  const mark = (factor) => el("td", { class: "number" }, factor === null ? "–" : factorName(factor));
  const rows = data.curves.map(([row, , , gate, , freezing, best]) => el("tr", {}, el("th", { scope: "row" }, String(data.layers[row].index)),
    shown.map((i) => cell(gate[i], 2)), mark(freezing), mark(best)));
  return el("details", { class: "alternative" }, el("summary", {}, t("curve_table")), table(t("curve_table"), heads, rows, { first: 200 }));
}

// How many rows the curves rest on.
function curveRows() {
  const [rows, total] = [7, 8].map((column_) => data.curves.map((curve) => curve[column_]).sort((a, b) => a - b));
  const range = (numbers) => (numbers[0] === numbers[numbers.length - 1] ? thousands(numbers[0]) : `${thousands(numbers[0])}–${thousands(numbers[numbers.length - 1])}`);
  const exact = data.curves.every((curve) => curve[7] === curve[8]);
  return exact ? t("curve_exact", { rows: range(rows) }) : t("curve_sampled", { rows: range(rows), total: range(total) });
}
