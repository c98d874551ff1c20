"""The page in a real browser. After every test: nothing asked of the network, nothing on the console, no dialog."""

import csv
import re
from dataclasses import replace
from importlib.resources import files

import pytest

from tests.report import records
from tests.report.conftest import Opened
from tests.report.page_words import PAGE, STATISTICS

# Terms and names that Chinese text keeps, and single letters of formulas.
KEPT = (
    r"softmax|logit|arg-max|MiB|kB|NaN|Inf|CSV|SVG|PNG|JSON|isotherm( check)?|--json|diag|pp|ln n|log-n|kv|eager|sdpa"
    r"|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
)
VISIBLE = """() => {
  const walker = document.createTreeWalker(document.getElementById("page"), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!parent.closest("[translate=no], [data-said]")) found.push(walker.currentNode.textContent.trim());
  }
  for (const node of document.querySelectorAll("[aria-label]")) found.push(node.getAttribute("aria-label"));
  for (const node of document.querySelectorAll("[title]:not([role=rowheader])")) found.push(node.title);
  return found.filter(Boolean);
}"""
INTRUDE = """() => {
  const script = document.createElement("script");
  script.textContent = "window.broken = 1";
  const image = new Image();
  image.src = "https://example.invalid/x.png";
  document.body.append(script, image);
}"""


def visible_texts(page):
    """All text a reader sees that is the page's own: not names or codes, not sentences of the record."""
    return page.evaluate(VISIBLE)


def fills(page):
    return page.eval_on_selector_all("[role=gridcell]", "cells => cells.map(cell => cell.style.backgroundColor)")


def focused(page):
    return page.evaluate("document.activeElement.getAttribute('aria-label')")


@pytest.mark.parametrize(
    "make", [records.minilm, records.gpt2, records.giant, records.bare, records.ugly], ids=lambda make: make.__name__
)
def test_it_has_a_cell_for_every_head(opened, make):
    record = make()
    page = opened(record).page
    assert page.locator("[role=gridcell]").count() == sum(len(layer.head_stats) for layer in record.layers)
    assert page.locator("h1").inner_text().strip() == record.model.name.strip()


def test_the_console_and_network_checks_can_fail(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<img src='https://example.invalid/x.png'><script>console.log('hello'); alert(1)</script>", encoding="utf-8"
    )
    bad = Opened(browser, path, "")
    bad.wait_for(lambda: bad.outside() and len(bad.said) >= 2)
    assert bad.outside() == ["https://example.invalid/x.png"]
    assert "hello" in bad.said
    assert "dialog: 1" in bad.said
    bad.context.close()


def test_the_policy_stops_what_is_not_ours(opened):
    page = opened(records.minilm())
    page.page.evaluate(INTRUDE)
    page.wait_for(lambda: page.refused and any("Content Security Policy" in line for line in page.said))
    assert page.page.evaluate("window.broken") is None
    assert page.refused == [("https://example.invalid/x.png", "csp")]
    page.said.clear()
    page.requests.clear()


def test_hostile_names_stay_text(opened):
    page = opened(records.ugly()).page
    page.locator("#lang-zh").click()
    page.locator("[role=gridcell]").nth(3).click()
    page.locator("#stat").select_option("max_logit")
    assert page.locator("main img, main script, main b b, main a").count() == 0
    assert page.locator(".where").inner_text() == records.ATTACK


def test_every_statistic_paints_the_map_its_own_way(opened):
    page = opened(records.with_gradient(records.gpt2())).page
    seen = set()
    for key in ["state", *(statistic["key"] for statistic in STATISTICS)]:
        page.locator("#stat").select_option(key)
        seen.add(tuple(fills(page)))
    assert len(seen) == len(STATISTICS) + 1


def test_the_temperature_gradient_is_there_only_if_it_was_measured(opened):
    options = [
        opened(record).page.locator("#stat option[value=temperature_gradient]").count()
        for record in (records.minilm(), records.with_gradient(records.minilm()))
    ]
    assert options == [0, 1]


