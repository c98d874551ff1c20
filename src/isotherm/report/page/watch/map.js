// The layer × time map. Neighbouring cells of one colour are drawn as one.
const rowHeight = data.layers.length <= 8 ? 26 : data.layers.length <= 24 ? 18 : data.layers.length <= 60 ? 10 : 6;

function mapPicture() {
  const domain = statDomain();
  const height = data.layers.length * rowHeight;
  const sharp = statOf(view.stat).sharp_high;
  const colour = (value) => (value === null ? null : mix(sharp ? 1 - along(domain, value) : along(domain, value)));
  const skip = rowHeight >= 12 ? 1 : Math.ceil(14 / rowHeight);
  const picture = svg("svg", { id: "map-picture", viewBox: `0 0 ${WIDE} ${height + 22}`, role: "img", "aria-label": t("map_label", { statistic: statName(view.stat) }), onclick: mapClick, onpointermove: mapHover, onpointerleave: hideTip },
    data.layers.map((layer, row) => svg("g", {}, stripe(layerSeries(view.stat, row).map(colour), row * rowHeight),
      row % skip === 0 && svg("text", { x: LEFT - 8, y: row * rowHeight + rowHeight / 2 + 4, "text-anchor": "end", class: row === view.row ? "loud" : null }, String(layer[0])))),
    svg("rect", { class: "here-row", x: LEFT - 2, y: view.row * rowHeight, width: WIDE - LEFT - RIGHT + 4, height: rowHeight }),
    rings(), cursorLine(0, height), stepAxis(height + 16));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("map_label", { statistic: statName(view.stat) }) }, picture);
}

function stripe(colours, y) {
  const drawn = [];
  let start = 0;
  for (let at = 1; at <= colours.length; at += 1) {
    const broken = at === colours.length || colours[at] !== colours[start] || data.first[at] - data.last[at - 1] > 3 * spacing;
    if (!broken) continue;
    if (colours[start] !== null) {
      const x = across(data.first[start] - spacing / 2);
      const joined = at < colours.length && data.first[at] - data.last[at - 1] <= 3 * spacing;
      const end = joined ? across((data.last[at - 1] + data.first[at]) / 2) : across(data.last[at - 1] + spacing / 2);
      drawn.push(svg("rect", { x: x.toFixed(2), y: y + 0.5, width: Math.max(end - x + 0.3, 0.5).toFixed(2), height: rowHeight - 1, fill: colours[start] }));
    }
    start = at;
  }
  return drawn;
}

// Where alerts were told.
function rings() {
  return data.events.filter(([, kind, , row]) => kind === "alert" && row !== null).map(([step, , , row]) => svg("circle", {
    class: "ring", cx: across(step).toFixed(1), cy: row * rowHeight + rowHeight / 2, r: Math.min(rowHeight / 2 - 1, 6) }));
}

function placeAt(event) {
  const box = document.getElementById("map-picture").getBoundingClientRect();
  const step = begin + (((event.clientX - box.left) / box.width) * WIDE - LEFT) / (WIDE - LEFT - RIGHT) * (finish - begin);
  const row = Math.floor(((event.clientY - box.top) / box.width) * WIDE / rowHeight);
  if (row < 0 || row >= data.layers.length || step < begin || step > finish) return null;
  let moment = momentAt(step);
  if (moment > 0 && step - data.last[moment - 1] < data.first[moment] - step) moment -= 1;
  return { row, moment };
}

function mapClick(event) {
  const place = placeAt(event);
  if (!place) return;
  choose(place.row, null, place.moment);
  refresh();
}

function mapHover(event) {
  const place = placeAt(event);
  const tip = document.getElementById("tip");
  if (!place) { hideTip(); return; }
  const value = layerSeries(view.stat, place.row)[place.moment];
  tip.replaceChildren(el("strong", {}, layerName(place.row)), el("span", {}, momentName(place.moment)),
    el("span", {}, `${statName(view.stat)} ${value === null ? t("no_value") : num(value)}`));
  tip.hidden = false;
  tip.style.left = `${Math.min(Math.max(event.clientX + 14, 8), document.documentElement.clientWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 18}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

function rampLegend() {
  const domain = statDomain();
  const sharp = statOf(view.stat).sharp_high;
  const steps = Array.from({ length: 48 }, (_, i) => svg("rect", { x: i * 5, width: 5.5, height: 10, fill: mix(i / 47) }));
  const ends = [0, 0.5, 1].map((part) => num(at(domain, sharp ? 1 - part : part)));
  return el("div", { class: "legend ramp" }, el("span", {}, t("sharp")),
    svg("svg", { viewBox: "0 0 240 26", width: 240, height: 26, role: "img", "aria-label": ends.join(" … ") }, steps,
      ends.map((text, i) => svg("text", { x: i * 120, y: 23, "text-anchor": ["start", "middle", "end"][i] }, text))),
    el("span", {}, t("open")));
}
