// A frame around a picture: its room, its controls, its sentence, its table, and its buttons.
import { bilingual, element, inLanguage, svgElement, unbroken } from "./elements.js";
import { copyText, csvText, saveFile, savePicture, standaloneSvg } from "./exports.js";
import { control } from "./controls.js";
import { exactRow } from "./pictures/expected.js";
import { shown } from "./pictures/numbers.js";

const SHOWN_ROWS = 200;
const KEY_STEPS = 48;

// How much larger the page's text is than a picture's: on a very wide screen, or for a reader who wants large text.
const textScale = () => Math.max(parseFloat(getComputedStyle(document.documentElement).fontSize) / 16, 1);

// Mount `picture` into a <figure> that holds its caption. `world` is what all frames share: store, lesson, words, say, painter, announce.
export class Frame {
  constructor(figure, name, picture, world, { controls = picture.controls || [], tools = true } = {}) {
    Object.assign(this, { node: figure, name, picture, world, keys: controls });
    this.root = svgElement("svg", { role: "img", "aria-labelledby": `caption-${name}`, "aria-describedby": `said-${name}` });
    this.stage = element("div", { class: "stage" }, this.root);
    this.sentence = element("p", { class: "said", id: `said-${name}` });
    this.controls = controls.map((key) => control(key, world.store));
    const caption = figure.querySelector("figcaption");
    if (caption) caption.id = `caption-${name}`;
    figure.prepend(...[picture.above?.(world), this.stage,
      this.controls.length > 0 && element("div", { class: "knobs" }, this.controls.map((it) => it.node)), this.sentence].filter(Boolean));
    figure.append(...[tools && this.tools(), this.asTable()].filter(Boolean));
    if (picture.press) this.pressable();
    const [wide, high] = picture.ratio || [16, 9];
    this.stage.style.setProperty("--ratio", String(wide / high));
    const [narrow, tall] = picture.tall || [4, 5];
    this.stage.style.setProperty("--tall", String(narrow / tall));
    new ResizeObserver(() => world.painter.spoil([this])).observe(this.stage);
    world.painter.add(this);
  }

  word(key) {
    return bilingual(this.world.words[key]);
  }

  paint() {
    const { store, lesson, say } = this.world;
    const { state } = store;
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight].map((length) => length / textScale());
    for (const it of this.controls) it.show(state);
    if (width < 1 || height < 1) return;
    this.data = this.picture.compute(state, lesson);
    this.drawing = { width, height, root: this.root, svg: svgElement };
    this.root.replaceChildren();
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.draw(this.drawing, this.data, state, say);
    const said = this.picture.describe(this.data, state, say);
    if (this.sentence.textContent !== said) this.sentence.replaceChildren(...unbroken(said));
    if (this.node.contains(document.activeElement)) this.world.announce(said);
    if (this.cursor && document.activeElement === this.stage) this.root.append(svgElement("circle", { class: "pressed", cx: this.cursor[0] * width, cy: this.cursor[1] * height, r: 9 }));
    if (this.details.open) this.fillTable();
  }

  asTable() {
    this.table = element("div", { class: "scroll", tabindex: 0, role: "region" });
    // Filled before it opens; a browser that opens it in another way (a search, a script) tells so afterwards.
    const fill = () => this.fillTable();
    this.details = element("details", { class: "as-table", ontoggle: () => this.details.open && !this.table.hasChildNodes() && fill() },
      element("summary", { onclick: () => this.details.open || fill() }, this.word("as_table")), this.table);
    return this.details;
  }

  fillTable() {
    const { store, say } = this.world;
    const { heads, rows } = this.picture.table(this.data ?? this.picture.compute(store.state, this.world.lesson), store.state, say);
    const cell = (value) => element("td", { class: typeof value === "number" ? "number" : null }, typeof value === "number" ? shown(value, 4) : value);
    const left = rows.length - SHOWN_ROWS;
    this.table.setAttribute("aria-label", say("as_table"));
    this.table.replaceChildren(
      element("table", {}, element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, head)))),
        element("tbody", {}, rows.slice(0, SHOWN_ROWS).map((row) => element("tr", {}, row.map(cell))))),
      left > 0 ? element("p", { class: "quiet" }, say("more_rows", { n: left })) : "");
  }

  tools() {
    const { store, say } = this.world;
    const file = `isotherm-${this.name}`;
    const title = () => this.node.querySelector("figcaption")?.textContent.trim() || file;
    const button = (key, onclick) => element("button", { type: "button", "data-tool": key, onclick }, this.word(key));
    const told = element("span", { class: "told", role: "status" });
    const table = () => this.picture.table(this.data, store.state, say, exactRow);
    return element("div", { class: "tools" },
      this.keys.length > 0 && button("reset", () => store.reset(this.keys)),
      button("copy_link", () => this.copyLink(told)),
      button("save_png", () => savePicture(this.root, title(), file)),
      button("save_svg", () => saveFile(standaloneSvg(this.root, title()), "image/svg+xml", `${file}.svg`)),
      button("save_csv", () => saveFile(`\ufeff${csvText(table())}`, "text/csv;charset=utf-8", `${file}.csv`)), told);
  }

  async copyLink(told) {
    const { store, say, address } = this.world;
    store.set({ at: this.node.closest("[id]:not(figure)")?.id || null });
    address.flush();
    told.textContent = await copyText(location.href) ? say("copied") : say("copy_from_address");
    setTimeout(() => { told.textContent = ""; }, 4000);
  }

  // A press, or a drag, at a point of the picture; the arrow keys move that point when the picture has the focus.
  pressable() {
    const { store } = this.world;
    const press = (x, y) => {
      const part = this.drawing && this.picture.press(x, y, this.data, store.state, this.drawing);
      if (part) store.set(part);
    };
    const at = (event) => {
      const box = this.stage.getBoundingClientRect();
      press((event.clientX - box.left) / textScale(), (event.clientY - box.top) / textScale());
    };
    this.stage.classList.add("pressable");
    for (const [name, value] of Object.entries({ tabindex: 0, role: "application", "aria-describedby": `said-${this.name}` })) this.stage.setAttribute(name, value);
    this.stage.addEventListener("pointerdown", (event) => { if (event.button === 0) { this.cursor = null; this.stage.setPointerCapture(event.pointerId); at(event); } });
    this.stage.addEventListener("pointermove", (event) => { if (event.buttons & 1) at(event); });
    this.stage.addEventListener("blur", () => { this.cursor = null; this.world.painter.spoil([this]); });
    this.stage.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      this.cursor = (this.cursor || [0.5, 0.5]).map((part, axis) => Math.min(Math.max(part + step[axis] / KEY_STEPS, 0), 1));
      if (this.drawing) press(this.cursor[0] * this.drawing.width, this.cursor[1] * this.drawing.height);
      this.world.painter.spoil([this]);
    });
  }

  // What no style sheet switches: names for screen readers, and the choices of a list; also where nothing is drawn yet.
  speak(lang) {
    for (const it of this.controls) it.show(this.world.store.state);
    if (this.picture.press) this.stage.setAttribute("aria-label", inLanguage(this.world.words.press_here, lang));
  }
}
