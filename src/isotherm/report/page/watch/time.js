// The axis of steps that every picture shares, and the loss with the events above the map.
const WIDE = 1000;
const LEFT = 62;
const RIGHT = 12;
const gaps = data.first.slice(1).map((first, i) => first - data.last[i]).filter((gap) => gap > 0).sort((a, b) => a - b);
const spacing = gaps.length ? gaps[Math.floor(gaps.length / 2)] : 1;
const begin = (data.first[0] ?? 0) - spacing / 2;
const finish = (data.last[moments - 1] ?? 1) + spacing / 2;
const across = (step) => LEFT + ((step - begin) / (finish - begin)) * (WIDE - LEFT - RIGHT);
const middle = (at) => across((data.first[at] + data.last[at]) / 2);

function stepTicks() {
  const size = 10 ** Math.floor(Math.log10(Math.max(finish - begin, 1) / 5));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => (finish - begin) / one <= 8) || size * 10;
  const ticks = [];
  for (let at = Math.ceil(begin / step) * step; at <= finish; at += Math.max(step, 1)) if (at >= 0) ticks.push(Math.abs(at));
  return ticks;
}

function stepAxis(y) {
  return svg("g", {}, stepTicks().map((step) => svg("text", { x: across(step), y, "text-anchor": "middle" }, thousands(step))));
}

// A line over time, broken where a reading is missing or lies far from the last.
function trace(values, y, attributes) {
  let pen = "M";
  let before = null;
  const path = values.map((value, at) => {
    if (value === null) { pen = "M"; return ""; }
    if (before !== null && data.first[at] - data.last[before] > 3 * spacing) pen = "M";
    const piece = `${pen}${middle(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
    before = at;
    return piece;
  }).join("");
  return svg("path", { ...attributes, d: path });
}

function valueTicks(domain) {
  if (!domain.log) return [domain.low, (domain.low + domain.high) / 2, domain.high];
  const ticks = [];
  for (let power = Math.ceil(Math.log10(domain.low)); 10 ** power <= domain.high; power += 1) ticks.push(10 ** power);
  return ticks.length > 1 ? ticks : [domain.low, domain.high];
}

function cursorLine(top, bottom) {
  return svg("path", { class: "cursor-line", d: `M${middle(view.moment).toFixed(1)} ${top}V${bottom}` });
}

const MARKS = { alert: "M-5 5L0 -5L5 5Z", valve: "M0 -5L5 0L0 5L-5 0Z", trouble: "M-4 -4L4 4M4 -4L-4 4", gap: "M-5 0H5", resumed: "M-3 -5V5L4 0Z" };

function eventMarks(y) {
  return svg("g", {}, [...data.events].reverse().map(([step, kind, , row, head, message]) => svg("path", {
    class: `event ${kind}`, d: MARKS[kind], transform: `translate(${Math.min(Math.max(across(step), LEFT), WIDE - RIGHT).toFixed(1)} ${y})`,
    onclick: () => { choose(row, head, momentAt(step)); refresh(); },
  }, svg("title", {}, `${t("moment_value", { step: thousands(step) })} · ${either(message)}`))));
}

function lossPicture() {
  const known = data.loss.some((value) => value !== null);
  if (!known && !data.events.length) return null;
  const domain = domainFor(data.loss, false);
  const [top, base, height] = [24, 104, 112];
  const y = (value) => base - Math.min(Math.max(along(domain, value), 0), 1) * (base - top);
  return el("figure", { class: "over-time" }, el("figcaption", {}, t("loss")),
    el("div", { class: "scroll" }, svg("svg", { viewBox: `0 0 ${WIDE} ${height}`, role: "img", "aria-label": t("loss_label") },
      known && [svg("path", { class: "axis", d: `M${LEFT} ${base}H${WIDE - RIGHT}` }),
        [domain.low, domain.high].map((value) => svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, num(value))),
        trace(data.loss, y, { class: "line present" })],
      cursorLine(top, base), eventMarks(10))));
}
