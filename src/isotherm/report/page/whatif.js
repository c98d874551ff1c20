// Other rules on the same queries and keys: medians in a table, curves over the layers.
const whatIfKeys = ["entropy_fraction", "gate_p50", "gate_p10", "max_logit"];
const dashes = [null, ...data.dashes];
// The class and the dash of a rule's line; «as is» is drawn in ink.
const look = (number) => (number === null
  ? { className: "present" }
  : { className: `stroke c${number % data.colours}`, dash: dashes[number % dashes.length] });

function buildWhatIf() {
  if (!data.what_if.length) return null;
  const tones = data.what_if.map((rule, i) => (rule.as_is ? null : i));
  const rows = data.what_if.map((rule, i) => el("tr", { class: rule.as_is ? "as-is" : null },
    el("th", { scope: "row" }, ruleKey(tones[i]), rule.as_is ? say(rule.rule) : name(say(rule.rule))), rule.medians.map((value) => cell(value))));
  const heads = [[t("rule")], ...whatIfKeys.map((key) => [t(key), "number"])];
  const chart = el("div", { class: "chart" });
  const select = el("select", { id: "what-if-key", onchange: () => { view.rule = Number(select.value); drawCurves(chart, tones); } },
    whatIfKeys.map((key, i) => el("option", { value: i, selected: i === view.rule }, t(key))));
  const curved = data.layers.length > 1 && data.what_if.some((rule) => rule.curve.length > 1);
  if (curved) drawCurves(chart, tones);
  return section("what-if", t("what_if"), t("what_if_lead"), el("div", { class: "beside" }, el("div", {}, table(t("what_if"), heads, rows, { className: "rules" })),
    curved && el("div", {}, el("div", { class: "controls" }, el("label", { for: "what-if-key" }, t("over_layers")), select), chart)));
}

function ruleKey(tone) {
  return svg("svg", { class: "rule-key", viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true" },
    svg("path", { class: `line ${look(tone).className}`, d: "M0 4H28", "stroke-dasharray": look(tone).dash }));
}

function drawCurves(chart, tones) {
  const series = data.what_if.map((rule, i) => ({
    values: data.layers.map((layer) => { const found = rule.curve.find(([index]) => index === layer.index); return found ? found[view.rule + 1] : null; }),
    ...look(tones[i]), asIs: rule.as_is,
  })).sort((a, b) => a.asIs - b.asIs);
  const known = series.flatMap((one) => one.values).filter((value) => value !== null);
  if (!known.length) { chart.replaceChildren(); return; }
  const high = known.reduce((a, b) => Math.max(a, b), 0);
  const domain = whatIfKeys[view.rule] === "max_logit" ? { low: Math.min(0, ...known), high: high * 1.05 || 1, log: false } : { low: 0, high: 1, log: false };
  const width = innerWidth < 700 ? 340 : 520;
  const every = Math.max(1, Math.ceil(data.layers.length / 8));
  const xLabels = data.layers.map((layer, i) => [i, String(layer.index)]).filter(([i]) => i % every === 0);
  const { drawn } = lines(series, { width, height: 240, domain, ticks: [0, 0.25, 0.5, 0.75, 1].map((part) => at(domain, part)), left: 40, xLabels });
  chart.replaceChildren(svg("svg", { viewBox: `0 0 ${width} 240`, role: "img", "aria-label": `${t("over_layers")}: ${t(whatIfKeys[view.rule])}` }, drawn));
}
