// Colours and cells of heat maps.
import { SMALL, textWidth } from "./labels.js";
import { mark } from "./marks.js";

// The ramp of the whole project (report/draw/palette.py): dark is a frozen softmax, pale an open one.
export const RAMP = ["#261c59", "#2d3478", "#315290", "#37719f", "#3f8fa6", "#5baba6", "#8dc498", "#cfd587", "#fae996"];

const channelsOf = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

export function rampColour(part) {
  const place = Math.min(Math.max(part, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(place), RAMP.length - 2);
  const [from, to] = [channelsOf(RAMP[low]), channelsOf(RAMP[low + 1])];
  const mixed = from.map((channel, at) => Math.round(channel + (to[at] - channel) * (place - low)));
  return `#${mixed.map((channel) => channel.toString(16).padStart(2, "0")).join("")}`;
}

// The class of letters that can be read on a colour of the ramp.
export function letterClass(colour) {
  const [red, green, blue] = channelsOf(colour);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "pic-on-pale" : "pic-on-deep";
}

// Text in the middle of a cell, where it fits.
export function cellText(drawing, text, left, top, width, height, kind) {
  if (textWidth(text, SMALL) > width - 3 || height < 15) return null;
  const place = { x: left + width / 2, y: top + height / 2 + 4.2, "text-anchor": "middle" };
  return mark(drawing, "text", { ...place, class: `pic-text pic-small pic-inert ${kind}` }, text);
}