def test_the_keyboard_walks_the_map_and_opens_a_head(opened):
    page = opened(records.gpt2(), "#lang=en&head=0.0").page
    tabbable = page.locator("[role=gridcell][tabindex='0']")
    assert tabbable.count() == 1
    tabbable.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert focused(page) == "Layer 3, head 1: saturated"
    assert tabbable.count() == 1
    assert page.locator("#tip").is_visible()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H3"
    assert "head 1" in page.locator("#detail h3").inner_text()
    assert page.evaluate("location.hash").endswith("head=3.1")
    page.keyboard.press("Escape")
    assert focused(page) == "Layer 3, head 1: saturated"
    page.keyboard.press("Control+End")
    assert "Layer 11, head 11" in focused(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "Layer 11, head 11" in focused(page)


def test_detail_shows_measurement_beside_theory(opened):
    record = records.gpt2()
    page = opened(record, "#lang=en&head=3.2").page
    head = record.layers[3].head_stats[2]
    detail = page.locator("#detail").inner_text()
    for value in (head.jacobian_trace.mean, head.predicted_gate, head.predicted_entropy_fraction):
        assert f"{value:.3g}"[:5] in detail
    assert "frozen" in detail
    assert page.locator("#detail svg").count() == 5


def test_a_gate_too_small_for_its_digits_is_not_called_0(opened):
    record = records.gpt2()
    first = record.what_if[0].layers[3]
    gates = [1e-12, *first.head_gate[1:]] if first.head_gate else [1e-12] * len(record.layers[3].head_stats)
    small = replace(first, head_gate=tuple(gates), head_entropy=tuple([0.25] * len(gates)))
    what_if = [
        replace(rule, layers=tuple(small if it.index == 3 else it for it in rule.layers)) for rule in record.what_if
    ]
    page = opened(replace(record, what_if=tuple(what_if)), "#lang=en&head=3.0").page
    rows = page.locator("#detail .gate-bar").locator("xpath=ancestor::tr").all_inner_texts()
    assert rows
    assert all(row.split("\t")[-2:] == ["< 0.001", "0.250"] for row in rows)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_long_numbers_stay_in_the_panel(opened, language):
    page = opened(records.gpt2(), f"#lang={language}&head=3.2", viewport={"width": 1100, "height": 900}).page
    numbers = ("0.0529", "6.47e-6", "0.00997", "0.509")
    for i, number in enumerate(numbers):
        page.evaluate(
            "([i, text]) => document.querySelectorAll('#detail .spreads tr').forEach(row => {"
            " if (row.cells.length) row.cells[i + 1].textContent = text; })",
            [i, number],
        )
    assert page.locator("#detail .spreads").inner_text().count("6.47e-6") == 6
    assert page.evaluate("(panel => panel.scrollWidth <= panel.clientWidth)(document.querySelector('#detail'))")


def test_a_finding_leads_to_its_head(opened):
    page = opened(records.gpt2()).page
    page.locator("button.place", has_text="layer 9 · head 4").click()
    assert "head 4" in page.locator("#detail h3").inner_text()


@pytest.mark.parametrize(
    "make", [records.gpt2, pytest.param(records.giant, marks=pytest.mark.slow)], ids=lambda make: make.__name__
)
def test_chinese_leaves_no_english(opened, make):
    page = opened(records.with_gradient(make())).page
    before = page.locator("#page").inner_text()
    page.locator("#lang-zh").click()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert "lang=zh" in page.evaluate("location.hash")
    for statistic in STATISTICS if make is records.gpt2 else STATISTICS[:1]:
        page.locator("#stat").select_option(statistic["key"])
        assert [text for text in visible_texts(page) if re.search(r"[A-Za-z]", re.sub(KEPT, "", text))] == []
    for said in page.locator("[data-said]").all_inner_texts():
        assert said == "" or re.search(r"[\u4e00-\u9fff]", said)
    page.locator("#stat").select_option("state")
    page.locator("#lang-en").click()
    assert page.locator("#page").inner_text() == before
    page.locator("#lang-zh").click()
    page.reload()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"


def test_english_leaves_no_chinese(opened):
    page = opened(records.gpt2()).page
    assert [text for text in visible_texts(page) if re.search(r"[\u4e00-\u9fff]", text)] == []
    assert not re.search(r"[\u4e00-\u9fff]", "".join(page.locator("[data-said]").all_inner_texts()))


def test_every_word_of_the_page_is_used():
    folder = files("isotherm.report") / "page"
    script = "".join(file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".js"))
    assert PAGE.keys() - set(re.findall(r'"([a-z_0-9]+)"', script)) == set()
    assert set(re.findall(r'\bt\("([a-z_0-9]+)"', script)) - PAGE.keys() == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(opened, scheme):
    page = opened(records.minilm(), color_scheme=scheme).page
    background = "getComputedStyle(document.documentElement).backgroundColor"
    before = page.evaluate(background)
    assert (sum(map(int, re.findall(r"\d+", before))) > 400) == (scheme == "light")
    page.locator("#theme").click()
    assert page.evaluate(background) != before
    page.reload()
    assert page.evaluate(background) != before


