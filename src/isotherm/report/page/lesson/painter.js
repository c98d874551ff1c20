// When pictures are drawn: in an animation frame, only near the window, the one in use first, and never so many at once that the
// reader waits.
const PAINT_PATIENCE = 16;

export class Painter {
  constructor() {
    this.easels = new Set();
    this.asked = null;
    this.watch = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) this.of(target).near = isIntersecting;
      this.ask();
    }, { rootMargin: "50% 0px" });
  }

  // An easel has a `node`, and `paint()`; `stale`, `near` and `due` (also far from the reader) are kept here.
  add(easel) {
    Object.assign(easel, { stale: true, near: false, due: false });
    this.easels.add(easel);
    this.watch.observe(easel.node);
  }

  of(node) {
    return [...this.easels].find((easel) => easel.node === node);
  }

  spoil(easels = this.easels) {
    for (const easel of easels) easel.stale = true;
    this.ask();
  }

  // Everything that was painted: another language may not be left standing where only a search finds it.
  spoilFar() {
    for (const easel of this.easels) easel.due = !easel.stale;
    this.spoil();
  }

  ask() {
    this.asked ??= requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.asked = null;
    const start = performance.now();
    const waiting = [...this.easels].filter((easel) => easel.stale && (easel.near || easel.due)).map((easel) => [readerDistance(easel.node), easel]);
    waiting.sort(([one], [other]) => one - other);
    for (const [, easel] of waiting) {
      if (performance.now() - start > PAINT_PATIENCE) return this.ask();
      Object.assign(easel, { stale: false, due: false });
      easel.paint();
    }
    return undefined;
  }

  // Everything at once, for paper.
  paintAll() {
    for (const easel of this.easels) if (easel.stale) { easel.stale = false; easel.paint(); }
  }
}

// How far a picture is from the reader: nothing if its controls are in use or it is seen.
function readerDistance(node) {
  if (node.contains(document.activeElement)) return -1;
  const { top, bottom } = node.getBoundingClientRect();
  return Math.max(top - innerHeight, -bottom, 0);
}
