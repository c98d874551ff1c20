// Language, theme and place: kept in the address, so that a link shows what its sender saw. The page itself needs no script.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const view = { lang: root.lang === "zh-CN" ? "zh" : "en", theme: null, at: null };

function readHash() {
  const hash = location.hash.slice(1);
  if (!hash.includes("=")) {
    view.at = hash || view.at;
    return;
  }
  const said = new URLSearchParams(hash);
  if (["en", "zh"].includes(said.get("lang"))) view.lang = said.get("lang");
  if (["light", "dark"].includes(said.get("theme"))) view.theme = said.get("theme");
  view.at = said.get("at");
}

function writeHash() {
  const hash = new URLSearchParams({ lang: view.lang });
  if (view.theme) hash.set("theme", view.theme);
  if (view.at) hash.set("at", view.at);
  try {
    history.replaceState(null, "", `#${hash}`);
  } catch {
    // A page inside a frame may have no address of its own.
  }
}

const theme = () => view.theme || (dark.matches ? "dark" : "light");

function dress() {
  root.lang = view.lang === "zh" ? "zh-CN" : "en";
  root.dataset.theme = theme();
  for (const code of ["en", "zh"]) document.getElementById(`lang-${code}`)?.setAttribute("aria-pressed", String(view.lang === code));
  const title = document.querySelector("h1")?.dataset[view.lang];
  if (title) document.title = title;
}

// The reader stays at the claim being read when the other language makes the page longer or shorter.
function speak(code) {
  const reading = [...document.querySelectorAll("section[id], article[id]")].findLast((part) => part.getBoundingClientRect().top < innerHeight / 3);
  const before = reading?.getBoundingClientRect().top;
  view.lang = code;
  dress();
  writeHash();
  if (reading && scrollY > 0) scrollBy(0, reading.getBoundingClientRect().top - before);
}

readHash();
dress();
dark.addEventListener("change", dress);
addEventListener("hashchange", () => { readHash(); dress(); writeHash(); });
addEventListener("DOMContentLoaded", () => {
  dress();
  for (const code of ["en", "zh"]) document.getElementById(`lang-${code}`).addEventListener("click", () => speak(code));
  document.getElementById("theme").addEventListener("click", () => { view.theme = theme() === "dark" ? "light" : "dark"; dress(); writeHash(); });
  if (view.at) document.getElementById(view.at)?.scrollIntoView();
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
