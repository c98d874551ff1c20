// Colours and small pictures, drawn by hand in SVG. Presentation attributes only: the policy allows no inline style.
function mix(fraction) {
  const ramp = data.ramp;
  const place = Math.min(Math.max(fraction, 0), 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  const channel = (colour, at) => parseInt(colour.slice(at, at + 2), 16);
  const parts = [1, 3, 5].map((at) => {
    const [from, to] = [channel(ramp[low], at), channel(ramp[low + 1], at)];
    return Math.round(from + (to - from) * (place - low)).toString(16).padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? data.ink[0] : data.ink[1];
}

// The part of a scale a value stands at, 0 at its least; logarithmic where values span decades.
function domainOf(key) {
  const stat = statOf(key);
  if (stat.unit_interval) return { low: 0, high: 1, log: false };
  const known = columns[key].filter((value) => value !== null);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low < 0 && high > 0) return { low: -Math.max(-low, high), high: Math.max(-low, high), log: false };
  return known.length ? { low, high, log: low > 0 && high / low > 30 } : { low: 0, high: 1, log: false };
}

function along({ low, high, log }, value) {
  if (high === low) return 0.5;
  return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

const at = ({ low, high, log }, part) => (log ? low * (high / low) ** part : low + (high - low) * part);

function barPicture(fraction, label) {
  const filled = fraction === null ? 0 : Math.min(Math.max(fraction, 0), 1) * 56;
  return svg("svg", { class: "bar", viewBox: "0 0 56 8", width: 56, height: 8, role: "img", "aria-label": label },
    svg("rect", { class: "track", width: 56, height: 8, rx: 2 }),
    filled > 0 && svg("rect", { width: Math.max(filled, 1.5), height: 8, rx: 2, fill: mix(fraction) }));
}

function histogram(counts, title, median, tint) {
  const [width, height, base] = [260, 84, 68];
  const most = Math.max(1, ...counts);
  const step = width / Math.max(counts.length, 1);
  const bars = counts.map((count, i) => count > 0 && svg("rect", {
    x: i * step + 0.75, y: base - (count / most) * (base - 8), width: Math.max(step - 1.5, 1), height: (count / most) * (base - 8),
    rx: 1, fill: tint ? mix((i + 0.5) / counts.length) : null, class: tint ? "cell" : "mark",
  }, svg("title", {}, `${num(i / counts.length, 2)}–${num((i + 1) / counts.length, 2)}: ${thousands(count)} ${t("rows")}`)));
  const tick = median !== null && median !== undefined && svg("path", { class: "median", d: `M${Math.min(Math.max(median * width, 1), width - 1)} 2V${base}` });
  return el("figure", {},
    el("figcaption", {}, title),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
      svg("path", { class: "axis", d: `M0 ${base + 0.5}H${width}` }), bars, tick,
      [0, 0.5, 1].map((x) => svg("text", { x: x * width, y: height - 2, "text-anchor": ["start", "middle", "end"][x * 2] }, String(x)))));
}

// Lines over an index, y from 0 to 1 or over the values' own range; a gap where there is no value.
function lines(series, { width, height, domain, ticks, left = 34, right = 8, bottom = 18, xLabels }) {
  const inner = { w: width - left - right, h: height - bottom - 8 };
  const length = Math.max(...series.map((one) => one.values.length), 2);
  const x = (i) => left + (i / (length - 1)) * inner.w;
  const y = (value) => 8 + (1 - Math.min(Math.max(along(domain, value), 0), 1)) * inner.h;
  const path = (values) => {
    let pen = "M";
    return values.map((value, i) => {
      if (value === null) { pen = "M"; return ""; }
      const step = `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
      return step;
    }).join("");
  };
  const drawn = svg("g", {},
    ticks.map((value) => [
      svg("path", { class: "grid", d: `M${left} ${y(value).toFixed(1)}H${width - right}` }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(2)))),
    ]),
    series.map((one) => svg("path", { class: `line ${one.className}`, d: path(one.values), "stroke-dasharray": one.dash })),
    xLabels.map(([i, text, anchor]) => svg("text", { x: x(i), y: height - 2, "text-anchor": anchor || "middle" }, text)));
  return { drawn, x, y };
}

function spreadPicture(sigma, critical) {
  const top = Math.max(sigma, critical) * 1.12;
  const x = (value) => (value / top) * 260;
  const open = Math.max(0, 1 - sigma / (2 * critical));
  return svg("svg", { viewBox: "0 0 260 46", role: "img", "aria-label": `σ ${num(sigma)}, σ_c ${num(critical)}` },
    svg("rect", { class: "track", y: 14, width: 260, height: 12, rx: 3 }),
    svg("rect", { class: "cell", y: 14, width: Math.max(x(sigma), 2), height: 12, rx: 3, fill: mix(open) }),
    svg("path", { class: "median", d: `M${x(critical)} 8V32` }),
    svg("text", { x: x(critical), y: 44, "text-anchor": critical / top > 0.8 ? "end" : "middle" }, `σ_c ${num(critical)}`),
    svg("text", { x: Math.min(x(sigma), 225), y: 9, "text-anchor": x(sigma) < 40 ? "start" : "middle" }, `σ ${num(sigma)}`));
}
