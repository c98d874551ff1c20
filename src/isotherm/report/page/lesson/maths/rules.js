// The scale rules a student can turn, written as `isotherm rules` writes them, with the numbers of isotherm/scale.

export const RULES = [
  { text: "none", name: ["no scale", "不缩放"], formula: "1" },
  { text: "1/sqrt(d)", name: ["divide by √d", "除以 √d"], formula: "1/√d" },
  { text: "1/d", name: ["divide by d (μP)", "除以 d（μP）"], formula: "1/d" },
  {
    text: "query-pre-attn-scalar:512",
    name: ["divide by √512, the width of eight heads of 64", "除以 √512，即八个 64 维头的总宽度"],
    formula: "1/√512",
  },
  {
    text: "log-n:512 * 1/sqrt(d)",
    name: ["growing with log n beyond 512 keys", "键数超过 512 后随 log n 增大"],
    formula: "max(1, ln n/ln 512)/√d",
  },
  { text: "ssmax * 1/sqrt(d)", name: ["scalable softmax", "可扩展 softmax（SSMax）"], formula: "0.43·ln n/√d" },
  { text: "yarn:4 * 1/sqrt(d)", name: ["YaRN, context stretched 4 times", "YaRN，上下文拉伸 4 倍"], formula: "(0.1·ln 4 + 1)²/√d" },
  { text: "qk-norm", name: ["QK-norm, no scale", "QK-norm，不缩放"], formula: "rms(q)·rms(k)" },
  { text: "qk-norm * 1/sqrt(d)", name: ["QK-norm, then divide by √d", "QK-norm，再除以 √d"], formula: "rms(q)·rms(k)/√d" },
  { text: "cosine", name: ["10 times the cosine", "余弦的 10 倍"], formula: "10·cos(q, k)" },
];

const valueOr = (argument, otherwise) => (argument === undefined ? otherwise : argument);

// What each rule multiplies q·k by, from its arguments (numbers, null where the text says "none") and the site.
const FACTORS = {
  none: () => 1,
  "1/sqrt(d)": (_, { d }) => 1 / Math.sqrt(d),
  "1/d": ([base, power], { d }) => Math.sqrt(base ?? 1) / d ** valueOr(power, 1),
  "query-pre-attn-scalar": ([scalar]) => 1 / Math.sqrt(valueOr(scalar, 256)),
  "log-n": ([length], { n }) => Math.max(1, Math.log(n) / Math.log(valueOr(length, 512))),
  ssmax: ([s], { n }) => valueOr(s, 0.43) * Math.log(n),
  yarn: ([stretch]) => (stretch > 1 ? 0.1 * Math.log(stretch) + 1 : 1) ** 2,
  "qk-norm": () => 1,
  cosine: ([logarithm]) => Math.min(Math.exp(valueOr(logarithm, Math.LN10)), 100),
};

function ruleFactors(text) {
  return text.split("*").map((part) => {
    const [name, rest] = part.trim().split(":");
    const words = rest === undefined ? [] : rest.split(",").map((word) => word.trim());
    return { name, values: words.map((word) => (word === "none" ? null : Number(word))) };
  });
}

/** The multiplier of q·k under a rule, for a head of dimension d and n visible keys. A number is a rule, and so is x0.5. */
export function scaleOf(text, site) {
  return ruleFactors(text).reduce((product, { name, values }) => {
    if (Object.hasOwn(FACTORS, name)) return product * FACTORS[name](values, site);
    const number = Number(name.replace(/^x/, ""));
    if (!(number > 0)) throw new Error(`no rule of the lesson: ${text}`);
    return product * number;
  }, 1);
}

/** What a rule does to q and k first: nothing, mean square 1 ("rms"), or length 1 ("unit"). */
export function normalises(text) {
  const names = ruleFactors(text).map(({ name }) => name);
  if (names.includes("qk-norm")) return "rms";
  return names.includes("cosine") ? "unit" : "none";
}
