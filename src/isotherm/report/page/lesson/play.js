// Free play: every control at once, and what one row does under them.
import { CONTROLS, control } from "./controls.js";
import { bilingual, element } from "./elements.js";
import { row } from "./maths/sample.js";
import { rowStats } from "./maths/stats.js";
import { freezingThreshold } from "./maths/theory.js";
import { percentShown, shown } from "./pictures/numbers.js";

const PLAYED = ["d", "n", "rule", "spread", "mean", "correlation", "growth", "seed"].filter((key) => CONTROLS[key]);

// The numbers of the row that is drawn: as `isotherm check` would give them for it.
export function readings(state) {
  const stats = rowStats(row(state).logits);
  const threshold = freezingThreshold(state.n);
  return { ...stats, threshold, frozen: stats.logit_std > threshold };
}

export class Board {
  constructor(node, world) {
    Object.assign(this, { node, world });
    this.controls = PLAYED.map((key) => control(key, world.store));
    const reset = element("button", { type: "button", "data-tool": "reset", onclick: () => world.store.reset(PLAYED) }, bilingual(world.words.reset));
    this.values = {};
    const readout = (key) => element("div", {}, element("dt", {}, bilingual(world.words[`play_${key}`])), this.values[key] = element("dd", { "data-reading": key }));
    node.append(element("div", { class: "knobs" }, this.controls.map((it) => it.node), reset),
      element("dl", { class: "readouts" }, ["gate", "entropy", "top", "spread"].map(readout)));
    world.painter.add(this);
  }

  paint() {
    const { store, say } = this.world;
    for (const it of this.controls) it.show(store.state);
    const found = readings(store.state);
    this.values.gate.textContent = shown(found.jacobian_trace);
    this.values.entropy.textContent = say("play_of_most", { entropy: shown(found.entropy), share: percentShown(found.entropy_fraction) });
    this.values.top.textContent = percentShown(found.top1);
    this.values.spread.textContent = say(found.frozen ? "play_frozen" : "play_open", { spread: shown(found.logit_std), threshold: shown(found.threshold) });
  }

  speak() {
    for (const it of this.controls) it.show(this.world.store.state);
  }
}
