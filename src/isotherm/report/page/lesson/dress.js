// Language, theme and place of the page.
import { inLanguage } from "./elements.js";

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
export const themeOf = (state) => state.theme || (darkSystem.matches ? "dark" : "light");

export function dress(state) {
  const root = document.documentElement;
  root.lang = state.lang === "zh" ? "zh-CN" : "en";
  root.dataset.theme = themeOf(state);
  for (const code of ["en", "zh"]) document.getElementById(`lang-${code}`).setAttribute("aria-pressed", String(state.lang === code));
  const { en, zh } = document.querySelector("h1").dataset;
  document.title = inLanguage([en, zh], state.lang);
}

// The reader stays at what is being read when the other language makes the page longer or shorter.
function keepPlace(change) {
  const reading = [...document.querySelectorAll("section[id], article[id]")].findLast((part) => part.getBoundingClientRect().top < innerHeight / 3);
  const before = reading?.getBoundingClientRect().top;
  change();
  if (reading && scrollY > 0) scrollBy({ top: reading.getBoundingClientRect().top - before, behavior: "instant" });
}

export function wireDress(store) {
  dress(store.state);
  store.subscribe((changed, state) => {
    if (changed.includes("lang")) keepPlace(() => dress(state));
    else if (changed.includes("theme")) dress(state);
    if (changed.includes("at")) document.getElementById(state.at)?.scrollIntoView();
  });
  darkSystem.addEventListener("change", () => dress(store.state));
  for (const code of ["en", "zh"]) document.getElementById(`lang-${code}`).addEventListener("click", () => store.set({ lang: code }));
  document.getElementById("theme").addEventListener("click", () => store.set({ theme: themeOf(store.state) === "dark" ? "light" : "dark" }));
  const contents = document.querySelector("details.toc");
  contents.addEventListener("click", (event) => { if (event.target.closest("a")) contents.open = false; });
  contents.addEventListener("keydown", (event) => { if (event.key === "Escape") { contents.open = false; contents.querySelector("summary").focus(); } });
  document.addEventListener("click", (event) => { if (!contents.contains(event.target)) contents.open = false; });
}
