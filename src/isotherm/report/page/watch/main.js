// The whole page of a run. The part below the controls is built again when something is chosen.
function buildHero() {
  const alerts = data.events.some(([, kind]) => kind === "alert");
  return el("div", { class: "hero" }, el("p", { class: "eyebrow" }, t("eyebrow")), name(data.model, "h1"),
    el("p", { class: `verdict ${alerts ? "warning" : "healthy"}` }, el("span", { class: "glyph", "aria-hidden": "true" }, alerts ? "▲" : "✔"), " ", either(data.verdict)),
    el("dl", { class: "facts" }, data.facts.map(([label, value]) => el("div", {}, el("dt", {}, either(label)), el("dd", {}, either(value))))));
}

function buildMap() {
  if (!moments || !data.layers.length) return section("map", t("map"), t("no_readings"));
  const stat = el("select", { id: "stat", onchange: () => { view.stat = stat.value; refresh("stat"); } },
    data.statistics.map(({ key }) => el("option", { value: key, selected: key === view.stat }, statName(key))));
  const layer = el("select", { id: "layer", onchange: () => { choose(Number(layer.value), null, null); refresh("layer"); } },
    data.layers.map(([number, text], row) => el("option", { value: row, selected: row === view.row, translate: "no" }, `${number} · ${text}`)));
  const value = layerSeries(view.stat, view.row)[view.moment];
  const line = t("reading_line", { layer: layerName(view.row), moment: momentName(view.moment), statistic: statName(view.stat), value: value === null ? t("no_value") : num(value) });
  const moment = el("input", { type: "range", id: "moment", min: 0, max: moments - 1, step: 1, value: view.moment, "aria-valuetext": line, oninput: () => { view.moment = Number(moment.value); refresh("moment"); } });
  return section("map", t("map"), t("map_lead"),
    el("div", { class: "controls" },
      el("span", { class: "labelled" }, el("label", { for: "stat" }, t("statistic")), stat),
      el("span", { class: "labelled" }, el("label", { for: "layer" }, t("layer_choice")), layer)),
    el("div", { class: "about" }, rampLegend(), el("p", { class: "quiet" }, either(statOf(view.stat).caption)),
      data.together > 1 && el("p", { class: "quiet" }, t("together", { n: data.together }))),
    lossPicture(), mapPicture(),
    el("div", { class: "factor moment" }, el("label", { for: "moment" }, t("moment")), moment), el("p", { class: "reading", id: "reading", "aria-live": "polite" }, line));
}

function buildEvents() {
  if (!data.events.length) return section("events", t("events"), t("no_events"));
  const rows = data.events.map(([step, kind, rule, row, head, message]) => el("tr", { class: kind },
    el("td", { class: "number" }, thousands(step)),
    el("td", { class: "kind" }, el("span", { "aria-hidden": "true" }, data.kinds[kind].glyph), " ", either(data.kinds[kind].name)),
    el("td", {}, name(rule)), el("td", { class: "note" }, said(either(message))),
    el("td", {}, row !== null && el("button", { type: "button", class: "place", "aria-label": `${t("show")}: ${layerName(row)}`, onclick: () => { choose(row, head, momentAt(step)); refresh(); document.getElementById("map").scrollIntoView(); } }, t("show")))));
  const heads = [[t("col_step"), "number"], [t("col_kind")], [t("col_rule")], [t("col_message")], [t("col_where")]];
  return section("events", t("events"), null, table(t("events"), heads, rows, { first: 30 }),
    data.left_events > 0 && el("p", { class: "quiet" }, t("left_events", { n: data.left_events })));
}

function buildMethod() {
  return section("method", t("method"), null,
    el("ul", { class: "method" }, ["method_mean", "method_blank", "method_follow"].map((key) => el("li", {}, t(key)))),
    el("dl", { class: "facts" }, data.statistics.map((stat) => el("div", {}, el("dt", {}, either(stat.name)), el("dd", {}, either(stat.caption))))));
}

// What depends on a choice is built again; the control that was used keeps the focus.
function refresh(focus = null) {
  hideTip();
  document.getElementById("map").replaceWith(buildMap());
  document.getElementById("lines").replaceWith(buildLines());
  if (focus) document.getElementById(focus).focus();
  showMoment();
  writeHash();
}

// On a narrow screen the pictures are wider than it: keep the chosen step in sight.
function showMoment() {
  if (!moments) return;
  for (const one of document.querySelectorAll("#map .scroll, .over-time .scroll")) {
    one.scrollLeft = (middle(view.moment) / WIDE) * one.scrollWidth - one.clientWidth / 2;
  }
}

function render() {
  document.documentElement.lang = view.lang === "zh" ? "zh-CN" : "en";
  document.documentElement.dataset.theme = theme();
  hideTip();
  const shown = moments > 0 && data.layers.length > 0;
  document.getElementById("page").replaceChildren(
    el("a", { class: "skip", href: "#map", onclick: (event) => { event.preventDefault(); document.getElementById("stat")?.focus(); } }, t("skip")),
    buildBar(), el("main", {}, buildHero(), buildMap(), shown && buildLines(), buildEvents(), buildMethod()), el("footer", {}, t("footer")));
  showMoment();
}

if (data.worst !== null && moments) {
  const row = starts.findLastIndex((start, i) => start <= data.worst && data.layers[i][2] > 0);
  choose(row, data.worst - starts[row], null);
}
readHash();
render();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
addEventListener("hashchange", () => { readHash(); render(); });
