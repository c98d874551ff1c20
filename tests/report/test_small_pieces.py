"""Numbers, names, signs, colours, medians."""

import doctest
import math
from itertools import pairwise

import pytest

from isotherm.report import digits, summary, sweep, vocabulary
from isotherm.report.draw import axes, palette
from isotherm.report.draw import terminal as drawing
from isotherm.report.page_words import PAGE
from tests.report import records


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
    texts += [text for statistic in vocabulary.STATISTICS for text in (statistic.name, statistic.caption)]
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