def csv_rows(page):
    with page.expect_download() as download:
        page.locator("#save-csv").click()
    with open(download.value.path(), encoding="utf-8", newline="") as file:
        return download.value.suggested_filename, list(csv.DictReader(file))


def test_csv_holds_every_head(opened):
    record = records.gpt2()
    name, rows = csv_rows(opened(record).page)
    assert name == "isotherm-gpt2-finetuned-long.csv"
    heads = [(layer, head) for layer in record.layers for head in layer.head_stats]
    for row, (layer, head) in zip(rows, heads, strict=True):
        where = int(row["layer"]), row["name"], int(row["head"]), row["state"]
        assert where == (layer.index, layer.name, head.head, head.state)
        assert float(row["gate_p50"]) == pytest.approx(head.jacobian_trace.p50, rel=1e-3)
        assert float(row["max_logit"]) == pytest.approx(head.max_logit, rel=1e-3)


def test_csv_of_a_giant_keeps_three_digits(opened):
    record = records.giant()
    _, rows = csv_rows(opened(record).page)
    heads = [head for layer in record.layers for head in layer.head_stats]
    for row, head in zip(rows, heads, strict=True):
        assert float(row["gate_p10"]) == pytest.approx(head.jacobian_trace.p10, rel=1e-2)
        assert float(row["logit_std"]) == pytest.approx(head.logit_std, rel=1e-2)


def test_csv_cannot_hold_a_formula(opened):
    record = records.minilm()
    record = replace(record, layers=(replace(record.layers[0], name='=HYPERLINK("x","y"),1'), *record.layers[1:]))
    _, rows = csv_rows(opened(record).page)
    assert rows[0]["name"] == """'=HYPERLINK("x","y"),1"""


