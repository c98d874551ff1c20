"""The lab's page in a real browser. After every test: nothing asked of the network, nothing on the console, no dialog."""

import re
import time
from html import unescape
from html.parser import HTMLParser

import pytest

from isotherm.report import shell
from isotherm.report.explain import page as pages
from isotherm.report.explain import words
from tests.report import claims
from tests.report.conftest import Opened, until
from tests.report.page_words import PAGE

KEPT = re.compile(
    r"softmax|logit|isotherm|transformers|attention|Transformer|BERT|Attention|scaled?|self|zhihu\.com/\S+|UTC|Isotherm"
    r"|explain|export --json|log n|SSMax|YaRN|QK-norm|cosine|ln|Var|diag|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
)
BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"
STROKE = "getComputedStyle(document.querySelector('.c0.stroke')).stroke"
INTRUDE = """() => {
  const script = document.createElement("script");
  script.textContent = "window.broken = 1";
  document.body.append(script);
}"""
SENTENCES = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (text && !parent.closest("[translate=no], code, math, script, style") && parent.checkVisibility()) found.push(text);
  }
  return found;
}"""


IN_LANGUAGE = """lang => document.documentElement.lang.startsWith(lang)
  && [...document.querySelectorAll(".living .said, [data-reading=entropy]")].filter(it => it.textContent)
    .every(it => /[\u4e00-\u9fff]/.test(it.textContent) === (lang === "zh"))"""


def speaks(page, language):
    """Wait until every picture that was drawn says so in this language."""
    until(page, IN_LANGUAGE, language)


@pytest.fixture
def shown(browser, tmp_path):
    opened = []

    def open_page(book, anchor="#lang=en", **options):
        path = tmp_path / "index.html"
        path.write_text(pages.to_html(book, "en"), encoding="utf-8")
        opened.append(Opened(browser, path, anchor, **options))
        return opened[-1]

    yield open_page
    for it in opened:
        assert it.outside() == []
        assert it.said == []
        it.context.close()


def test_it_shows_every_claim_with_its_parts(shown):
    page = shown(claims.usual()).page
    assert page.locator("article").count() == 3
    assert page.locator("#contents nav ol a").count() == 3
    for verdict in ("confirmed", "conditional", "refuted"):
        assert page.locator(f"article.{verdict} .verdict-badge").inner_text().split() == [
            words.GLYPHS[verdict],
            verdict,
        ]
    assert "on record: confirmed" in page.locator("article.refuted").inner_text()
    article = page.locator("#dot-variance")
    for part in ("How far do the scores spread?", "from documents 000, 002", "The variance is d within 1 %.", "1019"):
        assert part in article.inner_text().replace("\xa0", " ")
    assert article.locator("figure").count() == 3
    assert page.locator("#errata .erratum").count() == 3
    assert "it broke" in page.locator("#method").inner_text()
    assert "0123456789abcdef" in page.locator("#method").inner_text()


def test_formulas_are_drawn_by_the_browser(shown):
    page = shown(claims.usual()).page
    assert page.locator("math").count() == 3
    box = page.locator("math").first.bounding_box()
    assert box["width"] > 30
    assert box["height"] > 10
    assert page.evaluate("document.querySelector('math msub').namespaceURI").endswith("MathML")


def test_the_heat_map_is_the_largest_picture(shown):
    page = shown(claims.usual(), viewport={"width": 1280, "height": 900}).page
    sizes = page.eval_on_selector_all(
        "article figure", "all => all.map(it => [it.className, it.getBoundingClientRect().width])"
    )
    assert max(sizes, key=lambda size: size[1])[0] == "picture"
    assert max(width for kind, width in sizes if kind != "picture") < min(
        width for kind, width in sizes if kind == "picture"
    )


def test_the_other_language_changes_every_sentence(shown):
    page = shown(claims.usual()).page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # everything is drawn
    english = page.evaluate(SENTENCES)
    page.locator("#lang-zh").click()
    speaks(page, "zh")
    assert page.title() == words.PAGE_TITLE.zh
    chinese = page.evaluate(SENTENCES)
    assert [text for text in english if re.search(r"[\u4e00-\u9fff]", text)] == []
    left = [text for text in chinese if re.search(r"[A-Za-z]{2,}", KEPT.sub("", text)) and text not in claims_names()]
    assert left == []
    same = {text for text in set(english) & set(chinese) if re.search(r"[a-z]{3,}", KEPT.sub("", text))}
    assert same == set()
    page.reload()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.locator("#lang-en").click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    speaks(page, "en")
    assert page.evaluate(SENTENCES) == english


def claims_names():
    return {"dot-variance", "ten-draws", "freezing", "dot-variance 的散布", "ten-draws 的散布", "freezing 的散布"} | {
        f"“{name} 的散布”的数据" for name in ("dot-variance", "ten-draws", "freezing")
    }


def test_screen_readers_hear_one_language(shown):
    page = shown(claims.usual(), "#lang=zh").page
    tree = page.locator("body").aria_snapshot()
    assert "The variance of q·k" not in tree
    assert "q·k 的方差是" in tree
    assert re.search(r"img .*散布随", tree)  # a figure is named by its caption


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(shown, scheme):
    page = shown(claims.usual(), color_scheme=scheme).page
    look = f"[{BACKGROUND}, {STROKE}]"
    before = page.evaluate(look)
    assert (sum(map(int, re.findall(r"\d+", before[0]))) > 400) == (scheme == "light")
    assert page.locator("#theme").inner_text() == ("Dark" if scheme == "light" else "Light")
    page.locator("#theme").click()
    after = page.evaluate(look)
    assert after[0] != before[0]
    assert after[1] != before[1]
    page.reload()
    assert page.evaluate(look) == after


def comes_to(page, name, within=20.0):
    """Whether the page has scrolled to an element, smoothly or at once."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if abs(page.evaluate(f"document.getElementById('{name}').getBoundingClientRect().top")) < 120:
            return True
        page.wait_for_timeout(50)
    return False


