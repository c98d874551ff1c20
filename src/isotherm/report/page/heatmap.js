// The layer × head map: a grid a keyboard can walk, in which dark is always sharp.
let cells = [];
const cursor = { row: 0, place: 0 };

function cellColour(key, flat, domain) {
  const state = columns.state[flat];
  if (key === "state") return data.state_kinds[state].colour;
  const value = columns[key][flat];
  if (value === null) return null;
  const part = along(domain, value);
  return mix(statOf(key).sharp_high ? 1 - part : part);
}

const cellValue = (key, flat) => (key === "state" ? "" : columns[key][flat] === null ? t("no_value") : num(columns[key][flat]));

function cellLabel(row, place, flat) {
  return t("cell_label", {
    layer: data.layers[row].index, head: headId(row, place), state: stateName(columns.state[flat]),
    statistic: view.stat === "state" ? "" : statName(view.stat), value: cellValue(view.stat, flat),
  }).replace(/[,，]\s*$/, "");
}

const few = widest <= 24;

function paint() {
  const domain = view.stat === "state" ? null : domainOf(view.stat);
  cells.forEach((cellsOfRow, row) => cellsOfRow.forEach((cell, place) => {
    const flat = starts[row] + place;
    const colour = cellColour(view.stat, flat, domain);
    cell.style.backgroundColor = colour || "";
    const calm = view.stat === "state" && columns.state[flat] === "balanced";
    cell.style.color = colour && !calm ? inkOn(colour) : "";
    cell.classList.toggle("calm", calm);
    cell.classList.toggle("hollow", colour === null);
    cell.setAttribute("aria-label", cellLabel(row, place, flat));
    if (few) cell.textContent = view.stat === "state" || colour === null ? data.state_kinds[columns.state[flat]].glyph : "";
  }));
}

function buildGrid() {
  const flagged = new Set(data.findings.map((finding) => `${finding.layer}.${finding.head}`));
  const skip = data.layers.length <= 80 ? 1 : 4;
  cells = [];
  const rows = data.layers.map((layer, row) => {
    const made = Array.from({ length: layer.shape[0] }, (_, place) => el("div", {
      role: "gridcell", tabindex: "-1", "data-row": row, "data-place": place, "aria-colindex": place + 2,
      class: flagged.has(`${layer.index}.${headId(row, place)}`) ? "flagged" : null,
    }));
    cells.push(made);
    return el("div", { role: "row", "aria-rowindex": row + 2 }, el("div", { role: "rowheader", title: layer.name, "aria-label": String(layer.index) }, row % skip ? "" : String(layer.index)), made);
  });
  const every = widest <= 16 ? 1 : widest <= 40 ? 4 : 8;
  const header = el("div", { role: "row", class: "heads", "aria-rowindex": 1 },
    el("div", { role: "columnheader" }, t("layer")),
    Array.from({ length: widest }, (_, place) => el("div", { role: "columnheader" }, place % every ? "" : el("span", {}, String(place)))));
  const grid = el("div", {
    id: "grid", role: "grid", class: few ? "few" : widest > 40 ? "many" : null, "aria-label": t("grid_label", { statistic: statName(view.stat) }), "aria-rowcount": data.layers.length + 1,
    "aria-colcount": widest + 1, onkeydown: gridKey, onclick: gridClick, onpointermove: gridHover, onpointerleave: hideTip, onfocusin: gridFocus, onfocusout: hideTip,
  }, header, rows);
  grid.style.setProperty("--heads", widest);
  grid.style.setProperty("--least", `${widest <= 16 ? 16 : widest <= 40 ? 11 : widest <= 96 ? 7 : 4}px`);
  grid.style.setProperty("--tall", `${data.layers.length <= 16 ? 30 : data.layers.length <= 40 ? 20 : data.layers.length <= 80 ? 12 : 9}px`);
  return el("div", { class: "scroll map" }, grid);
}

function moveCursor(row, place, focus = true) {
  const old = cells[cursor.row] && cells[cursor.row][cursor.place];
  if (old) old.tabIndex = -1;
  cursor.row = row;
  cursor.place = place;
  const cell = cells[row][place];
  if (!cell) return;
  cell.tabIndex = 0;
  if (focus) cell.focus();
}

