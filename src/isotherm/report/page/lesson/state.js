// What the reader has set: one flat object, kept in the address (only what differs from the default), so that a link shows what its
// sender saw. Nothing else reads or writes the address.
import { RULES } from "./maths/rules.js";

export const RANGES = {
  d: { start: 64, low: 1, high: 1024, whole: true },
  n: { start: 16, low: 2, high: 512, whole: true },
  mean: { start: 0, low: -1, high: 1 },
  correlation: { start: 0, low: -1, high: 1 },
  spread: { start: 1, low: 0.25, high: 4 },
  a: { start: 1, low: 0, high: 40 },
  power: { start: 0.5, low: 0, high: 1.5 },
  growth: { start: 1, low: 1, high: 64 },
  keys: { start: 64, low: 2, high: 512, whole: true }, // n of the step on gradients, which begins with the rows that were measured
  trained: { start: 2, low: 1, high: 64 }, // growth and n of the step on lengths
  context: { start: 4096, low: 16, high: 65536, whole: true },
  seed: { start: 31, low: 1, high: 9999, whole: true }, // whose first row is a typical one
  factor: { start: 1, low: 1 / 16, high: 16 },
  moment: { start: 12, low: 0, high: 100 }, // where the recorded run has its first alert
  layer: { start: 0, low: 0, high: 999, whole: true },
  head: { start: -1, low: -1, high: 999, whole: true },
};
export const STATISTICS = ["max_logit", "entropy", "gate", "logit_std", "saturated"];
const CHOICES = { rule: RULES.map((rule) => rule.text), statistic: STATISTICS, lang: ["en", "zh"], theme: ["light", "dark"] };

export const DEFAULTS = Object.freeze({
  ...Object.fromEntries(Object.entries(RANGES).map(([key, range]) => [key, range.start])),
  rule: "1/sqrt(d)", statistic: STATISTICS[0], lang: "en", theme: null, at: null,
});

// A number within its range, or null where there is none to be had.
export function admissible(key, value) {
  if (!Object.hasOwn(RANGES, key)) return Object.hasOwn(CHOICES, key) && CHOICES[key].includes(value) ? value : null;
  const { low, high, whole } = RANGES[key];
  const number = typeof value === "string" && value.trim() === "" ? NaN : Number(value);
  if (!Number.isFinite(number)) return null;
  const within = Math.min(Math.max(number, low), high);
  return whole ? Math.round(within) : within;
}

// An address says `#at` of a place, or `#key=value&…`. What cannot be is left at its default.
export function parseHash(hash) {
  const text = hash.replace(/^#/, "");
  if (!text.includes("=")) return text ? { at: text } : {};
  const found = {};
  for (const [key, said] of new URLSearchParams(text)) {
    const value = key === "at" ? said : admissible(key, said);
    if (value !== null) found[key] = value;
  }
  return found;
}

// The language always stands in it: a link to a page in the reader's language shows the sender's.
export function printHash(state) {
  const hash = new URLSearchParams({ lang: state.lang });
  for (const [key, start] of Object.entries(DEFAULTS)) {
    if (key !== "lang" && state[key] !== start && state[key] !== null) hash.set(key, String(state[key]));
  }
  return `#${hash}`;
}

// The state and those who follow it. `set` takes part of a state; followers hear of the keys that changed.
export class Store {
  constructor(first = {}) {
    this.state = { ...DEFAULTS, ...first };
    this.followers = new Set();
  }

  set(part) {
    const changed = Object.keys(part).filter((key) => !Object.is(part[key], this.state[key]));
    if (!changed.length) return;
    this.state = { ...this.state, ...part };
    for (const follow of [...this.followers]) follow(changed, this.state);
  }

  reset(keys) {
    this.set(Object.fromEntries(keys.map((key) => [key, DEFAULTS[key]])));
  }

  subscribe(follow) {
    this.followers.add(follow);
    return () => this.followers.delete(follow);
  }
}

// Keep a store and the address at one. A slider that is dragged would write hundreds of times, and browsers allow about a hundred in
// half a minute: after a write, the next waits a moment.
export function keepAddress(store, window_) {
  let [waiting, missed] = [null, false];
  const write = () => {
    try {
      window_.history.replaceState(null, "", printHash(store.state));
    } catch {
      // A page inside a frame may have no address of its own.
    }
  };
  const later = () => {
    waiting = null;
    if (missed) follow();
  };
  const follow = () => {
    missed = waiting !== null;
    if (missed) return;
    write();
    waiting = window_.setTimeout(later, 400);
  };
  store.subscribe(follow);
  window_.addEventListener("hashchange", () => {
    const said = parseHash(window_.location.hash);
    const place = Object.keys(said).every((key) => key === "at");
    store.set(place ? said : { ...DEFAULTS, lang: store.state.lang, theme: store.state.theme, ...said });
    write();
  });
  return { flush: write };
}
