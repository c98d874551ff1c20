// The page of a tuned model: the address and the buttons choose language and theme. Everything else is there without it.
const root = document.documentElement;
const asked = new URLSearchParams(location.hash.slice(1));
const view = {
  lang: ["en", "zh"].includes(asked.get("lang")) ? asked.get("lang") : root.lang.startsWith("zh") ? "zh" : "en",
  theme: ["light", "dark"].includes(asked.get("theme")) ? asked.get("theme") : matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
};

function dress() {
  root.lang = view.lang === "zh" ? "zh-CN" : "en";
  root.dataset.theme = view.theme;
  for (const code of ["en", "zh"]) document.getElementById(`lang-${code}`).setAttribute("aria-pressed", String(code === view.lang));
}

function choose(change) {
  Object.assign(view, change);
  dress();
  history.replaceState(null, "", `#${new URLSearchParams(view)}`);
}

for (const code of ["en", "zh"]) document.getElementById(`lang-${code}`).addEventListener("click", () => choose({ lang: code }));
document.getElementById("theme").addEventListener("click", () => choose({ theme: view.theme === "dark" ? "light" : "dark" }));
dress();
