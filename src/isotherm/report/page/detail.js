// One head: where its logits stand against the freezing point, theory beside measurement, rows, positions.
function openHead(row, place, focus) {
  view.open = [row, place];
  view.chosen = true;
  for (const marked of document.querySelectorAll("#grid [aria-selected]")) marked.removeAttribute("aria-selected");
  cells[row][place].setAttribute("aria-selected", "true");
  const panel = document.getElementById("detail");
  panel.replaceChildren(...detailOf(row, place));
  writeHash();
  if (focus) panel.querySelector("h3").focus();
  else if (panel.getBoundingClientRect().top > innerHeight) panel.scrollIntoView({ block: "nearest" });
}

function backToCell(event) {
  if (event.key === "Escape") moveCursor(...view.open);
}

function buildDetail() {
  return el("aside", { id: "detail", "aria-label": t("detail"), onkeydown: backToCell }, view.open ? detailOf(...view.open) : null);
}

function detailOf(row, place) {
  const flat = starts[row] + place;
  const layer = data.layers[row];
  const kind = data.state_kinds[columns.state[flat]];
  const badge = el("span", { class: "badge" }, `${kind.glyph} ${stateName(columns.state[flat])}`);
  badge.style.backgroundColor = kind.colour;
  badge.style.color = inkOn(kind.colour);
  const found = data.findings.filter((finding) => finding.layer === layer.index && finding.head === headId(row, place));
  const detail = details.get(flat);
  return [
    el("h3", { tabindex: "-1" }, el("span", {}, headTitle(row, place)), badge),
    el("p", { class: "where" }, name(layer.name)),
    found.map((finding) => el("p", { class: `flag ${finding.severity}` }, `${data.severities[finding.severity].glyph} `, said(either(finding.message)))),
    spreadFigure(columns.logit_std[flat], layer.critical),
    detail && headCurve(detail[10]),
    detail ? fineDetail(detail, flat) : [factsTable(flat), el("p", { class: "quiet" }, t("detail_left_out"))],
  ].flat(4).filter(Boolean);
}

function spreadFigure(sigma, critical) {
  if (sigma === null || critical === null) return null;
  const ratio = sigma / critical;
  const sentence = ratio > 1 ? t("spread_above", { ratio: num(ratio, 2) }) : t("spread_below", { ratio: num(ratio, 2) });
  return el("figure", {}, el("figcaption", {}, t("spread_title")), spreadPicture(sigma, critical), el("p", { class: "quiet" }, sentence));
}

function fineDetail([, spreads, predicted, counts, sampled, gates, entropies, gateAlong, entropyAlong, replayed], flat) {
  const [gate, fraction] = spreads;
  const how = t(sampled ? "sampled" : "exact");
  const bad = counts[1] + counts[2] > 0 ? `; ${t("rows_bad", { empty: thousands(counts[1]), invalid: thousands(counts[2]) })}` : "";
  return [
    theoryTable(gate, fraction, predicted),
    gates && gates.some(Boolean) && histogram(gates, t("histogram_gate"), gate[2], true),
    entropies && entropies.some(Boolean) && histogram(entropies, t("histogram_entropy"), fraction[2], false),
    gateAlong && sequenceFigure(gateAlong, entropyAlong),
    replayed && headWhatIf(replayed),
    spreadsTable(spreads),
    factsTable(flat),
    el("p", { class: "quiet" }, t("rows_line", { rows: thousands(counts[0]), how }) + bad),
  ];
}

// What this head would do under each rule: a bar for its gate, and its entropy beside it. Both come in
// whole thousandths, of which 0 may stand for 1e-4 as for 1e-12.
function headWhatIf(replayed) {
  const rows = data.what_if.map((rule, i) => {
    const [gate, entropy] = (replayed[i] || []).map((value) => (value === null ? null : value / 1000));
    if (gate === undefined) return null;
    const bar = el("span", { class: "gate-bar", "aria-hidden": "true" });
    bar.style.inlineSize = `${Math.max(1, Math.round((gate || 0) * 56))}px`;
    return el("tr", { class: rule.as_is ? "as-is" : null }, el("th", { scope: "row" }, rule.as_is ? say(rule.rule) : name(say(rule.rule))),
      el("td", {}, bar), [gate, entropy].map((value) => el("td", { class: "number" }, value === 0 ? "< 0.001" : num(value))));
  }).filter(Boolean);
  if (!rows.length) return null;
  const heads = [t("gate"), t("entropy_fraction")].map((text) => el("th", { scope: "col", class: "number" }, text));
  return el("div", { class: "figure" }, el("p", { class: "figcaption" }, t("what_if")),
    el("table", {}, el("thead", {}, el("tr", {}, el("td"), el("td"), heads)), el("tbody", {}, rows)));
}

function theoryTable(gate, fraction, predicted) {
  const rows = [[t("gate"), gate[0], predicted[0]], [t("entropy_fraction"), fraction[0], predicted[1]]].map(([label, measured, expected]) =>
    el("tr", {}, el("th", { scope: "row" }, label), el("td", { class: "number" }, num(measured)), el("td", { class: "number" }, num(expected))));
  const heads = [t("measured"), t("predicted")].map((text) => el("th", { scope: "col", class: "number" }, text));
  return el("div", { class: "figure" }, el("p", { class: "figcaption" }, t("theory_title")),
    el("table", {}, el("thead", {}, el("tr", {}, el("td"), heads)), el("tbody", {}, rows)));
}

function sequenceFigure(gates, entropies) {
  const parts = (values) => values.map((value) => (value === null ? null : value / 1000));
  const length = Math.max(gates.length, entropies.length);
  if (!length) return null;
  const { drawn } = lines([{ values: parts(gates), className: "gate" }, { values: parts(entropies), className: "entropy" }], {
    width: 260, height: 110, domain: { low: 0, high: 1, log: false }, ticks: [0, 0.5, 1], left: 30,
    xLabels: [[0, t("position_start"), "start"], [Math.max(length, 2) - 1, t("position_end"), "end"]],
  });
  return el("figure", {}, el("figcaption", {}, t("position_title")),
    svg("svg", { viewBox: "0 0 260 110", role: "img", "aria-label": t("position_title") }, drawn),
    el("p", { class: "key" }, el("span", { class: "gate" }, t("gate")), el("span", { class: "entropy" }, t("entropy_fraction"))));
}

function spreadsTable(spreads) {
  const labels = ["gate", "entropy_fraction", "entropy", "top1", "n_eff"];
  const heads = [t("mean"), "p10", "p50", "p90"];
  return el("div", { class: "figure" }, el("p", { class: "figcaption" }, t("spreads_title")),
    el("table", { class: "spreads" }, el("thead", {}, el("tr", {}, el("td"), heads.map((text) => el("th", { scope: "col", class: "number" }, text)))),
      el("tbody", {}, spreads.map((spread, i) => el("tr", {}, el("th", { scope: "row" }, t(labels[i])), spread.map((value) => el("td", { class: "number" }, num(value))))))));
}

function factsTable(flat) {
  const facts = ["max_logit", "logit_std", "sink"].map((key) => el("div", {}, el("dt", {}, t(key)), el("dd", {}, num(columns[key][flat]))));
  return el("dl", { class: "facts small" }, facts);
}