def test_a_link_leads_to_its_claim_and_keeps_the_language(shown):
    page = shown(claims.usual(), "#lang=zh", viewport={"width": 1000, "height": 600}).page
    page.locator("#contents nav ol a").nth(2).click()
    assert comes_to(page, "freezing")
    assert page.evaluate("location.hash") == "#lang=zh&at=freezing"
    page.reload()
    assert comes_to(page, "freezing")


def test_the_keyboard_reaches_everything(shown):
    page = shown(claims.usual()).page
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.href"
            )
        )
    assert reached[:5] == ["skip", "wordmark", "toc", "lang-en", "lang-zh"]
    page.locator("#lang-zh").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.locator("#lang-zh").get_attribute("aria-pressed") == "true"
    for region in page.locator(".scroll").all():
        assert region.get_attribute("tabindex") == "0"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("make", [claims.usual, claims.hostile], ids=lambda make: make.__name__)
def test_a_narrow_screen_does_not_scroll_sideways(shown, make, language):
    page = shown(make(), f"#lang={language}", viewport={"width": 360, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


SMALLEST = """() => Math.min(...[...document.querySelectorAll("article figure svg text:not(:empty)")]
  .filter(text => text.checkVisibility())
  .map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a))"""
CUT = """() => [...document.querySelectorAll("article table, article figure svg, article math")].filter(it => {
  const box = it.getBoundingClientRect();
  const home = it.closest(".scroll, .formula");
  return box.right > innerWidth + 1 && !(home && getComputedStyle(home).overflowX === "auto");
}).length"""


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_letters_of_figures_can_be_read_and_wide_parts_scroll_by_themselves(shown, width, language):
    page = shown(claims.usual(), f"#lang={language}", viewport={"width": width, "height": 800}).page
    assert page.evaluate(SMALLEST) >= 11
    assert page.evaluate(CUT) == 0


def test_labels_of_an_axis_do_not_touch_on_a_phone(shown):
    page = shown(claims.usual(), viewport={"width": 390, "height": 800}).page
    touching = page.evaluate(
        """() => [...document.querySelectorAll("article figure svg")].flatMap(svg => {
          const boxes = [...svg.querySelectorAll("text.word")].map(it => it.getBoundingClientRect());
          const beside = (a, b) => a.left >= b.right || b.left >= a.right;
          const above = (a, b) => a.top >= b.bottom - 3 || b.top >= a.bottom - 3;
          return boxes.filter((a, i) => boxes.some((b, j) => j > i && !beside(a, b) && !above(a, b)));
        }).length"""
    )
    assert touching == 0


def test_a_quotation_is_chinese_in_both_languages(shown):
    page = shown(claims.usual()).page
    quotation = page.locator("#dot-variance .quotation")
    assert quotation.locator(".original").inner_text() == "点积的方差为dk"
    assert quotation.locator(".original").get_attribute("lang") == "zh-CN"
    assert "the dot product has variance dk" in quotation.inner_text()
    assert "document 000, line 21" in quotation.inner_text()
    page.locator("#lang-zh").click()
    assert "点积的方差为dk" in quotation.inner_text()
    assert "the dot product" not in quotation.inner_text()
    assert "文档 000 第 21 行" in quotation.inner_text()


def test_it_prints(shown):
    page = shown(claims.usual(), "#lang=en&theme=dark").page
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"


def test_hostile_texts_stay_text(shown):
    page = shown(claims.hostile()).page
    assert page.locator("main script, main img, main b b, main iframe").count() == 0
    assert "<script>alert(1)</script>" in page.locator("article h3").inner_text()
    assert page.locator("math").count() == 0
    assert page.locator(".steps code").count() == 2


def test_the_policy_stops_what_is_not_ours(shown):
    opened = shown(claims.usual())
    opened.page.evaluate(INTRUDE)
    opened.wait_for(lambda: opened.said)
    assert opened.page.evaluate("window.broken") is None
    assert any("Content Security Policy" in line for line in opened.said)
    opened.said.clear()


def test_without_a_script_it_reads_in_the_language_it_was_made_in(browser, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(pages.to_html(claims.usual(), "zh"), encoding="utf-8")
    opened = Opened(browser, path, "", java_script_enabled=False)
    assert opened.page.locator("h1").inner_text().startswith("注意力")
    opened.context.close()


class Outline(HTMLParser):
    """Counts elements, and checks that they close in order and that ids are unique."""

    void = frozenset({"meta", "link", "img", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.scripts = [], [], 0

    def handle_starttag(self, tag, attributes):
        if tag not in self.void:
            self.open.append(tag)
        self.scripts += tag == "script"
        self.ids += [value for name, value in attributes if name == "id"]
        assert not [name for name, _ in attributes if name.startswith("on") or name == "style"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("make", [claims.usual, claims.hostile], ids=lambda make: make.__name__)
def test_it_is_well_formed_small_and_on_its_own(make):
    text = pages.to_html(make(), "en")
    assert len(text.encode()) < 1_500_000
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.scripts == 3  # what dresses the page, the data, the lesson
    assert len(outline.ids) == len(set(outline.ids))
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r'(src|href)="(?!#|data:,)', text)


def test_the_words_of_the_two_pages_agree():
    for key in ("theme_dark", "theme_light", "switch_language"):
        pair = f'<span lang="en">{PAGE[key].en}</span><span lang="zh-CN">{PAGE[key].zh}</span>'
        assert pair in shell.asset("explain.html")


def test_what_every_run_says_is_said_in_both_languages():
    said = re.findall(r'lang="(en|zh-CN)"[^>]*>(.*?)</(?:span|p|a|button)>', shell.asset("explain.html"))
    assert len(said) == 2 * 37
    assert re.findall("<dt>(.*?)</dt>", shell.asset("explain.html")) == list(words.DOCUMENTS)
    for (one, english), (other, chinese) in zip(said[::2], said[1::2], strict=True):
        assert (one, other) == ("en", "zh-CN")
        assert english
        assert re.search(r"[\u4e00-\u9fff]", chinese)
        assert not re.search(r"[\u4e00-\u9fff]", english)
