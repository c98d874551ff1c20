// Tables about layers: what they do, the scale they use, what would bring them to their target.
const cell = (value, digits) => el("td", { class: "number" }, num(value, digits));

function buildLayers() {
  const rows = data.layers.map((layer) => {
    const [sigma, fraction, gate10, gate50, most] = layer.line;
    const [heads, kv, dim, keys] = layer.shape;
    const frozen = sigma !== null && layer.critical !== null && sigma > layer.critical;
    return el("tr", {},
      el("th", { scope: "row" }, String(layer.index)), el("td", {}, name(layer.name)),
      el("td", {}, say(layer.kind)), el("td", {}, name(say(layer.implementation))),
      el("td", { class: "number" }, `${heads}, ${kv}, ${dim}, ${thousands(keys)}`),
      el("td", { class: frozen ? "number bad" : "number" }, num(sigma)), cell(layer.critical), cell(fraction), cell(gate10, 2),
      el("td", { class: "number gauge" }, num(gate50), barPicture(gate50, `${t("gate_p50")} ${num(gate50)}`)), cell(most));
  });
  const heads = [[t("layer")], [t("name")], [t("kind")], [t("implementation")], [t("shape"), "number"], ["σ", "number"], ["σ_c", "number"],
    [t("entropy_fraction"), "number"], [t("gate_p10"), "number"], [t("gate_p50"), "number"], [t("max_logit"), "number"]];
  return section("layers", t("layers"), t("layers_lead"), table(t("layers"), heads, rows, { className: "wide" }));
}

function buildAudit() {
  const signs = { true: ["✓", "yes", "good"], false: ["✗", "no", "bad"], null: ["?", "unknown", "quiet"] };
  const wrong = data.layers.filter((layer) => layer.agrees === false).length;
  const ordered = [...data.layers].sort((a, b) => (b.agrees === false) - (a.agrees === false));
  const rows = ordered.map((layer) => {
    const [sign, word, tone] = signs[String(layer.agrees)];
    return el("tr", {}, el("th", { scope: "row" }, String(layer.index)), layer.scale.map((value) => cell(value, 4)),
      el("td", { class: tone }, `${sign} ${t(word)}`), el("td", {}, name(say(layer.rule) || "–")), el("td", {}, name(say(layer.source) || "–")),
      el("td", { class: "note" }, said(say(layer.note))));
  });
  const heads = [[t("layer")], [t("passed"), "number"], [t("effective"), "number"], [t("declared"), "number"], [t("agrees")], [t("rule")], [t("source")], [""]];
  const known = data.layers.filter((layer) => layer.agrees !== null).length;
  const summary = wrong ? t("audit_differ", { n: wrong, total: data.layers.length }) : known === data.layers.length ? t("audit_agree", { n: known }) : "";
  return section("audit", t("audit"), t("audit_lead"), summary && el("p", { class: wrong ? "summary bad" : "summary good" }, summary),
    table(t("audit"), heads, rows, { className: "wide", first: 16 }), adviceList());
}

function adviceList() {
  const advised = data.layers.filter((layer) => layer.advice);
  if (!advised.length) return null;
  const items = advised.map(({ index, advice: [spread, target, factor, how] }) => el("li", {},
    el("b", {}, t("layer_n", { layer: index })), " ", t("advice_line", { spread: num(spread), target: num(target), factor: num(factor) }), el("br"), said(say(how))));
  const list = el("ul", { class: "advice" }, items.slice(0, 12));
  return [el("h3", {}, t("advice")), list, items.length > 12 && more(items.length, () => list.append(...items.slice(12)))];
}

function buildComparisons() {
  if (!data.comparisons.length && !data.not_compared.length) return null;
  const rows = data.comparisons.map(([first, second, layer, statistic, difference, tolerance, agree]) => el("tr", {},
    el("th", { scope: "row" }, name(say(first)), " · ", name(say(second))), el("td", {}, difference ? name(say(statistic)) : "–"),
    el("td", { class: "number" }, layer === null ? "–" : String(layer)), cell(difference, 2), cell(tolerance, 2),
    el("td", { class: agree ? "good" : "bad" }, agree ? `✓ ${t("yes")}` : `✗ ${t("no")}`)));
  const heads = [[t("pair")], [t("statistic")], [t("layer"), "number"], [t("difference"), "number"], [t("tolerance"), "number"], [t("agrees")]];
  return section("implementations", t("implementations"), t("implementations_lead"), rows.length > 0 && table(t("implementations"), heads, rows),
    data.comparisons.filter(([, , , , , , , on]) => on !== null).map(([first, second, , , , , , on]) =>
      el("p", { class: "quiet" }, t("compared_on", { first: say(first), second: say(second), part: say(on) }))),
    data.not_compared.map(([which, why]) => el("p", { class: "quiet" }, t("not_compared", { name: which, why: say(why) }))));
}

function buildUnseen() {
  if (!data.unseen.length) return null;
  const rows = data.unseen.map(([path, module, why]) => el("tr", {}, el("th", { scope: "row" }, name(say(path))), el("td", {}, name(say(module))), el("td", { class: "note" }, said(say(why)))));
  return section("unseen", t("unseen"), t("unseen_lead"), table(t("unseen"), [[t("name")], [t("module")], [t("why")]], rows),
    data.left_out.unseen > 0 && el("p", { class: "quiet" }, t("more_unseen", { n: data.left_out.unseen })));
}

function buildContext() {
  if (!data.context) return null;
  const { length, seen, now, then, factor, message } = data.context;
  const facts = [[t("context_now", { n: thousands(seen) }), now], [t("context_then", { n: thousands(length) }), then], [t("context_factor"), factor]];
  return section("context", t("context"), null, el("p", { class: "lead" }, said(say(message))),
    el("dl", { class: "facts" }, facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, num(value))))));
}

function buildMethod() {
  const { left_out: left, cost: [seconds, model, peak] } = data;
  const how = say(data.how_got);
  return section("method", t("method"), null, el("ul", { class: "method" },
    [t("method_exact", { how, amount: say(data.model.amount) }), t("method_gate"), t("method_theory"), t("method_digits", { n: left.packed ? 3 : 4 }),
      ...data.remarks.map(say), left.details > 0 && t("method_left", { n: thousands(left.details) })].filter(Boolean).map((text) => el("li", {}, text))),
    el("dl", { class: "facts" },
      el("div", {}, el("dt", {}, t("cost")), el("dd", {}, t("cost_line", { seconds: num(seconds), model: num(model), peak: num(peak) }))),
      el("div", {}, el("dt", {}, t("versions")), el("dd", {}, data.versions.map(([what, which], i) => [i > 0 && ", ", name(`${what} ${which}`, "span")])))));
}
