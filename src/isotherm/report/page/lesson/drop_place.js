// A place to drop a file on, or to choose one. What the file holds is handed on, or its refusal is said. The whole picture takes the
// file; dropped beside it, a file does nothing: by itself a browser would leave the page for it.
import { Refusal } from "./drop.js";
import { bilingual, element } from "./elements.js";

const filled = (pair, values) => pair.map((text) => text.replace(/\{(\w+)\}/g, (_, name) => String(values[name])));

// `id` names the field, `here` is the word that invites, `read` makes something with a name of a file, `taken` receives it.
export function dropPlace({ id, here, read, taken }, words) {
  const told = element("p", { class: "told", role: "status" });
  const say = (pair, refused) => {
    told.className = refused ? "told refused" : "told";
    told.replaceChildren(...bilingual(pair));
  };
  const take = async (file) => {
    told.replaceChildren();
    try {
      const found = await read(file);
      taken(found);
      say(filled(words.drop_done, found), false);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      say(filled(words[error.key], error.values), true);
    }
  };
  const input = element("input", { type: "file", id, class: "unseen", accept: ".json,application/json", onchange: () => { if (input.files[0]) take(input.files[0]); input.value = ""; } });
  const place = element("div", { class: "drop" }, element("span", {}, bilingual(words[here])), input, element("label", { for: id }, bilingual(words.choose_file)));
  const inside = (event) => (place.closest("figure") || place).contains(event.target);
  const followed = (name, then) => document.addEventListener(name, (event) => { if (event.dataTransfer?.types.includes("Files")) then(event); });
  followed("dragover", (event) => {
    place.classList.toggle("over", inside(event));
    if (inside(event)) event.dataTransfer.dropEffect = "copy";
    else if (!event.defaultPrevented) event.dataTransfer.dropEffect = "none";
    event.preventDefault();
  });
  followed("dragleave", () => place.classList.remove("over"));
  followed("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    if (inside(event) && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  return [place, told];
}
