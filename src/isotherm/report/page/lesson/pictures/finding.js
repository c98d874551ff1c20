// The first screen: how many pairs of sentences a trained model still finds when its scale is changed. Recorded, not computed here.
import { linearAxis, logAxis } from "./axes.js";
import { LINE, Labels, SMALL, textWidth } from "./labels.js";
import { factorShown, percentShown, shown } from "./numbers.js";
import { Panel, wholeBox } from "./panel.js";

function nearestPoint(points, factor) {
  return points.reduce((best, point) => (Math.abs(Math.log(point.factor / factor)) < Math.abs(Math.log(best.factor / factor)) ? point : best));
}

const marksOf = ({ d }) => [["d", 1 / Math.sqrt(d)], ["root", 1], ["none", Math.sqrt(d)]];

// Where the curve passes a factor, between recorded ones on the logarithmic axis.
function shareAt(points, factor) {
  const above = points.findIndex((point) => point.factor >= factor * (1 - 1e-9));
  if (above <= 0) return points[above === 0 ? 0 : points.length - 1].share;
  const [low, high] = [points[above - 1], points[above]];
  return low.share + (high.share - low.share) * (Math.log(factor / low.factor) / Math.log(high.factor / low.factor));
}

function findingPanel(drawing, labels, { points, pairs }, say) {
  const across = logAxis(points[0].factor, points.at(-1).factor, { base: 2, label: factorShown });
  const upward = linearAxis(0, 1, { label: percentShown });
  const words = { title: say("finding_title", { pairs: shown(pairs) }), below: say("finding_factor") };
  return new Panel(drawing, labels, wholeBox(drawing), across, upward, { ...words, right: 14, above: 2 * LINE + 2 });
}

// The three scales, named above the panel with what they find; «as trained» stands there where it has room.
function drawMarks(panel, labels, data, say) {
  for (const [name, factor] of marksOf(data)) {
    if (factor < panel.across.low * 0.999 || factor > panel.across.high * 1.001) continue;
    panel.upright(factor, "c-ink stroke pic-mark");
    labels.keep(panel.x(factor) - 2, panel.top, panel.x(factor) + 2, panel.bottom);
    const share = shareAt(data.points, factor);
    const x = panel.x(factor);
    labels.put(percentShown(share), x, panel.top - 7, { anchor: "middle", kind: "loud" });
    labels.put(say(`finding_mark_${name}`), x, panel.top - 7 - LINE, { anchor: "middle", kind: "loud pic-title" });
    if (share > 0) panel.dots([[factor, share]], "c-ink", 4);
  }
  const whole = say("finding_as_trained");
  const beside = panel.x(1) + textWidth(percentShown(1)) / 2 + 6;
  labels.place(whole, [[beside, panel.top - 7, "start"], [2 * panel.x(1) - beside, panel.top - 7, "end"]], { size: SMALL });
}

export const findingPicture = {
  controls: ["factor"],
  ratio: [16, 10],
  compute(state, lesson) {
    if (!lesson || !lesson.finding || !lesson.finding.points.length) return null;
    const points = [...lesson.finding.points].sort((a, b) => a.factor - b.factor);
    return { ...lesson.finding, points, here: nearestPoint(points, state.factor), whole: nearestPoint(points, 1) };
  },
  draw(drawing, data, state, say) {
    const labels = new Labels(drawing);
    if (!data) {
      labels.lines(say("finding_none"), 0, 20, drawing.width);
      return;
    }
    const panel = findingPanel(drawing, labels, data, say);
    const { points, here } = data;
    drawing.panel = panel;
    panel.band(points.map(({ factor }) => factor), points.map(({ low }) => low), points.map(({ high }) => high), "c0");
    panel.line(points.map(({ factor, share }) => [factor, share]), "c0", { bold: true });
    panel.dots(points.map(({ factor, share }) => [factor, share]), "c0", 2.6);
    drawMarks(panel, labels, data, say);
    panel.ring(here.factor, here.share);
    panel.avoid(points.map(({ factor, share }) => [factor, share]));
    const [even, sharp] = [1 / Math.sqrt(data.d), Math.sqrt(data.d)].map((factor) => panel.x(factor));
    const beside = (...places) => [0.05, 0.12, 0.5].flatMap((share) => places.map(([x, anchor]) => [x, panel.y(share), anchor]));
    labels.place(say("finding_even"), beside([panel.left + 4, "start"], [even + 6, "start"]), { size: SMALL });
    labels.place(say("finding_sharp"), beside([panel.right - 4, "end"], [sharp - 6, "end"]), { size: SMALL });
  },
  describe(data, state, say) {
    if (!data) return say("finding_none");
    const { here, whole } = data;
    const [share, low, high, entropy] = [here.share, here.low, here.high, here.entropy].map(percentShown);
    const numbers = { share, low, high, entropy, gate: shown(here.gate, 2), whole: percentShown(whole.share) };
    return say(here === whole ? "finding_describe_whole" : "finding_describe", { factor: factorShown(here.factor), model: data.model, pairs: shown(data.pairs), ...numbers });
  },
  table(data, state, say) {
    const heads = [say("finding_factor"), say("finding_share"), say("finding_low"), say("finding_high"), say("finding_gate"), say("finding_entropy")];
    return { heads, rows: data ? data.points.map(({ factor, share, low, high, gate, entropy }) => [factor, share, low, high, gate, entropy]) : [] };
  },
  press(x, y, data, state, drawing) {
    return drawing.panel ? { factor: nearestPoint(data.points, drawing.panel.valueAt(x, y)[0]).factor } : null;
  },
};
