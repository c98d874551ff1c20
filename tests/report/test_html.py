"""The page as text: size, escaping, policy, and what is left out when there is too much."""

import json
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import unescape
from math import exp, isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.language import Text
from isotherm.report.html import LIMIT, to_html
from isotherm.report.payload import ALPHABET, pack, payload
from tests.report import records


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.mark.parametrize(
    ("layers", "heads", "findings"),
    [
        (1, 1, 0),
        (32, 32, 50),
        (80, 64, 300),
        (128, 128, 5000),
        pytest.param(300, 256, 0, marks=pytest.mark.slow),
        (1500, 4, 100),
        (2, 4000, 9000),
    ],
)
def test_it_stays_small(layers, heads, findings):
    record = records.giant(layers, heads, findings=findings)
    page = to_html(record, "zh")
    assert len(page.encode()) <= LIMIT
    data = data_of(page)
    assert len(data["findings"]) + data["left_out"]["findings"] == findings
    assert len(data["layers"]) + data["left_out"]["layers"] == layers
    assert len(data["curves"]) + data["left_out"]["curves"] == len(data["layers"])
    assert len(data["details"]) + data["left_out"]["details"] == sum(layer["shape"][0] for layer in data["layers"])


def test_every_layer_of_128_by_128_is_there():
    data = data_of(to_html(records.giant(128, 128), "en"))
    assert data["left_out"]["layers"] == 0
    assert len(data["heads"]["state"]) == 128 * 128


def test_long_texts_do_not_make_it_large():
    record = records.gpt2()
    endless = Text("x<&>" * 5000, "长" * 20000)
    findings = tuple(
        replace(record.findings[0], advice=Text(f"{i}{endless.en}", f"{i}{endless.zh}"), message=endless)
        for i in range(400)
    )
    layers = tuple(replace(layer, name="名" * 5000, index=i) for i, layer in enumerate(record.layers * 20))
    assert len(to_html(replace(record, findings=findings, layers=layers)).encode()) <= LIMIT


def test_the_same_record_makes_the_same_page():
    assert to_html(records.giant(), "en") == to_html(records.giant(), "en")


def test_details_kept_are_those_worth_a_look():
    record = records.giant(80, 64, findings=3)
    data = payload(record, 420_000)
    assert 100 < len(data["details"]) < 80 * 64
    kept = {detail[0] for detail in data["details"]}
    for finding in record.findings:
        assert finding.layer * 64 + finding.head in kept
    saturated = {i for i, digit in enumerate(data["heads"]["state"]) if digit == "1"}
    assert saturated <= kept


@pytest.mark.parametrize("make", [records.ugly, records.gpt2, records.bare], ids=lambda make: make.__name__)
def test_data_cannot_leave_its_block(make):
    page = to_html(make(), "en")
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<script>alert" not in page
    assert "<img" not in page
    block = re.search(r'id="data">(.*?)</script>', page, re.S)[1]
    assert not set(block) & set("<>&\u2028\u2029")
    assert json.loads(block)


@given(st.text())
def test_any_name_makes_a_page(name):
    record = records.bare()
    page = to_html(replace(record, model=replace(record.model, name=name)), "en")
    page.encode()
    assert page.count("</script>") == 2


def test_the_policy_names_the_script_and_the_style_by_hash():
    page = to_html(records.minilm(), "en")
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    for tag in ("script", "style"):
        inline = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)[1]
        assert f"{tag}-src 'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'" in policy


def test_nothing_points_outside():
    page = to_html(records.minilm(), "en").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\(|src=(?!x)", page)


def test_no_markup_is_built_from_data():
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", to_html(records.bare(), "en")
    )


@given(st.lists(st.one_of(st.none(), st.just(0.0), st.floats(1e-9, 1e5), st.floats(0, 1))))
def test_packed_numbers_come_back(values):
    packed = pack(values)
    places = {letter: place for place, letter in enumerate(ALPHABET)}
    for i, value in enumerate(values):
        code = places[packed["codes"][2 * i]] * len(ALPHABET) + places[packed["codes"][2 * i + 1]]
        place = packed["low"] + (code - 2) / packed["steps"] * (packed["high"] - packed["low"])
        back = None if code == 0 else 0.0 if code == 1 else exp(place) if packed["log"] else place
        if value is None or value == 0:
            assert back == value
        else:
            assert isfinite(back)
            assert back == pytest.approx(
                max(value, exp(packed["low"])) if packed["log"] else value,
                rel=0.003,
                abs=(packed["high"] - packed["low"]) / packed["steps"] * (not packed["log"]),
            )


def test_the_language_it_opens_in(monkeypatch):
    assert '<html lang="zh">' in to_html(records.bare(), "zh")
    monkeypatch.setenv("ISOTHERM_LANG", "zh")
    assert data_of(to_html(records.bare()))["language"] == "zh"


def test_reports_need_no_torch():
    code = (
        "import isotherm.report.html, isotherm.report.terminal, isotherm.report.markdown, isotherm.report.compare, sys;"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
