// Files made in the page, from what it holds: nothing leaves it.
function save(content, type, extension) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const url = URL.createObjectURL(blob);
  const stem = data.model.name.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "model";
  const link = el("a", { href: url, download: `isotherm-${stem}.${extension}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A spreadsheet would run a field that begins like a formula: those of text get an apostrophe.
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function csv() {
  const keys = data.statistics.map((stat) => stat.key);
  const rows = [["layer", "name", "head", "state", ...keys].join(",")];
  data.layers.forEach((layer, row) => {
    for (let place = 0; place < layer.shape[0]; place += 1) {
      const flat = starts[row] + place;
      rows.push([layer.index, layer.name, headId(row, place), columns.state[flat], ...keys.map((key) => columns[key][flat])].map(field).join(","));
    }
  });
  return `${rows.join("\r\n")}\r\n`;
}

function mapSvg() {
  const size = widest <= 24 ? 26 : widest <= 64 ? 14 : 9;
  const [left, top] = [46, 58];
  const width = Math.max(left + widest * size + 16, 420);
  const height = top + data.layers.length * size + 46;
  const domain = view.stat === "state" ? null : domainOf(view.stat);
  const font = { "font-family": "system-ui, 'Noto Sans CJK SC', 'PingFang SC', sans-serif", fill: data.ink[0] };
  const label = (x, y, text, extra) => svg("text", { x, y, "font-size": 11, ...font, ...extra }, text);
  const every = Math.ceil(26 / size);
  const squares = data.layers.map((layer, row) => [
    row % (size < 14 ? every : 1) === 0 && label(left - 8, top + row * size + size * 0.5 + 4, String(layer.index), { "text-anchor": "end" }),
    Array.from({ length: layer.shape[0] }, (_, place) => {
      const flat = starts[row] + place;
      const colour = cellColour(view.stat, flat, domain);
      const [x, y] = [left + place * size, top + row * size];
      return [
        svg("rect", { x: x + 0.5, y: y + 0.5, width: size - 1, height: size - 1, fill: colour || data.ink[1], stroke: colour ? "none" : data.state_kinds.empty.colour }),
        view.stat === "state" && size > 20 && label(x + size / 2, y + size / 2 + 4, data.state_kinds[columns.state[flat]].glyph, { "text-anchor": "middle", fill: inkOn(colour) }),
      ];
    }),
  ]);
  const numbers = Array.from({ length: widest }, (_, place) => place % every === 0 && label(left + (place + 0.5) * size, top - 6, String(place), { "text-anchor": "middle" }));
  return svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
    svg("rect", { width, height, fill: data.ink[1] }), label(16, 22, data.model.name.slice(0, 60), { "font-size": 14, "font-weight": 600 }),
    label(16, 38, statName(view.stat)), numbers, squares, mapKey(top + data.layers.length * size + 14, domain, label));
}

function mapKey(y, domain, label) {
  if (!domain) {
    const text = Object.entries(data.states).filter(([, count]) => count).map(([state, count]) => `${data.state_kinds[state].glyph} ${stateName(state)} ${count}`);
    return label(16, y + 12, text.join("   "));
  }
  const high = statOf(view.stat).sharp_high;
  const ends = [0, 1].map((part) => num(at(domain, high ? 1 - part : part)));
  return [Array.from({ length: 48 }, (_, i) => svg("rect", { x: 46 + i * 4, y, width: 4.5, height: 9, fill: mix(i / 47) })),
    label(46, y + 22, `${ends[0]} ${t("sharp")}`), label(238, y + 22, `${t("open")} ${ends[1]}`, { "text-anchor": "end" })];
}

const svgText = () => new XMLSerializer().serializeToString(mapSvg());

function savePng() {
  const picture = new Image();
  const url = URL.createObjectURL(new Blob([svgText()], { type: "image/svg+xml" }));
  picture.onload = () => {
    const canvas = el("canvas", { width: picture.width * 2, height: picture.height * 2 });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => save(blob, "image/png", "png"), "image/png");
  };
  picture.src = url;
}

function downloadButtons() {
  const button = (id, text, label, save_) => el("button", { type: "button", id, "aria-label": label, title: label, onclick: save_ }, text);
  return el("div", { class: "buttons", role: "group", "aria-label": t("download") },
    button("save-csv", "CSV", t("download_csv"), () => save(csv(), "text/csv;charset=utf-8", "csv")),
    button("save-svg", "SVG", t("download_svg"), () => save(svgText(), "image/svg+xml", "svg")),
    button("save-png", "PNG", t("download_png"), savePng));
}
