"""The page of a run in a real browser. After every test: nothing asked of the network, nothing on the console, no dialog."""

import json
import re
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import pytest

from isotherm.language import Text
from isotherm.record.watch import Event, WatchedLayer
from isotherm.report.watch.page import to_html, write_html
from tests.monitor.runs import run
from tests.report.conftest import Opened, until
from tests.report.test_page import INTRUDE, VISIBLE

KEPT = (
    r"logits?|softmax|arg-max|NaN|Inf|isotherm( watch| export)?|--follow|--html|Kimi K\d|Wortsman|1e4|UTC|ln n|tiny"
    r"|blocks\.\d\.attn|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
)
ATTACK = "</script><img src=x onerror=alert(1)><b>"


@pytest.fixture
def record(tmp_path):
    return run(tmp_path / "run.db")


@pytest.fixture
def opened(browser, tmp_path):
    pages = []

    def open_page(record, anchor="#lang=en", **options):
        path = tmp_path / "run.html"
        write_html(record, path, "en")
        pages.append(Opened(browser, path, anchor, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.outside() == []
        assert page.said == []
        page.context.close()


def reading_line(page):
    return page.locator("#reading").inner_text()


def test_it_says_what_the_run_holds(opened, record):
    page = opened(record).page
    assert page.locator("h1").inner_text() == "tiny"
    assert "alerts, the first at step" in page.locator(".verdict").inner_text()
    hottest = record.readings[-1].values["max_logit"].max()
    line = reading_line(page)
    assert line.startswith("layer 2, step 4,950: Largest logit ")
    assert float(line.split()[-1]) == pytest.approx(hottest, rel=0.02)
    assert page.locator("#map-picture > g").count() >= 3
    assert page.locator("#lines tbody tr").count() == 4
    assert page.locator("#events tbody tr").count() == len(record.events) > 0


def test_the_keyboard_walks_through_time_layers_and_heads(opened, record):
    page = opened(record).page
    page.locator("#moment").focus()
    page.keyboard.press("Home")
    assert reading_line(page).startswith("layer 2, step 0: ")
    page.keyboard.press("ArrowRight")
    assert reading_line(page).startswith("layer 2, step 50: ")
    assert page.evaluate("document.activeElement.id") == "moment"
    page.locator("#layer").focus()
    page.keyboard.press("Home")
    assert reading_line(page).startswith("layer 0, step 50: ")
    assert page.locator("#lines h2").inner_text() == "Heads of layer 0"
    page.locator("#head").select_option("3")
    assert page.evaluate("location.hash").endswith("head=0.3&step=50")
    assert page.locator("#lines tr.as-is th").inner_text() == "3"
    value = float(page.locator("#lines tr.as-is td").nth(0).inner_text())
    assert value == pytest.approx(record.readings[1].values["max_logit"][3], rel=0.01)


def test_every_statistic_paints_the_map_its_own_way(opened, record):
    page = opened(record).page
    seen = set()
    for key in ("max_logit", "entropy", "gate", "saturated", "logit_std"):
        page.locator("#stat").select_option(key)
        seen.add(
            tuple(page.eval_on_selector_all("#map-picture rect", "all => all.map(one => one.getAttribute('fill'))"))
        )
    assert len(seen) == 5


def test_a_click_on_the_map_chooses_layer_and_step(opened, record):
    page = opened(record).page
    page.locator("#map-picture").scroll_into_view_if_needed()
    box = page.locator("#map-picture").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 12)
    assert page.locator("#tip").is_visible()
    page.mouse.click(box["x"] + box["width"] * 0.8, box["y"] + 12)
    found = re.match(r"layer 0, step ([\d,]+):", reading_line(page))
    assert int(found[1].replace(",", "")) == pytest.approx(3900, abs=100)


def test_steps_that_are_missing_leave_the_map_blank(opened, record):
    page = opened(record).page
    spans = page.eval_on_selector_all(
        "#map-picture > g:first-of-type rect",
        "all => all.map(one => [one.x.baseVal.value, one.x.baseVal.value + one.width.baseVal.value])",
    )
    assert max(start - end for (_, end), (start, _) in pairwise(spans)) > 80


def test_an_event_leads_to_its_layer_head_and_step(opened, record):
    event = record.events[0]
    page = opened(record, "#lang=en&head=0.0").page
    assert page.locator("#lines h2").inner_text() == "Heads of layer 0"
    page.locator("#events button.place").last.click()
    assert page.locator("#lines h2").inner_text() == f"Heads of layer {event.layer}"
    assert reading_line(page).startswith(f"layer {event.layer}, step {event.step:,}: ")
    assert page.locator("path.event.alert").count() == len(record.events)


def test_chinese_leaves_no_english_and_english_no_chinese(opened, record):
    page = opened(record).page
    assert [text for text in page.evaluate(VISIBLE) if re.search(r"[\u4e00-\u9fff]", text)] == []
    page.locator("#lang-zh").click()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert [text for text in page.evaluate(VISIBLE) if re.search(r"[A-Za-z]", re.sub(KEPT, "", text))] == []
    assert all(re.search(r"[\u4e00-\u9fff]", text) for text in page.locator("[data-said]").all_inner_texts())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(opened, record, scheme):
    page = opened(record, color_scheme=scheme).page
    background = "getComputedStyle(document.documentElement).backgroundColor"
    before = page.evaluate(background)
    assert (sum(map(int, re.findall(r"\d+", before))) > 400) == (scheme == "light")
    page.locator("#theme").click()
    assert page.evaluate(background) != before


def test_the_policy_stops_what_is_not_ours(opened, record):
    page = opened(record)
    page.page.evaluate(INTRUDE)
    page.wait_for(lambda: page.refused)
    assert page.page.evaluate("window.broken") is None
    assert page.refused == [("https://example.invalid/x.png", "csp")]
    page.said.clear()
    page.requests.clear()


def test_hostile_names_stay_text(opened, record):
    evil = Event(100, 0.0, "alert", ATTACK, 0, 0, Text(ATTACK, ATTACK), {})
    layers = (replace(record.layers[0], name=ATTACK), *record.layers[1:])
    page = opened(replace(record, model=ATTACK, layers=layers, events=(evil,)), "#lang=en&head=0.0").page
    assert page.locator("main img, main script, main b").count() == 0
    assert page.locator("h1").inner_text() == ATTACK
    assert page.locator("#lines .where").inner_text() == ATTACK


def test_a_run_without_readings_has_a_page(opened, tmp_path):
    page = opened(run(tmp_path / "new.db", steps=())).page
    assert "No reading yet" in page.locator("#map").inner_text()
    assert page.locator("#lines").count() == 0


def test_a_long_run_of_a_large_model_stays_small_and_keeps_its_worst_heads(opened, tmp_path):
    layers = tuple(WatchedLayer(number, f"blocks.{number}.attn", 64) for number in range(64))
    record = run(tmp_path / "large.db", layers, range(0, 8000, 50), alarms=False)
    page = to_html(record)
    assert len(page.encode()) < 2_000_000
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert 50 <= len(data["first"]) <= 60
    assert 1000 < len(data["kept"]) < 64 * 64
    assert 64 * 64 - 1 in data["kept"]
    shown = opened(record).page
    assert reading_line(shown).startswith("layer 63, ")
    assert "Each column stands for up to 3 readings" in shown.locator("#map").inner_text()
    assert "heads of this layer are not in this page" in shown.locator("#lines").inner_text()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_narrow_screen_does_not_scroll_sideways(opened, record, language):
    page = opened(record, f"#lang={language}", viewport={"width": 360, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#events .scroll'))") == 0


def test_on_a_narrow_screen_a_picture_scrolls_under_its_caption_and_key(opened, record):
    page = opened(record, viewport={"width": 360, "height": 740}).page
    until(page, "() => [...document.querySelectorAll('.over-time .scroll')].every(box => box.scrollLeft > 100)")
    kept = page.locator(".over-time figcaption, .over-time .key").all()
    assert len(kept) == 3
    assert all(one.bounding_box()["x"] >= 0 for one in kept)


def test_it_prints(opened, record):
    page = opened(record, "#lang=en&theme=dark").page
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator("#moment").is_visible()
    assert page.locator("#map-picture").is_visible()


def test_every_word_of_the_page_is_used_and_there():
    folder = files("isotherm.report") / "page"
    names = [
        "core.js",
        "bar.js",
        *(f"watch/{one.name}" for one in (folder / "watch").iterdir() if one.name.endswith(".js")),
    ]
    script = "".join((folder / name).read_text(encoding="utf-8") for name in names)
    words = json.loads((folder / "watch" / "words.json").read_text(encoding="utf-8"))
    known = {*words["shared"], *words["words"]}
    assert known - set(re.findall(r'"([a-z_0-9]+)"', script)) == set()
    assert set(re.findall(r'\bt\("([a-z_0-9]+)"', script)) - known == set()
