// The bar of a page: language and theme. A page defines `view`, `render` and `writeHash`.
function buildBar() {
  const language = (code, text) => el("button", {
    type: "button", id: `lang-${code}`, lang: code === "zh" ? "zh-CN" : "en", "aria-pressed": String(view.lang === code), onclick: () => speak(code),
  }, name(text, "span"));
  const dark = theme() === "dark";
  return el("header", { class: "top" }, name("isotherm", "span", { class: "wordmark" }),
    el("div", { class: "buttons", role: "group", "aria-label": t("switch_language") }, language("en", "English"), language("zh", "中文")),
    el("button", { type: "button", id: "theme", title: t("theme"), onclick: swapTheme }, t(dark ? "theme_light" : "theme_dark")));
}

function swapTheme() {
  view.theme = theme() === "dark" ? "light" : "dark";
  dress();
  writeHash();
  document.getElementById("theme").focus();
}

const theme = () => view.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function dress() {
  document.documentElement.dataset.theme = theme();
  document.querySelector("header.top")?.replaceWith(buildBar());
}

function speak(code) {
  view.lang = code;
  render();
  writeHash();
  document.getElementById(`lang-${code}`).focus();
}
