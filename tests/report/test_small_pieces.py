"""Numbers, names, signs, colours, medians."""

import doctest
import io
import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from isotherm.language import Text
from isotherm.report import digits, html, markdown, summary, sweep, terminal, vocabulary
from isotherm.report.draw import axes, palette
from isotherm.report.draw import terminal as drawing
from tests.report import drawn, records
from tests.report.page_words import PAGE, STATISTICS


@pytest.mark.parametrize("module", [digits, palette, axes, drawing, sweep])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.5, "−0.500"),
        (123456.0, "123456"),
        (1e7, "1e7"),
        (float("nan"), "–"),
        (-math.inf, "−∞"),
        (0.997, "0.997"),
        (9.999, "10.0"),
    ],
)
def test_numbers(value, text):
    assert digits.number(value) == text


def test_compact_numbers_are_plain_json():
    assert digits.compact(65504.4) == 65504
    assert digits.compact(0.123456) == 0.1235
    assert digits.compact(math.inf) is None
    assert isinstance(digits.compact(3.0), int)


@pytest.mark.parametrize("count", [10**15, 10**400, 12345 * 10**5000], ids=["10^15", "10^400", "10^5004"])
def test_a_count_of_any_size_is_shown(count):
    assert digits.magnitude(count) == digits.thousands(count)
    assert re.fullmatch(r"1(\.23)?e(15|400|5004)", digits.magnitude(count))
    assert digits.number(count if count < 10**5000 else 10**400) in {"1e15", "∞"}
    assert digits.compact(-(10**400)) is None


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["10^400", "-10^400", "10^5000"])
def test_a_record_with_a_huge_count_is_shown_in_every_view(value):
    record = drawn.model_of("huge", 2, 2)
    record = replace(record, model=replace(record.model, parameters=value, tokens=value, batch=value))
    console = Console(file=io.StringIO(), width=80)
    terminal.show(record, console, "en")
    assert digits.magnitude(value) in console.file.getvalue()
    assert digits.magnitude(value) in markdown.to_markdown(record, "zh")
    data = re.search(r'id="data">(.*?)</script>', html.to_html(record, "en"), re.S)[1]
    assert json.loads(data)["model"]["parameters"] == digits.magnitude(value)


def luminance(colour, keep=(0, 1, 2)):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * linear[i] for i, weight in enumerate((0.2126, 0.7152, 0.0722)) if i in keep)


def test_the_ramp_grows_lighter_all_the_way():
    steps = [luminance(palette.ramp_colour(i / 32)) for i in range(33)]
    assert all(b > a for a, b in pairwise(steps))


@pytest.mark.parametrize("missing", [0, 1], ids=["without red", "without green"])
def test_the_ramp_reads_without_one_kind_of_cone(missing):
    keep = tuple({0, 1, 2} - {missing})
    steps = [luminance(colour, keep) for colour in palette.RAMP]
    assert steps == sorted(steps)


def test_ink_reads_on_every_colour():
    for colour in (*palette.RAMP, *palette.STATE_COLOURS.values()):
        light, dark = sorted((luminance(colour), luminance(palette.ink_on(colour))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3


def test_infinite_logits_do_not_vanish():
    assert summary.largest([1.0, math.inf, None, math.nan]) == math.inf
    assert summary.middle([None, math.nan]) is None


def test_every_text_is_in_both_languages():
    texts = [*PAGE.values(), *vocabulary.STATES.values(), *vocabulary.SEVERITIES.values()]
    texts += [Text(*statistic[key]) for statistic in STATISTICS for key in ("name", "caption")]
    for text in texts:
        assert text.en
        assert text.zh
        assert any("\u4e00" <= letter <= "\u9fff" for letter in text.zh)
        assert not any("\u4e00" <= letter <= "\u9fff" for letter in text.en)
    for text in PAGE.values():
        assert set(places(text.en)) == set(places(text.zh))


def places(text):
    import re

    return re.findall(r"\{(\w+)\}", text)


def test_the_worst_layers_are_those_with_errors():
    chosen = [line.layer.index for line in summary.worst_layers(records.gpt2(), 3)]
    assert chosen == [3, 6, 9]
