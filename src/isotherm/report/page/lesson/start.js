// The lesson comes to life: state, pictures, questions, glossary, free play.
import { Board } from "./play.js";
import { Frame } from "./frame.js";
import { Painter } from "./painter.js";
import { PICTURES } from "./pictures/index.js";
import { Store, keepAddress, parseHash } from "./state.js";
import { element, speaker } from "./elements.js";
import { model } from "./model.js";
import { run } from "./run.js";
import { wireDress } from "./dress.js";
import { wirePrediction } from "./predict.js";
import { wireTerm } from "./glossary.js";

const ANNOUNCE_AFTER = 700;

// One line for screen readers: what the picture in use shows, once the reader has paused.
function announcer() {
  const line = element("p", { class: "unseen", "aria-live": "polite", id: "announcer" });
  document.body.append(line);
  let waiting = null;
  return (text) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (line.textContent !== text) line.textContent = text; }, ANNOUNCE_AFTER);
  };
}

function begin() {
  const lesson = JSON.parse(document.getElementById("lesson").textContent);
  const first = { lang: document.documentElement.lang.startsWith("zh") ? "zh" : "en", ...parseHash(location.hash) };
  const store = new Store(first);
  const say = speaker(lesson.words, () => store.state.lang);
  const world = { store, lesson, words: lesson.words, say, painter: new Painter(), announce: announcer(), address: keepAddress(store, window) };
  const pictures = { ...PICTURES, model, run };
  wireDress(store);
  const frames = [...document.querySelectorAll("figure.living")].filter((figure) => Object.hasOwn(pictures, figure.dataset.picture)).map((figure) => {
    const name = figure.dataset.picture;
    return new Frame(figure, name, pictures[name], world, figure.closest("#play") ? { controls: [] } : {});
  });
  const board = document.getElementById("board");
  if (board) frames.push(new Board(board, world));
  for (const frame of frames) frame.speak(store.state.lang);
  store.subscribe((changed, state) => {
    if (changed.includes("lang")) {
      world.announce("");
      for (const frame of frames) frame.speak(state.lang);
      world.painter.spoilFar();
    } else if (changed.some((key) => key !== "at")) world.painter.spoil();
  });
  for (const form of document.querySelectorAll("form.predict")) wirePrediction(form, lesson.words);
  for (const term of document.querySelectorAll("button.term")) wireTerm(term);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not(.as-table, .toc)").forEach((part) => { part.open = true; });
    world.painter.paintAll();
  });
  document.documentElement.classList.remove("waiting");
  if (store.state.at) document.getElementById(store.state.at)?.scrollIntoView({ behavior: "instant" });
}

begin();
