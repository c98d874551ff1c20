// Before anything is shown: the language and theme that the address asks for. The lesson's script, at the end of the page, does the rest;
// until it has built the pictures the page is held back, so that nothing moves.
const root = document.documentElement;
const asked = new URLSearchParams(location.hash.slice(1));
if (["en", "zh"].includes(asked.get("lang"))) root.lang = asked.get("lang") === "zh" ? "zh-CN" : "en";
const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
root.dataset.theme = ["light", "dark"].includes(asked.get("theme")) ? asked.get("theme") : dark;
root.classList.add("waiting");
addEventListener("load", () => root.classList.remove("waiting"));