function gridKey(event) {
  const { row, place } = cursor;
  const last = cells[row].length - 1;
  const nextRow = (from, by) => {
    let to = from + by;
    while (cells[to] && cells[to].length === 0) to += by;
    return cells[to] ? to : from;
  };
  const go = (to, at) => moveCursor(to, Math.min(Math.max(at, 0), cells[to].length - 1));
  const moves = {
    ArrowRight: () => go(row, place + 1), ArrowLeft: () => go(row, place - 1),
    ArrowDown: () => go(nextRow(row, 1), place), ArrowUp: () => go(nextRow(row, -1), place),
    Home: () => (event.ctrlKey ? go(nextRow(-1, 1), 0) : go(row, 0)),
    End: () => (event.ctrlKey ? go(nextRow(cells.length, -1), Infinity) : go(row, last)),
    Enter: () => openHead(row, place, true), " ": () => openHead(row, place, true),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}

const cellAt = (event) => event.target.closest && event.target.closest("[role=gridcell]");
const whereIs = (cell) => [Number(cell.dataset.row), Number(cell.dataset.place)];

function gridClick(event) {
  const cell = cellAt(event);
  if (!cell) return;
  moveCursor(...whereIs(cell));
  openHead(...whereIs(cell), false);
}

function gridHover(event) {
  const cell = cellAt(event);
  if (cell) showTip(cell); else hideTip();
}

function gridFocus(event) {
  const cell = cellAt(event);
  if (cell) showTip(cell);
}

function showTip(cell) {
  const [row, place] = whereIs(cell);
  const flat = starts[row] + place;
  const kind = data.state_kinds[columns.state[flat]];
  const tip = document.getElementById("tip");
  tip.replaceChildren(
    el("strong", {}, headTitle(row, place)), el("span", {}, `${kind.glyph} ${stateName(columns.state[flat])}`),
    view.stat === "state" ? el("span", {}, `${t("gate_p50")} ${cellValue("gate_p50", flat)}`) : el("span", {}, `${statName(view.stat)} ${cellValue(view.stat, flat)}`));
  tip.hidden = false;
  const box = cell.getBoundingClientRect();
  const left = Math.min(Math.max(box.left + box.width / 2 - tip.offsetWidth / 2, 8), document.documentElement.clientWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

function legend() {
  if (view.stat === "state") {
    const entries = Object.entries(data.states).filter(([, count]) => count > 0).map(([state, count]) => {
      const { colour, glyph } = data.state_kinds[state];
      const swatch = el("i", { class: "swatch", "aria-hidden": "true" }, glyph);
      swatch.style.backgroundColor = colour;
      swatch.style.color = inkOn(colour);
      return el("li", {}, swatch, `${stateName(state)} `, el("b", {}, thousands(count)));
    });
    return el("ul", { class: "legend" }, entries, flaggedKey("li"));
  }
  const stat = statOf(view.stat);
  const domain = domainOf(view.stat);
  const steps = Array.from({ length: 48 }, (_, i) => svg("rect", { x: i * 5, width: 5.5, height: 10, fill: mix(i / 47) }));
  const ends = [0, 0.5, 1].map((part) => String(Number(at(domain, stat.sharp_high ? 1 - part : part).toPrecision(3))));
  return el("div", { class: "legend ramp" }, el("span", {}, t("sharp")),
    svg("svg", { viewBox: "0 0 240 26", width: 240, height: 26, role: "img", "aria-label": ends.join(" … ") }, steps,
      ends.map((text, i) => svg("text", { x: i * 120, y: 23, "text-anchor": ["start", "middle", "end"][i] }, text))),
    el("span", {}, t("open")), flaggedKey("span"));
}

function flaggedKey(tag) {
  return data.findings.some((finding) => finding.head !== null) && el(tag, {}, el("i", { class: "dot", "aria-hidden": "true" }), t("flagged"));
}

// For those who cannot see the map: the same numbers as a table, made when asked for.
function mapTable() {
  const box = el("div");
  const holder = el("details", { class: "alternative", ontoggle: () => { if (holder.open) box.replaceChildren(...[numbersTable()].flat()); } },
    el("summary", {}, t("as_table")), box);
  return holder;
}

function numbersTable() {
  const heads = [[t("layer")], ...Array.from({ length: widest }, (_, place) => [String(place), "number"])];
  const rows = data.layers.map((layer, row) => el("tr", {}, el("th", { scope: "row" }, String(layer.index)),
    Array.from({ length: layer.shape[0] }, (_, place) => {
      const flat = starts[row] + place;
      return el("td", { class: "number" }, view.stat === "state" ? stateName(columns.state[flat]) : num(columns[view.stat][flat]));
    })));
  return table(statName(view.stat), heads, rows, { first: 200 });
}
