// Axes: a range, where a value lies in it, and round values to mark.
import { shown, superscript } from "./numbers.js";

function axisOf(low, high, log, ticks, label) {
  const place = log
    ? (value) => Math.log(value / low) / Math.log(high / low)
    : (value) => (value - low) / (high - low);
  const value = log ? (part) => low * (high / low) ** part : (part) => low + (high - low) * part;
  return { low, high, log, ticks, label, place, value };
}

// From `low` to `high`; with `round`, widened to its outermost ticks.
export function linearAxis(low, high, { most = 5, round = false, label = null } = {}) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5].find((size) => size * power >= rough * (1 - 1e-9)) || 10);
  const first = round ? Math.floor(low / step + 1e-9) : Math.ceil(low / step - 1e-9);
  const last = round ? Math.ceil(high / step - 1e-9) : Math.floor(high / step + 1e-9);
  const ticks = [];
  for (let number = first; number <= last; number++) ticks.push(Number((number * step).toPrecision(12)));
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9), step / power === 2.5 ? 1 - Math.log10(power) : 0);
  const plain = (value) => (Math.abs(value) >= 1e4 ? shown(value, 6) : value.toFixed(places)).replace("-", "−");
  return axisOf(round ? first * step : low, round ? last * step : high, false, ticks, label || plain);
}

// A logarithmic axis with ticks at powers of `base`.
export function logAxis(low, high, { base = 10, label = null, ticks = null } = {}) {
  const powers = [];
  const [first, last] = [Math.ceil(Math.log(low) / Math.log(base) - 1e-9), Math.floor(Math.log(high) / Math.log(base) + 1e-9)];
  for (let power = first; power <= last; power++) powers.push(base ** power);
  const plain = (value) => (base === 10 && (value < 1e-2 || value >= 1e4)
    ? `10${superscript(Math.round(Math.log10(value)))}` : value < 1 ? String(Number(value.toPrecision(3))) : shown(value, 3));
  return axisOf(low, high, true, ticks || powers, label || plain);
}

// Every so-manieth tick, so that labels of this many pixels do not touch. The first stays, and the last where it can.
export function thinnedTicks(axis, pixels, room) {
  const known = axis.ticks.filter((tick) => axis.place(tick) > -1e-6 && axis.place(tick) < 1 + 1e-6);
  for (let every = 1; every < known.length; every++) {
    const kept = known.filter((_, number) => number % every === 0);
    const places = kept.map((tick) => axis.place(tick) * pixels);
    if (places.every((place, number) => number === 0 || place - places[number - 1] >= (room(kept[number]) + room(kept[number - 1])) / 2)) {
      return kept;
    }
  }
  return known.slice(0, 1);
}
