// What to act on: findings alike stand together, and what to do about them is said once.
function buildFindings() {
  const groups = [];
  for (const finding of data.findings) {
    const last = groups[groups.length - 1];
    const alike = last && ["code", "severity", "advice", "threshold"].every((key) => last[0][key] === finding[key]);
    if (alike) last.push(finding); else groups.push([finding]);
  }
  const articles = groups.map(groupArticle);
  const left = data.left_out.findings;
  return section("findings", t("findings"), null,
    articles.length ? articles : el("p", { class: "lead" }, t(data.layers.length ? "healthy" : "no_heads")),
    left > 0 && el("p", { class: "quiet" }, t("left_findings", { n: thousands(left) })));
}

function groupArticle(group) {
  const [{ code, severity, advice, threshold }] = group;
  const items = group.map(findingItem);
  const list = el("ul", {}, items.slice(0, 6));
  const kind = data.severities[severity];
  return el("article", { class: `finding ${severity}` },
    el("p", { class: "kind" }, el("span", { class: "glyph", "aria-hidden": "true" }, kind.glyph), el("span", {}, either(kind.name)), name(code)),
    el("div", {}, list, items.length > 6 && more(items.length, () => list.append(...items.slice(6))),
      el("dl", { class: "why" },
        say(advice) && el("div", {}, el("dt", {}, t("what_to_do")), said(say(advice), "dd")),
        say(threshold) && el("div", {}, el("dt", {}, t("threshold")), said(say(threshold), "dd")))));
}

function findingItem(finding) {
  const { layer, head, evidence } = finding;
  const text = layer === null ? t("whole_model") : head === null ? t("layer_n", { layer }) : t("head_n", { layer, head });
  const row = rowOf.get(layer);
  const place = row === undefined || head === null ? -1 : headPlace(row, head);
  const reachable = place >= 0 && place < data.layers[row].shape[0];
  const where = reachable
    ? el("button", { type: "button", class: "place", onclick: () => { moveCursor(row, place); openHead(row, place, true); } }, text)
    : el("span", { class: "place" }, text);
  const facts = evidence.map(([key, value]) => el("span", { class: "fact" }, name(key, "span"), " ", name(Array.isArray(value) ? either(value) : num(value), "b")));
  return el("li", {}, el("p", { class: "message" }, said(either(finding.message)), " ", where),
    facts.length > 0 && el("p", { class: "evidence", "aria-label": t("evidence") }, facts));
}
