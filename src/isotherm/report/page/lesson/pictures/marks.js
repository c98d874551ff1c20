// The one way a mark gets into a drawing: numbers to a hundredth of a pixel, appended to the root.
export function mark(drawing, tag, attributes, ...children) {
  const rounded = Object.entries(attributes).map(([name, value]) => [name, typeof value === "number" ? Number(value.toFixed(2)) : value]);
  const node = drawing.svg(tag, Object.fromEntries(rounded), ...children);
  drawing.root.append(node);
  return node;
}
