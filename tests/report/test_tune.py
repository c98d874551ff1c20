"""The terminal and the page of a tuned model, in both languages."""

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from isotherm.language import LANGUAGES
from isotherm.report.tune import figures, terminal, words
from isotherm.report.tune.page import to_html, write_html
from isotherm.tuning.gradient import Slopes
from tests.report import tuned
from tests.report.conftest import Opened

KEPT = (
    r"isotherm( tune)?|logits?|ln|nats?|Hayase|Karakida|arXiv:\S+|UTC|YaRN|log²?|√log|cpu|float32|torch|python|held-out\.txt"
    r"|h\.\d|tiny|gap_j|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
)


def shown(record, language="en", width=80) -> str:
    text = io.StringIO()
    terminal.show(record, Console(file=text, width=width, color_system=None), language)
    return text.getvalue()


def test_a_model_at_its_best_is_left_as_it_is():
    said = shown(tuned.fine())
    assert "✔ Leave the scale as it is" in said
    assert "Laws" not in said
    assert "Steps" not in said


def test_a_gain_is_said_with_its_factor():
    record = replace(tuned.fine(), lengths=(tuned.length(512, 1.4),))
    assert "▲ Multiply the scale by 1.40 (1.36 to 1.44)" in shown(record)
    open_ended = replace(
        record, lengths=(replace(record.lengths[0], best=tuned.best(1.4, worth=False, enclosed=False)),)
    )
    beyond = replace(record, lengths=(replace(record.lengths[0], best=tuned.best(32.0, enclosed=False)),))
    assert "A factor of 32 gains, and one beyond may gain more" in " ".join(shown(beyond).split())
    assert "interval open" in " ".join(shown(open_ended).split())


def test_several_lengths_laws_and_steps_are_all_there():
    said = shown(replace(tuned.several(), steps=()))
    assert "Leave the scale as it is at 512 tokens; a gain beyond noise at 2,048, 8,192" in " ".join(said.split())
    assert "The lengths support √log n alone." in said
    assert "1 of 2 steps by head gain beyond noise: the loss falls from 3.200 to 3.100" in " ".join(
        shown(tuned.several()).split()
    )


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("make", [tuned.fine, tuned.several], ids=lambda make: make.__name__)
def test_it_fits_eighty_columns_in_both_languages(make, language):
    said = shown(make(), language)
    assert "…" not in said
    chinese = re.search(r"[\u4e00-\u9fff]", said)
    assert bool(chinese) == (language == "zh")
    if language == "zh":
        assert [line for line in said.splitlines() if re.search(r"[A-Za-z]", re.sub(KEPT, "", line))] == []


def test_laws_that_do_not_fit_are_not_drawn():
    drawn = [line.name.en for line in figures.factors(tuned.several()).lines]
    assert drawn == ["best factor", "critical (gap count)", "freezing, σ = √(2 ln n)", "√log n"]
    unfit = replace(tuned.several(), law_fits=False)
    assert len(figures.factors(unfit).lines) == 3
    assert "No law" in str(words.laws(unfit).en)


def test_the_gradient_has_zero_in_the_middle_of_its_ramp():
    picture = figures.gradient(tuned.gradient())
    assert picture.values[1][3] == pytest.approx(20.0)
    assert picture.values[2][0] == pytest.approx(-20.0)


def test_heads_are_beyond_noise_only_if_they_are_so_among_all():
    """72 heads of pure noise in 8 groups: some are beyond their own margins, hardly ever one beyond that of all."""
    chance, named, alone = np.random.default_rng(0), 0, 0
    for _ in range(100):
        found = slopes_of(chance.normal(size=(8, 72)))
        named += bool(words.sure(found))
        alone += bool(words.sure(replace(found, beyond=1.0)))
    assert named <= 10
    assert alone >= 90
    values = chance.normal(size=(8, 72)) * 0.01
    values[:, 30] -= 5
    found = slopes_of(values)
    assert [(one.row, one.head) for one in words.sure(found)] == [(2, 6)]
    assert words.of_heads(found).en == "Beyond noise, for all 72 heads at once: layer 2 head 6."
    assert words.of_heads(slopes_of(values[:3])).en.startswith("Too few documents")
    assert "wants to be" not in shown(replace(tuned.fine(), gradient=slopes_of(chance.normal(size=(8, 72)))))


def slopes_of(values):
    """The gradient of 6 layers of 12 heads, from its values in groups of documents of one size."""
    groups = len(values)
    found = Slopes({f"h.{i}": 12 for i in range(6)}, values, np.full(groups, 1 / groups), np.ones(groups))
    return found.record(SimpleNamespace(name="next", length=64, count=groups))


@pytest.fixture
def opened(browser, tmp_path):
    pages = []

    def open_page(record, anchor="#lang=en"):
        write_html(record, tmp_path / "tuned.html", "en")
        pages.append(Opened(browser, tmp_path / "tuned.html", anchor))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.outside() == []
        assert page.said == []
        page.context.close()


def test_the_page_switches_language_and_theme(opened):
    page = opened(tuned.several()).page
    assert page.locator("main svg[role=img]").count() == 3
    assert "gain beyond noise" in page.locator(".verdict").inner_text()
    assert not re.search(r"[\u4e00-\u9fff]", page.locator("main").inner_text())
    page.locator("#lang-zh").click()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    lines = page.locator("main").inner_text().splitlines()
    assert [line for line in lines if re.search(r"[A-Za-z]", re.sub(KEPT, "", line))] == []
    before = page.evaluate("document.documentElement.dataset.theme")
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") != before
    assert "lang=zh" in page.evaluate("location.hash")


def test_a_record_whose_parts_do_not_fit_is_shown_all_the_same():
    """It may come from a file."""
    ragged = replace(tuned.gradient(), layers=("h.0",), gradient=((None, 1.0), (2.0,), ()), margin=((None,),))
    for record in (
        replace(tuned.fine(), gradient=ragged),
        replace(tuned.fine(), gradient=replace(ragged, gradient=())),
        replace(tuned.fine(), lengths=(), gradient=None),
        replace(
            tuned.several(), lengths=(replace(tuned.length(2, 1.0), points=(), critical=None, freezing=-1.0),), laws=()
        ),
        replace(tuned.several(), lengths=(replace(tuned.length(2, 1.0), best=tuned.best(0.0)),)),
    ):
        assert "tiny" in shown(record)
        assert "<h1" in to_html(record)


def test_a_hostile_name_is_text():
    page = to_html(replace(tuned.fine(), model="</script><img src=x onerror=alert(1)>"))
    assert "<img" not in page


def test_no_sentence_of_a_table_stands_on_end_on_a_phone(opened):
    page = opened(replace(tuned.several(), lengths=(tuned.length(512, 1.4),)), "#lang=zh").page
    page.set_viewport_size({"width": 390, "height": 844})
    heights = page.evaluate("[...document.querySelectorAll('tbody tr')].map((row) => row.offsetHeight)")
    assert max(heights) < 70


def test_a_step_says_which_layer_however_long_its_name():
    name = "model.language_model.layers.17.self_attention.inner"
    record = tuned.several()
    record = replace(record, layers=("h.0", name), steps=(replace(record.steps[1], layer=name),))
    assert "layer 1, head 3" in shown(record)
    assert "第 1 层第 3 头" in shown(record, "zh")
    assert name in to_html(record)
