// Files made in the page from what it shows: nothing leaves it.
import { element, svgElement } from "./elements.js";

const MARGIN = 16;
const LOOKS = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-style", "font-weight", "text-anchor", "dominant-baseline", "paint-order", "visibility", "display",
];

export function saveFile(content, type, name) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const url = URL.createObjectURL(blob);
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A spreadsheet would run a field that begins like a formula: those of text get an apostrophe. Spaces that bind become plain ones.
export function csvField(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const plain = String(value).replace(/\u00a0/g, " ");
  const text = /^[=+\-@\t\r]/.test(plain) ? `'${plain}` : plain;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

export const csvText = ({ heads, rows }) => [heads, ...rows].map((row) => `${row.map(csvField).join(",")}\r\n`).join("");

// A drawing that stands alone, with a margin: the page's style sheet is written into it, element by element.
export function standaloneSvg(drawing, title) {
  const { width, height } = drawing.viewBox.baseVal;
  const copy = drawing.cloneNode(true);
  const [shown, copied] = [drawing, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  shown.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const look of LOOKS) copied[i].setAttribute(look, style.getPropertyValue(look));
    for (const name of ["class", "style", "role", "aria-labelledby", "aria-describedby"]) copied[i].removeAttribute(name);
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const [wide, high] = [width, height].map((length) => length + 2 * MARGIN);
  const room = { width: wide, height: high, viewBox: `${-MARGIN} ${-MARGIN} ${wide} ${high}` };
  for (const [name, value] of Object.entries(room)) copy.setAttribute(name, value);
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim() || "#fff";
  copy.prepend(svgElement("title", {}, title), svgElement("rect", { x: -MARGIN, y: -MARGIN, width: wide, height: high, fill: paper }));
  return new XMLSerializer().serializeToString(copy);
}

export function savePicture(drawing, title, name) {
  const picture = new Image();
  const url = URL.createObjectURL(new Blob([standaloneSvg(drawing, title)], { type: "image/svg+xml" }));
  picture.onload = () => {
    const canvas = element("canvas", { width: picture.width * 2, height: picture.height * 2 });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => saveFile(blob, "image/png", `${name}.png`), "image/png");
  };
  picture.src = url;
}

// Copy a text. Where the browser gives no clipboard, the text is selected in a field instead: false.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
