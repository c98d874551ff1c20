// Elements built from text, never from markup, and words in the page's language.
export function element(tag, attributes, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

// A pair [English, Chinese] as two elements, of which the style sheet shows one. What is the same in both belongs to neither.
export function bilingual([english, chinese]) {
  if (english === chinese) return [element("span", { translate: "no" }, english)];
  return [element("span", { lang: "en" }, english), element("span", { lang: "zh-CN" }, chinese)];
}

// A number stays on the line of its sign, its unit and its name, and 1 − y on one line.
const bound = (text) => text.replace(/(?<=\d) (?=%)/g, "\u00a0").replace(/ = (?=[\d−])/g, "\u00a0=\u00a0")
  .replace(/(?<![\d.,])1 − /g, "1\u00a0−\u00a0");

// A sentence with each 1/√d on one line: what binds letters without a space between them is an element.
export const unbroken = (sentence) => sentence.split(/(\/√)/).map((part) => (part === "/√" ? element("span", { class: "whole" }, part) : part));

export const inLanguage = (pair, lang) => pair[lang === "zh" ? 1 : 0];

// `say(key, values)`: a sentence of the page's words with its places filled.
export function speaker(words, languageOf) {
  return (key, values = {}) => {
    if (!Object.hasOwn(words, key)) return key;
    return bound(inLanguage(words[key], languageOf()).replace(/\{(\w+)\}/g, (_, name) => String(values[name])));
  };
}
