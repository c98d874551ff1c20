// Every picture in every state of a list, without a browser: what it computes, says, tabulates and writes. Prints one JSON object.
import { readFileSync } from "node:fs";

const [folder] = process.argv.slice(2);
const { PICTURES } = await import(`${folder}/index.js`);
const { exactRow } = await import(`${folder}/expected.js`);
const words = JSON.parse(readFileSync(new URL(`${folder}/words.json`)));
const { states, finding } = JSON.parse(readFileSync(0, "utf-8"));

const [used, missing, unfilled] = [new Set(), new Set(), new Set()];
const sayIn = (language) => (key, values = {}) => {
  used.add(key);
  if (!Object.hasOwn(words, key)) missing.add(key);
  return (words[key] || ["", ""])[language].replace(/\{(\w+)\}/g, (_, name) => {
    if (values[name] === undefined) unfilled.add(`${key}: ${name}`);
    return String(values[name]);
  });
};

// A node that remembers its text and its listeners, and has an attribute for everything.
class Node_ {
  constructor(tag, attributes, children, all) {
    Object.assign(this, { tag, attributes: { ...attributes }, listeners: {}, textContent: children.join("") });
    all.push(this);
  }

  append() {}

  setAttribute(name, value) { this.attributes[name] = value; }

  addEventListener(name, listener) { this.listeners[name] = listener; }

  getBoundingClientRect() { return { left: 0, top: 0, width: 100, height: 100 }; }
}

function drawn(picture, data, state, say, width) {
  const all = [];
  const svg = (tag, attributes, ...children) => new Node_(tag, attributes, children.flat(Infinity), all);
  const drawing = { width, height: Math.round(width * 0.7), root: svg("svg", {}), svg };
  picture.draw(drawing, data, state, say);
  for (const node of [...all]) node.listeners.pointermove?.({ clientX: 30, clientY: 90 });
  const bad = all.filter((node) => /NaN|undefined|Infinity/.test(JSON.stringify(node.attributes) + node.textContent));
  const pressed = picture.press ? picture.press(width / 2, drawing.height / 2, data, state, drawing) : null;
  return { texts: all.filter((node) => node.tag === "text").map((node) => node.textContent), bad: bad.map((node) => [node.tag, node.attributes, node.textContent]), pressed };
}

function milliseconds(work) {
  const start = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000;
}

// The least time of three moves of every control, so that nothing remembered helps, against that of a million exponentials.
function timed(picture, state) {
  const moved = [1, 2, 3].map((step) => ({ ...state, seed: state.seed + step, spread: state.spread * (1 - step / 1000), growth: state.growth * (1 + step / 1000) }));
  const took = Math.min(...moved.map((other) => milliseconds(() => picture.compute(other, { finding }))));
  let sum = 0;
  const exponentials = milliseconds(() => { for (let step = 0; step < 1e6; step++) sum += Math.exp(-(step % 800) / 100); });
  return { took, exponentials: sum > 0 ? exponentials : NaN };
}

const plain = (key, value) => (ArrayBuffer.isView(value) ? Array.from(value) : typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
const results = [];
for (const [name, picture] of Object.entries(PICTURES)) {
  for (const state of states) {
    const { took, exponentials } = timed(picture, state);
    const data = picture.compute(state, { finding });
    for (const language of [0, 1]) {
      const say = sayIn(language);
      const { texts, bad, pressed } = drawn(picture, data, state, say, 640);
      const keep = language === 0 && states.indexOf(state) === 0;
      results.push({ name, state, language, took, exponentials, described: picture.describe(data, state, say), table: picture.table(data, state, say), texts, bad, pressed, data: keep ? data : null, file: keep ? picture.table(data, state, say, exactRow).rows : null });
    }
    if (name === "finding") [0, 1].forEach((language) => { const say = sayIn(language); drawn(picture, picture.compute(state, {}), state, say, 320); picture.describe(null, state, say); picture.table(null, state, say); });
  }
}
console.log(JSON.stringify({ results, used: [...used], missing: [...missing], unfilled: [...unfilled] }, plain));
