// The series of a run, what is chosen on the page, and the address that keeps it.
const view = { lang: data.language, theme: null, stat: "max_logit", row: 0, head: 0, moment: Math.max(data.first.length - 1, 0) };
const moments = data.first.length;
const statOf = (key) => data.statistics.find((stat) => stat.key === key);
const statName = (key) => either(statOf(key).name);
const layerName = (row) => t("layer_n", { layer: data.layers[row][0] });
const momentName = (at) => (data.first[at] === data.last[at] ? t("moment_value", { step: thousands(data.last[at]) })
  : t("moment_range", { first: thousands(data.first[at]), last: thousands(data.last[at]) }));

const unpacked = new Map();
function seriesOf(group, key) {
  const id = `${group}.${key}`;
  if (!unpacked.has(id)) unpacked.set(id, unpack(data[group][key]));
  return unpacked.get(id);
}
const slice = (values, place) => values.slice(place * moments, (place + 1) * moments);
const layerSeries = (key, row) => slice(seriesOf("by_layer", key), row);
const gradientSeries = (key, row) => slice(seriesOf("gradients", key), row);

// Where each layer's heads start among all, and where a head stands among those the page holds.
const starts = [];
let headCount = 0;
for (const [, , heads] of data.layers) { starts.push(headCount); headCount += heads; }
const keptAt = data.kept && new Map(data.kept.map((flat, at) => [flat, at]));
function headSeries(key, row, head) {
  const flat = starts[row] + head;
  const at = keptAt ? keptAt.get(flat) : flat;
  return at === undefined ? null : slice(seriesOf("heads", key), at);
}
const headsOf = (row) => Array.from({ length: data.layers[row][2] }, (_, head) => head);

// The scale of a statistic over the whole run; logarithmic where it spans decades.
function domainFor(values, unit) {
  if (unit) return { low: 0, high: 1, log: false };
  const known = values.filter((value) => value !== null);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  return known.length && high > low ? { low, high, log: low > 0 && high / low > 30 } : { low: (known[0] || 0) - 1, high: (known[0] || 0) + 1, log: false };
}
const statDomain = () => domainFor(seriesOf("by_layer", view.stat), statOf(view.stat).unit_interval);

function choose(row, head, moment) {
  if (row !== null && row !== undefined && data.layers[row]) {
    view.row = row;
    view.head = head === null || head === undefined ? hottest(row) : head;
  }
  if (moment !== null && moment !== undefined) view.moment = Math.min(Math.max(moment, 0), moments - 1);
}

function hottest(row) {
  let best = 0;
  let most = -Infinity;
  for (const head of headsOf(row)) {
    const values = headSeries("max_logit", row, head);
    const now = values && values[view.moment];
    if (now !== null && now !== undefined && now > most) { most = now; best = head; }
  }
  return best;
}

function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  if (["en", "zh"].includes(hash.get("lang"))) view.lang = hash.get("lang");
  if (["light", "dark"].includes(hash.get("theme"))) view.theme = hash.get("theme");
  if (statOf(hash.get("stat"))) view.stat = hash.get("stat");
  const [layer, head] = (hash.get("head") || "").split(".").map(Number);
  const row = data.layers.findIndex(([number]) => number === layer);
  if (hash.has("head") && row >= 0) choose(row, head >= 0 && head < data.layers[row][2] ? head : null, null);
  const step = Number(hash.get("step"));
  if (hash.has("step") && Number.isFinite(step)) choose(null, null, momentAt(step));
}

function writeHash() {
  const hash = new URLSearchParams({ lang: view.lang, stat: view.stat });
  if (view.theme) hash.set("theme", view.theme);
  if (moments && data.layers.length) {
    hash.set("head", `${data.layers[view.row][0]}.${view.head}`);
    if (view.moment < moments - 1) hash.set("step", data.last[view.moment]);
  }
  try {
    history.replaceState(null, "", `#${hash}`);
  } catch {
    // A page inside a notebook's frame has no address of its own to keep this in.
  }
}

function momentAt(step) {
  const found = data.last.findIndex((last) => last >= step);
  return found < 0 ? moments - 1 : found;
}
