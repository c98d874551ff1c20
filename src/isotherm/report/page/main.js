// The whole page, built again when the language changes.
function buildHero() {
  const { model, severity } = data;
  const glyph = severity ? data.severities[severity].glyph : data.layers.length ? "✔" : "?";
  const facts = [
    [t("fact_architecture"), name(model.architecture, "span")],
    [t("fact_shape"), `${model.layers} × ${model.heads}`],
    [t("fact_parameters"), model.parameters],
    [t("fact_batch"), say(model.amount)],
    [t("fact_precision"), name(`${model.dtype}, ${model.device}`, "span")],
    [t("fact_rows"), say(data.how_got)],
    [t("fact_weights"), [name(model.origin, "span"), model.at_initialisation && ` (${t("at_initialisation")})`, model.compiled && `; ${t("compiled")}`]],
    [t("fact_created"), name(data.created.replace("T", " ").slice(0, 16), "span")],
  ];
  return el("div", { class: "hero" },
    el("p", { class: "eyebrow" }, t("eyebrow")), name(model.name, "h1"),
    el("p", { class: `verdict ${severity || (data.layers.length ? "healthy" : "warning")}` }, el("span", { class: "glyph", "aria-hidden": "true" }, glyph), " ", say(data.verdict)),
    stateBar(), el("dl", { class: "facts" }, facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))));
}

// All heads as one bar, a stretch for each state.
function stateBar() {
  const total = Object.values(data.states).reduce((a, b) => a + b, 0);
  if (!total) return null;
  let x = 0;
  const parts = Object.entries(data.states).filter(([, count]) => count > 0).map(([state, count]) => {
    const width = Math.max((count / total) * 1000, 4);
    const title = t("states_line", { n: thousands(count), total: thousands(total), state: stateName(state) });
    const part = svg("rect", { x, width, height: 10, fill: data.state_kinds[state].colour }, svg("title", {}, title));
    x += width + 2;
    return part;
  });
  return el("div", { class: "states" },
    svg("svg", { viewBox: `0 0 ${x - 2} 10`, preserveAspectRatio: "none", role: "img", "aria-label": t("states_title") }, parts),
    el("p", {}, Object.entries(data.states).filter(([, count]) => count > 0).map(([state, count]) =>
      el("span", {}, `${data.state_kinds[state].glyph} ${stateName(state)} `, el("b", {}, thousands(count))))));
}

function buildHeads() {
  if (!headCount) return section("heads", t("heads"), t("no_heads"));
  const about = el("div", { class: "about", "aria-live": "polite" });
  const grid = buildGrid();
  const alternative = el("div", {}, mapTable());
  const explain = () => {
    const captions = view.stat === "state" ? [t("state_caption"), t("state_rules")] : [either(statOf(view.stat).caption)];
    about.replaceChildren(legend(), ...captions.map((text) => el("p", { class: "quiet" }, text)));
    document.getElementById("grid")?.setAttribute("aria-label", t("grid_label", { statistic: statName(view.stat) }));
  };
  const choose = () => { view.stat = select.value; paint(); explain(); alternative.replaceChildren(mapTable()); writeHash(); };
  const options = ["state", ...data.statistics.map((stat) => stat.key)].map((key) => el("option", { value: key, selected: key === view.stat }, statName(key)));
  const select = el("select", { id: "stat", onchange: choose }, options);
  if (!view.open) view.open = mostRemarkable();
  paint();
  explain();
  cells[view.open[0]][view.open[1]].setAttribute("aria-selected", "true");
  moveCursor(...view.open, false);
  const left = data.left_out.layers;
  return section("heads", t("heads"), t("heads_lead"),
    el("div", { class: "beside map-and-detail" },
      el("div", {}, el("div", { class: "controls" }, el("label", { for: "stat" }, t("statistic")), select, downloadButtons()), about, grid,
        left > 0 && el("p", { class: "quiet" }, t("left_layers", { shown: data.layers.length, n: left })), alternative),
      buildDetail()));
}

// Details come most remarkable first.
function mostRemarkable() {
  const flat = data.details.length ? data.details[0][0] : 0;
  const row = starts.findLastIndex((start, i) => start <= flat && data.layers[i].shape[0] > 0);
  return [row, flat - starts[row]];
}

function render() {
  document.documentElement.lang = view.lang === "zh" ? "zh-CN" : "en";
  document.documentElement.dataset.theme = theme();
  hideTip();
  document.getElementById("page").replaceChildren(
    el("a", { class: "skip", href: "#heads", onclick: (event) => { event.preventDefault(); document.querySelector("#heads select")?.focus(); } }, t("skip")),
    buildBar(),
    el("main", {}, buildHero(), buildFindings(), buildHeads(), headCount > 0 && [buildCurves(), buildAudit(), buildLayers()], buildWhatIf(),
      buildComparisons(), buildUnseen(), buildContext(), buildMethod()),
    el("footer", {}, t("footer")));
}

readHash();
view.chosen = Boolean(view.open);
render();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
addEventListener("hashchange", () => { readHash(); render(); });
