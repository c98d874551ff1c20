// Numbers as a person reads them in a picture.
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

export function superscript(whole) {
  const text = [...String(Math.abs(whole))].map((digit) => SUPERSCRIPTS[digit]).join("");
  return whole < 0 ? `⁻${text}` : text;
}

const grouped = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

// Three significant digits unless told: 0.125, 12.5, 1,024, 3.1·10⁻⁵. Whole numbers lose their point.
export function shown(value, digits = 3) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size < 1e-3 || size >= 1e6) {
    const [mantissa, exponent] = size.toExponential(digits - 1).split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/0+$/, "").replace(/\.$/, "") : mantissa;
    return `${sign}${short === "1" ? "" : `${short}·`}10${superscript(Number(exponent))}`;
  }
  const power = Number(size.toExponential(digits - 1).split("e")[1]);
  const round = Number.isInteger(size) ? size : Number(size.toPrecision(digits));
  let text = round.toFixed(Math.max(digits - 1 - power, 0));
  if (text.includes(".") && Number.isInteger(size)) text = text.replace(/\.0+$/, "");
  return sign + (text.includes(".") ? text : grouped(text));
}

// 43 %, 0.031 %, 99.991 %: as many digits as tell the share from none and from all.
export function percentShown(share) {
  if (!Number.isFinite(share)) return "–";
  const percent = 100 * share;
  const rest = Math.min(percent, 100 - percent);
  if (rest < 1e-9 && percent > 50) return "100 %";
  if (percent < 0.01) return `${shown(percent, 2)} %`;
  const near = Math.ceil(-Math.log10(rest) - 1e-9);
  const places = rest >= 9.95 ? 0 : Math.max(percent > 50 ? near : near + 1, 1);
  return `${percent.toFixed(Math.min(places, 9)).replace(/\.0+$/, "")} %`;
}

// A factor on an axis: 1/16, 1/2, 1, 4.
export function factorShown(value) {
  const inverse = 1 / value;
  if (value < 1 && Math.abs(inverse - Math.round(inverse)) < 1e-6) return `1/${Math.round(inverse)}`;
  return shown(Number(value.toPrecision(3)), 3);
}
