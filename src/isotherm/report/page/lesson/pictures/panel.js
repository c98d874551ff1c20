// A panel: two axes in a box, and the marks drawn between them.
import { thinnedTicks } from "./axes.js";
import { BOLD, LINE, SMALL, TEXT, spreadApart, textWidth, wrapped } from "./labels.js";
import { mark } from "./marks.js";

export const THEORY_DASH = "6 4";
const LED = 16;

// Boxes for this many panels, side by side or one below the other: whichever leaves them nearer to 3 : 2.
export function boxes(drawing, count, { gap = 28, shares = null } = {}) {
  const { width, height } = drawing;
  const off = (ratio) => Math.abs(Math.log(ratio / 1.5));
  const wide = off(width / count / height) < off((width * count) / height);
  const parts = shares && wide ? shares : Array(count).fill(1);
  const whole = parts.reduce((sum, part) => sum + part, 0);
  const length = (wide ? width : height) - gap * (count - 1);
  let start = 0;
  return parts.map((part) => {
    const end = start + (length * part) / whole;
    const box = wide ? { left: start, right: end, top: 0, bottom: height } : { left: 0, right: width, top: start, bottom: end };
    start = end + gap;
    return box;
  });
}

export const wholeBox = ({ width, height }) => ({ left: 0, right: width, top: 0, bottom: height });

const px = (value) => value.toFixed(1);

export class Panel {
  // `title` says above the panel what is drawn upward, `below` what runs across; `right` and `above` are room for labels, `least` what
  // the numbers on the left get at least.
  constructor(drawing, labels, box, across, upward, { title = "", below = "", right = 8, above = 0, least = 0, marks = true } = {}) {
    Object.assign(this, { drawing, labels, across, upward });
    const width = Math.max(...upward.ticks.map((tick) => textWidth(upward.label(tick), SMALL)), least);
    const lines = title ? wrapped(title, box.right - box.left, TEXT * BOLD) : [];
    this.left = box.left + (marks ? width + 8 : 1);
    this.right = box.right - right;
    this.top = box.top + lines.length * LINE + above + (lines.length ? 11 : 7);
    this.bottom = box.bottom - (below ? 38 : 20);
    lines.forEach((line, number) => labels.put(line, box.left, box.top + 13 + number * LINE, { kind: "loud pic-title" }));
    if (marks) this.grid();
    this.base();
    if (below) labels.put(below, (this.left + this.right) / 2, this.bottom + 34, { anchor: "middle", size: SMALL });
  }

  x(value) { return this.left + this.across.place(value) * (this.right - this.left); }

  y(value) { return this.bottom - this.upward.place(value) * (this.bottom - this.top); }

  // Where a value is drawn that may lie beyond the axis.
  inside(value) { return Math.min(Math.max(this.y(value), this.top), this.bottom); }

  // The values at a point of the drawing, moved into the panel.
  valueAt(x, y) {
    const within = (part) => Math.min(Math.max(part, 0), 1);
    const across = within((x - this.left) / (this.right - this.left));
    const upward = within((this.bottom - y) / (this.bottom - this.top));
    return [this.across.value(across), this.upward.value(upward)];
  }

  add(tag, attributes) {
    return mark(this.drawing, tag, attributes);
  }

  grid() {
    for (const tick of thinnedTicks(this.upward, this.bottom - this.top, () => 24)) {
      const y = this.y(tick);
      this.add("path", { d: `M${px(this.left)} ${px(y)}H${px(this.right)}`, class: "tick" });
      this.labels.put(this.upward.label(tick), this.left - 6, y + 4, { anchor: "end", size: SMALL });
    }
  }

  base() {
    this.add("path", { d: `M${px(this.left)} ${px(this.bottom)}H${px(this.right)}`, class: "frame" });
    const room = (tick) => textWidth(this.across.label(tick), SMALL) + 10;
    for (const tick of thinnedTicks(this.across, this.right - this.left, room)) {
      this.add("path", { d: `M${px(this.x(tick))} ${px(this.bottom)}v4`, class: "frame" });
      this.labels.put(this.across.label(tick), this.x(tick), this.bottom + 17, { anchor: "middle", size: SMALL });
    }
  }

  path(points) {
    return points.map(([x, y], number) => `${number ? "L" : "M"}${px(this.x(x))} ${px(this.inside(y))}`).join("");
  }

  // A curve through [x, y] points: solid where measured, dashed where it is theory.
  line(points, colour, { theory = false, bold = false, dash = null, more = "" } = {}) {
    const classes = `${colour} stroke curve${bold ? " pic-bold" : ""}${more && ` ${more}`}`;
    return this.add("path", { d: this.path(points), class: classes, "stroke-dasharray": dash || (theory ? THEORY_DASH : null) });
  }

  // The area between two curves over the same x.
  band(xs, lows, highs, colour) {
    const there = xs.map((x, number) => [x, highs[number]]);
    const back = xs.map((x, number) => [x, lows[number]]).reverse();
    return this.add("path", { d: `${this.path(there)}${this.path(back).replace("M", "L")}Z`, class: `${colour} solid band` });
  }

  // Keep text off a curve.
  avoid(points) {
    points.slice(1).forEach(([x, y], number) => {
      const [from, to] = [points[number], [x, y]].map(([a, b]) => [this.x(a), this.inside(b)]);
      const [top, bottom] = [Math.min(from[1], to[1]), Math.max(from[1], to[1])];
      this.labels.keep(Math.min(from[0], to[0]), top - 2, Math.max(from[0], to[0]), bottom + 2);
    });
  }

  dots(points, colour, radius = 3) {
    for (const [x, y] of points) {
      this.add("circle", { cx: this.x(x), cy: this.inside(y), r: radius, class: `${colour} solid` });
    }
  }

  // The mark of «you are here»: a ring that shows on any ground.
  ring(x, y, colour = "c-ink") {
    this.add("circle", { cx: this.x(x), cy: this.inside(y), r: 6.5, class: "pic-ring-ground" });
    this.add("circle", { cx: this.x(x), cy: this.inside(y), r: 6.5, class: `${colour} stroke pic-ring` });
  }

  // A vertical line at x, as high as the panel.
  upright(x, colour = "frame", dash = "2 3") {
    this.add("path", { d: `M${px(this.x(x))} ${px(this.top)}V${px(this.bottom)}`, class: colour, "stroke-dasharray": dash });
  }

  // Names at the right end of lines, moved apart. Where `beside` leaves room for it, a thin line leads from each to its own.
  ends(items, beside = 7) {
    const ys = spreadApart(items.map((item) => this.inside(item.y)), LINE - 2, this.top + 2, this.bottom - 2);
    items.forEach((item, number) => {
      if (beside > LED) this.add("path", { d: `M${px(this.right + 2)} ${px(this.inside(item.y))}L${px(this.right + beside - 3)} ${px(ys[number])}`, class: "pic-leader" });
      this.labels.put(item.text, this.right + beside, ys[number] + 4, { kind: `${item.colour}${item.bold ? " pic-title" : ""}`, size: SMALL });
    });
  }
}