@pytest.mark.parametrize("stat", ["state", "gate_p10"])
def test_pictures_are_pictures(opened, stat):
    page = opened(records.gpt2(), f"#lang=zh&stat={stat}").page
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    drawing = download.value.path().read_text(encoding="utf-8")
    assert drawing.startswith("<svg xmlns")
    assert drawing.count("<rect") > 144
    with page.expect_download() as download:
        page.locator("#save-png").click()
    picture = download.value.path().read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 3000


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("make", [records.gpt2, records.giant, records.ugly], ids=lambda make: make.__name__)
def test_a_narrow_screen_does_not_scroll_sideways(opened, make, language):
    page = opened(make(), f"#lang={language}", viewport={"width": 360, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_it_prints(opened):
    page = opened(records.gpt2(), "#lang=en&theme=dark").page
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator("#save-csv").is_visible()
    assert page.locator("#grid").is_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"


def test_the_table_says_what_the_map_shows(opened):
    record = records.minilm()
    page = opened(record, "#lang=en&stat=entropy_fraction").page
    page.locator("#heads details.alternative summary").click()
    rows = page.locator("#heads details.alternative tbody tr")
    rows.first.wait_for()
    assert rows.count() == 6
    value = record.layers[2].head_stats[4].entropy_fraction.p50
    assert float(rows.nth(2).locator("td").nth(4).inner_text()) == pytest.approx(value, abs=6e-4)


def test_every_layer_has_a_curve_and_one_slider_reads_them_all(opened):
    record = records.gpt2()
    page = opened(record).page
    panels = page.locator("#curve .panels figure")
    assert panels.count() == len(record.layers)
    slider = page.locator("#layer-factor")
    slider.focus()
    for press, factor in ((None, 1.0), ("ArrowRight", 2**0.5), ("End", 16.0), ("Home", 1 / 16)):
        if press is not None:
            page.keyboard.press(press)
        assert slider.get_attribute("aria-valuetext") == page.locator("#curve output").inner_text()
        for panel, layer in zip(panels.all(), record.layers, strict=True):
            place = layer.curve.factors.index(factor)
            gate, entropy = re.findall(r"\d[\d.e-]*", panel.locator(".reading").inner_text())
            assert float(gate) == pytest.approx(layer.curve.gate[place], rel=0.05)
            assert float(entropy) == pytest.approx(layer.curve.entropy_fraction[place], rel=0.05)


def test_a_curve_says_where_it_freezes_and_is_best_open(opened):
    record = records.gpt2()
    page = opened(record, "#lang=en&head=3.2").page
    layer, head = record.layers[3].curve, record.layers[3].curve.heads[2]
    assert (layer.freezing < 1, head.best_open < 1) == (True, True)
    label = page.locator("#curve .panels svg").nth(3).get_attribute("aria-label")
    marks = f"Freezes at ÷{1 / layer.freezing:.2g}. Best open at ÷{1 / layer.best_open:.2g}."
    assert label == f"layer 3. {marks}"
    assert f"Best open at ÷{1 / head.best_open:.2g}" in page.locator("#detail .curve").inner_text()
    assert "Rows: 32/4,096, sampled" in page.locator("#detail .curve").inner_text()
    assert "Curves are sampled: 32 of 4,096 rows of each head." in page.locator("#curve").inner_text()


def test_a_heads_curve_is_read_by_keyboard_and_pointer(opened):
    record = records.gpt2()
    page = opened(record, "#lang=en&head=3.2").page
    curve, factors = record.layers[3].curve.heads[2], record.layers[3].curve.factors
    page.locator("#head-factor").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    said = page.locator("#head-factor").get_attribute("aria-valuetext")
    assert said.startswith("÷2: gate ")
    place = factors.index(0.5)
    read = [float(text.split()[1]) for text in page.locator("#detail .reading span").all_inner_texts()]
    assert read == pytest.approx([curve.gate[place], curve.entropy_fraction[place]], rel=5e-3)
    box = page.locator("#detail .curve svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 40)
    assert page.locator("#detail output").inner_text() == "×16"


def test_curves_that_do_not_fit_together_are_left_out(opened):
    page = opened(records.ugly(), "#lang=en&head=0.0").page
    assert page.locator("#curve .panels figcaption").all_inner_texts() == ["Layer 0", "Layer 2"]
    assert page.locator("#detail .curve").count() == 0  # this head has no value at any factor
    assert "NaN" not in page.locator("#curve").inner_html()


def test_a_report_without_curves_has_no_section_for_them(opened):
    record = records.minilm()
    record = replace(record, layers=tuple(replace(layer, curve=None) for layer in record.layers))
    page = opened(record).page
    assert page.locator("#curve, #detail .curve").count() == 0
