// In a page that has PICTURES and `words`: draws pictures and lists every text that is small, outside, or over another one.
const sayIn = (language) => (key, values = {}) => words[key][language].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

const svg = (tag, attributes, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity));
  return node;
};

const outside = (it, box) => it.left < box.left - 2 || it.right > box.right + 2 || it.top < box.top - 2 || it.bottom > box.bottom + 2;
const over = (it, other) => it.left < other.right - 1 && other.left < it.right - 1 && it.top < other.bottom - 3 && other.top < it.bottom - 3;

function faults(root) {
  const box = root.getBoundingClientRect();
  const texts = [...root.querySelectorAll("text")].filter((node) => node.textContent)
    .map((node) => ({ text: node.textContent, box: node.getBoundingClientRect(), size: parseFloat(getComputedStyle(node).fontSize) }));
  return texts.flatMap((it, number) => [
    ...(it.size < 12 ? [`small: ${it.text}`] : []),
    ...(outside(it.box, box) ? [`outside: ${it.text}`] : []),
    ...texts.slice(number + 1).filter((other) => over(it.box, other.box)).map((other) => `${it.text} × ${other.text}`),
  ]);
}

function drawnFaults([name, picture], state, width, language, finding) {
  const [across, upward] = width < 520 ? picture.tall || [4, 5] : picture.ratio;
  const height = Math.round((width * upward) / across);
  const root = svg("svg", { width, height });
  document.body.replaceChildren(root);
  picture.draw({ width, height, root, svg }, picture.compute(state, { finding }), state, sayIn(language));
  return faults(root).map((what) => `${name} ${width} px ${language ? "zh" : "en"} ${JSON.stringify(state)}: ${what}`);
}

window.tried = (states, widths, finding) => Object.entries(PICTURES).flatMap((entry) => states.flatMap((state) => widths.flatMap(
  (width) => [0, 1].flatMap((language) => drawnFaults(entry, state, width, language, finding)))));
