// The heads of the chosen layer over time, their numbers at the chosen moment, and the gradients of the layer.
const LIMITS = [100, 1e4];

function chart(series, domain, label, limits = []) {
  const [top, base, height] = [10, 230, 252];
  const y = (value) => base - Math.min(Math.max(along(domain, value), 0), 1) * (base - top);
  const inside = limits.filter((value) => value > domain.low && value < domain.high);
  return el("div", { class: "scroll" }, svg("svg", { viewBox: `0 0 ${WIDE} ${height}`, role: "img", "aria-label": label },
    valueTicks(domain).map((value) => [svg("path", { class: "grid", d: `M${LEFT} ${y(value).toFixed(1)}H${WIDE - RIGHT}` }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, num(value))]),
    inside.map((value) => svg("path", { class: "limit", d: `M${LEFT} ${y(value).toFixed(1)}H${WIDE - RIGHT}` })),
    series.map(([values, className]) => trace(values, y, { class: `line ${className}` })),
    cursorLine(top, base), stepAxis(height - 6)));
}

function buildLines() {
  const heads = headsOf(view.row);
  const known = heads.map((head) => [head, headSeries(view.stat, view.row, head)]).filter(([, values]) => values);
  const domain = domainFor(known.flatMap(([, values]) => values), statOf(view.stat).unit_interval);
  const chosen = headSeries(view.stat, view.row, view.head);
  const series = [...known.filter(([head]) => head !== view.head).map(([, values]) => [values, "other"]), ...(chosen ? [[chosen, "present"]] : [])];
  const select = el("select", { id: "head", onchange: () => { view.head = Number(select.value); refresh("head"); } },
    heads.map((head) => el("option", { value: head, selected: head === view.head }, t("head_n", { head }))));
  const missing = heads.length - known.length;
  return section("lines", t("heads", { layer: layerName(view.row) }), t("heads_lead"),
    el("p", { class: "where" }, name(data.layers[view.row][1])),
    el("div", { class: "controls" }, el("label", { for: "head" }, t("head_choice")), select),
    el("figure", { class: "over-time" }, el("figcaption", {}, statName(view.stat)),
      chart(series, domain, t("heads_label", { statistic: statName(view.stat), layer: layerName(view.row) }), view.stat === "max_logit" ? LIMITS : [])),
    missing > 0 && el("p", { class: "quiet" }, t("heads_missing", { n: missing })),
    headTable(known.map(([head]) => head)), gradientPicture());
}

function headTable(heads) {
  const caption = t("heads_table", { layer: layerName(view.row), moment: momentName(view.moment) });
  const columns = [[t("head_choice")], ...data.statistics.map((stat) => [either(stat.name), "number"])];
  const rows = heads.map((head) => el("tr", { class: head === view.head ? "as-is" : null }, el("th", { scope: "row" }, String(head)),
    data.statistics.map(({ key }) => el("td", { class: "number" }, num(headSeries(key, view.row, head)[view.moment])))));
  return [el("h3", {}, caption), table(caption, columns, rows, { className: "wide" })];
}

function gradientPicture() {
  const series = ["q", "k"].map((key) => gradientSeries(key, view.row));
  if (!series.flat().some((value) => value !== null)) return null;
  const domain = domainFor(series.flat(), false);
  return [el("h3", {}, t("gradients")), el("p", { class: "quiet" }, t("gradients_lead")),
    el("figure", { class: "over-time" },
      chart([[series[0], "gate"], [series[1], "entropy"]], domain, t("gradients_label", { layer: layerName(view.row) })),
      el("p", { class: "key" }, name("q", "span"), name("k", "span", { class: "entropy" })))];
}
