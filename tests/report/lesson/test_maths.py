"""The page's mathematics is the library's: the same numbers to 1e-9 of their own size, in node and in the browser."""

import re
from functools import cache
from math import erfc
from typing import Any

import numpy as np
import pytest

from isotherm import scale
from tests.report.lesson import engines, vectors


@cache
def shared() -> list[vectors.Vector]:
    return vectors.everything()


@cache
def answers_of_node() -> list[Any]:
    return engines.in_node([vector.call for vector in shared()])


def departures(answers: list[Any]) -> list[str]:
    return [
        line for vector, answer in zip(shared(), answers, strict=True) for line in vectors.departures(vector, answer)
    ]


def test_node_and_python_agree():
    assert departures(answers_of_node()) == []


def test_the_browser_and_python_agree(browser):
    assert departures(engines.in_page(browser, [vector.call for vector in shared()])) == []


def test_every_function_that_predicts_or_measures_is_compared():
    drawn = {"RandomStream", "dots", "row", "rows", "RULES", "normalTail"}
    exported = {name for names in engines.EXPORTED.values() for name in names}
    assert exported - {vector.call[0] for vector in shared()} == drawn


def test_the_comparison_can_fail():
    row = vectors.Vector(("gaussianRow", 2, 1.0), {"entropy": 1e-12, "lse": 1.0})
    assert vectors.departures(row, {"entropy": 1e-12, "lse": 1.0}) == []
    for answer in ({"entropy": 1.000000002e-12, "lse": 1.0}, {"entropy": 1e-12}, {"entropy": "NaN", "lse": 1.0}, None):
        assert vectors.departures(row, answer)
    rule = vectors.Vector(("normalises", "none"), "none")
    assert vectors.departures(rule, "rms")


def test_tails_keep_fifteen_digits():
    points = [*np.linspace(0.0, 26.0, 500).tolist(), 0.49999999, 0.5, 5.9999999, 6.0]
    for x, found in zip(points, engines.in_node([("erfc", x) for x in points]), strict=True):
        assert found == pytest.approx(erfc(x), rel=2e-15, abs=0)


def test_the_statistics_keep_their_digits_in_frozen_rows():
    """A gap g between two logits leaves a gate of 2e^(−g), however small that is."""
    gaps = (10.0, 40.0, 70.0, 300.0, 700.0)
    for gap, stats in zip(gaps, engines.in_node([("rowStats", [0.0, -gap]) for gap in gaps]), strict=True):
        weight = np.exp(-gap)
        assert stats["jacobian_trace"] == pytest.approx(2 * weight / (1 + weight) ** 2, rel=1e-12, abs=0)
        assert stats["entropy"] == pytest.approx(np.log1p(weight) + gap * weight / (1 + weight), rel=1e-12, abs=0)


@pytest.mark.parametrize("n", [2, 7, 512, 65536])
def test_expectations_check_one_another(n):
    """Trace + collision = 1, and entropy = lse − σ²·trace (Gaussian integration by parts)."""
    spreads = [0.001, 0.05, 0.4999, 0.5001, 0.9, 1.7, 3.1, 5.3, 7.7, 13.0, 29.0, 57.0, 400.0, 5000.0]
    for sigma, row in zip(spreads, engines.in_node([("gaussianRow", n, s) for s in spreads]), strict=True):
        assert row["jacobian_trace"] + row["collision"] == pytest.approx(1, abs=1e-11)
        assert row["lse"] - sigma**2 * row["jacobian_trace"] == pytest.approx(
            row["entropy"], abs=1e-11 * (1 + sigma**2)
        )


def test_the_rules_of_the_lesson_are_rules_of_the_library():
    [rules] = engines.in_node([("RULES",)])
    texts = [rule["text"] for rule in rules]
    sites = [(d, n) for d in (1, 16, 64, 512, 1024) for n in (2, 16, 512, 65536)]
    calls = [("scaleOf", text, {"d": d, "n": n}) for text in texts for d, n in sites]
    expected = [
        float(scale.parse(text).resolve(scale.Site.single(d, n)).multiplier) for text in texts for d, n in sites
    ]
    assert engines.in_node(calls) == pytest.approx(expected, rel=1e-12)
    kinds = engines.in_node([("normalises", text) for text in texts])
    assert kinds == [vectors.normalisation(scale.parse(text)) for text in texts]
    assert {"none", "1/sqrt(d)", "1/d", "log-n:512 * 1/sqrt(d)", "yarn:4 * 1/sqrt(d)", "qk-norm", "cosine"} <= set(
        texts
    )
    for rule in rules:
        assert rule["formula"]
        english, chinese = rule["name"]
        assert english.strip()
        assert re.search("[一-鿿]", chinese)


def test_a_rule_that_the_lesson_does_not_know_is_refused_by_name():
    answers = engines.in_node(
        [("scaleOf", text, {"d": 64, "n": 16}) for text in ("softcap:50", "toString", "-1", "", "1/sqrt(d) *")]
    )
    assert [answer["error"].startswith("no rule of the lesson: ") for answer in answers] == [True] * 5
    assert "softcap:50" in answers[0]["error"]
