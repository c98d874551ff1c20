// Text in a picture: its width before it is drawn, its lines, and a place where it covers nothing.
import { mark } from "./marks.js";

export const TEXT = 13;
export const SMALL = 12;
export const LINE = 17;
export const BOLD = 1.08;

// An upper estimate: wide letters of the page's fonts are about 0.62 em, Chinese ones 1 em.
export function textWidth(text, size = TEXT) {
  let width = 0;
  for (const letter of String(text)) {
    if (letter >= "\u2e80") width += 1;
    else if ("⁰¹²³⁴⁵⁶⁷⁸⁹⁻₁₂₃ᵢⱼ".includes(letter)) width += 0.5;
    else if (" \u00a0.,;:'|!il·()/".includes(letter)) width += 0.38;
    else if ("mwMW%—…−±×=+<>→←∂".includes(letter)) width += 0.95;
    else width += 0.61;
  }
  return width * size;
}

// The text in lines of at most this width, broken between Chinese characters and at spaces, but not at those that bind.
export function wrapped(text, width, size = TEXT) {
  const pieces = String(text).match(/[\u2e80-\uffff][，。；：、）」》]*|(?:[^\s\u2e80-\uffff]|\u00a0)+ *| +/g) || [];
  const lines = [""];
  for (const piece of pieces) {
    const line = lines[lines.length - 1];
    if (line && textWidth((line + piece).trimEnd(), size) > width) lines.push(piece.trimStart());
    else lines[lines.length - 1] = line + piece;
  }
  return lines.map((line) => line.trim()).filter(Boolean);
}

// Places along a line, in order, moved apart to at least `gap` and kept between `low` and `high` where that is possible.
export function spreadApart(places, gap, low, high) {
  const order = places.map((_, index) => index).sort((a, b) => places[a] - places[b]);
  const moved = order.map((index) => Math.min(Math.max(places[index], low), high));
  for (let pass = 0; pass < 60; pass++) {
    for (let number = 1; number < moved.length; number++) {
      const lack = gap - (moved[number] - moved[number - 1]);
      if (lack > 0) { moved[number - 1] -= lack / 2; moved[number] += lack / 2; }
    }
    for (let number = 0; number < moved.length; number++) {
      moved[number] = Math.min(Math.max(moved[number], low + gap * number), high - gap * (moved.length - 1 - number));
    }
  }
  const result = [];
  order.forEach((index, number) => { result[index] = moved[number]; });
  return result;
}

const STARTS = { start: 0, middle: 0.5, end: 1 };

// All text of one picture. Whatever was put is kept free: a later text looks for another place or stays away.
export class Labels {
  constructor(drawing) {
    this.drawing = drawing;
    this.taken = [];
  }

  box(text, x, y, anchor, size) {
    const width = textWidth(text, size);
    const left = x - width * STARTS[anchor];
    return { left, right: left + width, top: y - size * 0.95, bottom: y + size * 0.3 };
  }

  free(box) {
    const { width, height } = this.drawing;
    if (box.left < -0.5 || box.right > width + 0.5 || box.top < -0.5 || box.bottom > height + 0.5) return false;
    return this.taken.every((other) => box.right <= other.left || box.left >= other.right
      || box.bottom <= other.top || box.top >= other.bottom);
  }

  keep(left, top, right, bottom) {
    this.taken.push({ left, top, right, bottom });
  }

  // Text whose base line starts, ends or is centred at (x, y), pushed inside the drawing.
  put(text, x, y, { anchor = "start", kind = "word", size = TEXT, halo = false } = {}) {
    const box = this.box(text, x, y, anchor, kind.includes("pic-title") ? size * BOLD : size);
    const at = x + Math.max(-box.left, Math.min(0, this.drawing.width - box.right));
    this.taken.push({ ...box, left: box.left + at - x, right: box.right + at - x });
    const classes = `pic-text ${size < TEXT ? "pic-small " : ""}${halo ? "pic-halo " : ""}${kind}`;
    return mark(this.drawing, "text", { x: at, y, "text-anchor": anchor, class: classes }, String(text));
  }

  // The first of these places [x, y, anchor] that is free; without one, nothing is written and null returned.
  place(text, places, { kind = "word", size = TEXT, halo = true } = {}) {
    const wide = kind.includes("pic-title") ? size * BOLD : size;
    const found = places.find(([x, y, anchor]) => this.free(this.box(text, x, y, anchor, wide)));
    return found ? this.put(text, found[0], found[1], { anchor: found[2], kind, size, halo }) : null;
  }

  // Lines one below the other; returns the base line that would come next.
  lines(text, x, y, width, options = {}) {
    let next = y;
    for (const line of wrapped(text, width, (options.size || TEXT) * BOLD)) {
      this.put(line, x, next, options);
      next += LINE;
    }
    return next;
  }
}
