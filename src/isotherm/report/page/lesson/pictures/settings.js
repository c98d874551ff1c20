// What a picture takes from the state, and how it names a rule.
import { RULES } from "../maths/rules.js";

const UNTURNED = { mean: 0, correlation: 0, spread: 1, growth: 1 };

// The state with everything at rest that this picture has no control for: a slider of another step never acts unseen.
export function asTurned(state, controls) {
  const rest = Object.entries(UNTURNED).filter(([key]) => !controls.includes(key));
  return { ...state, ...Object.fromEntries(rest) };
}

const SHORT = {
  "1/sqrt(d)": "1/√d",
  "1/d": "1/d",
  "query-pre-attn-scalar:512": "1/√512",
  "log-n:512 * 1/sqrt(d)": "log n",
  "ssmax * 1/sqrt(d)": "SSMax",
  "yarn:4 * 1/sqrt(d)": "YaRN",
  "qk-norm": "QK-norm",
  "qk-norm * 1/sqrt(d)": "QK-norm/√d",
};

// A name short enough to stand at the end of a line.
export function shortRule(text, say) {
  if (text === "none") return say("picture_no_scale");
  if (text === "cosine") return say("picture_cosine");
  return SHORT[text] || text;
}

// The rule as part of a sentence: «under 1/√d», «without scale».
export function underRule(text, say) {
  return text === "none" ? say("picture_without") : say("picture_under", { rule: shortRule(text, say) });
}

// What is set beside «without scale»: the rule, or 1/√d where the rule is to have none.
export const comparedRule = (text) => (text === "none" ? "1/sqrt(d)" : text);

export const lessonRules = () => RULES.map((rule) => rule.text);

// Powers of two from low to high, both included: the d and n that curves are computed at.
export function powersOfTwo(low, high) {
  const values = [];
  for (let value = low; value <= high; value *= 2) values.push(value);
  return values;
}

export function quantile(sorted, part) {
  const place = part * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.ceil(place);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
}

export function momentsOf(values) {
  let [sum, squares] = [0, 0];
  for (const value of values) sum += value;
  const mean = sum / values.length;
  for (const value of values) squares += (value - mean) ** 2;
  return { mean, std: Math.sqrt(squares / values.length) };
}
