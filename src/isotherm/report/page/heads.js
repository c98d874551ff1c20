// The heads of a check-up, what is chosen on its page, and the address that keeps it.
const view = { lang: data.language, theme: null, stat: "state", rule: 1, open: null };

const stateNames = Object.keys(data.state_kinds);
const columns = { state: [...data.heads.state].map((digit) => stateNames[Number(digit)]) };
for (const { key } of data.statistics) columns[key] = unpack(data.heads[key]);

// Where each layer's heads start in the columns.
const starts = [];
let headCount = 0;
for (const layer of data.layers) {
  starts.push(headCount);
  headCount += layer.shape[0];
}
const widest = Math.max(0, ...data.layers.map((layer) => layer.shape[0]));
const rowOf = new Map(data.layers.map((layer, row) => [layer.index, row]));
const headId = (row, place) => (data.layers[row].ids ? data.layers[row].ids[place] : place);
const headPlace = (row, id) => (data.layers[row].ids ? data.layers[row].ids.indexOf(id) : id);
const details = new Map(data.details.map((detail) => [detail[0], detail]));

const statOf = (key) => data.statistics.find((stat) => stat.key === key);
const statName = (key) => (key === "state" ? t("state") : either(statOf(key).name));
const stateName = (state) => either(data.state_kinds[state].name);
const headTitle = (row, place) => t("head_n", { layer: data.layers[row].index, head: headId(row, place) });

// The URL's hash keeps language, theme, statistic and the open head, so that a link shows what its sender saw.
function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  if (["en", "zh"].includes(hash.get("lang"))) view.lang = hash.get("lang");
  if (["light", "dark"].includes(hash.get("theme"))) view.theme = hash.get("theme");
  if (hash.get("stat") === "state" || statOf(hash.get("stat"))) view.stat = hash.get("stat");
  const [layer, head] = (hash.get("head") || "").split(".").map(Number);
  if (rowOf.has(layer)) {
    const row = rowOf.get(layer);
    const place = headPlace(row, head);
    if (place >= 0 && place < data.layers[row].shape[0]) view.open = [row, place];
  }
}

function writeHash() {
  const hash = new URLSearchParams({ lang: view.lang });
  if (view.theme) hash.set("theme", view.theme);
  if (view.stat !== "state") hash.set("stat", view.stat);
  if (view.chosen) hash.set("head", `${data.layers[view.open[0]].index}.${headId(...view.open)}`);
  try {
    history.replaceState(null, "", `#${hash}`);
  } catch {
    // A page inside a notebook's frame has no address of its own to keep this in.
  }
}
