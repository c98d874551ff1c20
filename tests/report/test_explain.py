"""The lab in words and pictures: axes, drawings, formulas, the terminal. The page and the folder have files of their own."""

import io
import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console

from isotherm.language import Text
from isotherm.record import Figure, Heatmap, Line, Measured
from isotherm.record import claim as claim_records
from isotherm.report.draw import svg
from isotherm.report.draw import terminal as plot
from isotherm.report.draw.axes import axes, make
from isotherm.report.draw.plot_area import GLYPH
from isotherm.report.draw.series import series
from isotherm.report.explain import mathml, page, terminal, words
from isotherm.report.explain.book import Book, Chapter, Missing
from isotherm.report.markup import both, html, tag, typeset
from tests.report import claims

CJK = re.compile(r"[\u4e00-\u9fff]")
SVG = "{http://www.w3.org/2000/svg}"


def shown(book, language="en", width=80, **options):
    stream = io.StringIO()
    terminal.show(book, Console(file=stream, width=width), language, **options)
    return stream.getvalue()


def figure(y, log=False, x=None):
    x = x or tuple(float(i) for i in range(len(y)))
    name = Text("x", "x")
    return Figure("f", name, name, name, (Line(name, x, tuple(y)),), y_log=log)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.booleans())
def test_ticks_lie_on_the_axis_in_order_and_their_labels_differ(low, width, log):
    assume(width > 1e-4 * abs(low))
    axis = make([abs(low) + 1e-3, abs(low) + 1e-3 + width] if log else [low, low + width], log)
    assert len(axis.ticks) <= 13
    assert len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)
    assert list(axis.ticks) == sorted(axis.ticks)
    assert all(-1e-6 <= axis.place(tick) <= 1 + 1e-6 for tick in axis.ticks)


@pytest.mark.parametrize(
    ("values", "log", "labels"),
    [
        ((0, 1), False, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0.99, 1.01), False, ["0.990", "0.995", "1.000", "1.005", "1.010"]),
        ((-20, 60), False, ["−20", "0", "20", "40", "60"]),
        ((1e-9, 1), True, ["10⁻⁹", "10⁻⁷", "10⁻⁵", "10⁻³", "0.1"]),
        ((1, 100), True, ["1", "10", "100"]),
        ((0.4, 4), True, ["0.5", "1", "2"]),
    ],
    ids=str,
)
def test_ticks_as_a_person_would_write_them(values, log, labels):
    axis = make(values, log)
    assert [axis.label(tick) for tick in axis.ticks] == labels


def test_powers_of_ten_are_not_mixed_with_other_numbers():
    axis = make((3e-4, 0.01), True, (3e-4, 1e-3, 3e-3, 0.01))
    assert [axis.label(tick) for tick in axis.ticks] == ["3e-4", "0.001", "0.003", "0.01"]


def test_a_log_axis_has_no_place_for_zero_and_a_curve_breaks_there():
    _, upward = axes(figure((1.0, 0.0, 100.0, 10.0), log=True))
    assert upward.place(0.0) is None
    drawn = svg.draw(figure((1.0, 0.0, 100.0, 10.0), log=True), "en")
    assert len(re.findall(r'd="M[^"]*" class="c0 stroke curve"', drawn)) == 1 + 1  # and the legend's
    assert drawn.count("<circle") == 3 + 1  # three points that can be shown, one in the legend


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("make", [claims.curves, claims.bars, claims.heatmap], ids=lambda make: make.__name__)
def test_a_drawing_is_well_formed_and_has_words_and_units(make, language):
    picture = make()
    drawn = svg.draw(picture, language)
    tree = ET.fromstring(drawn)
    assert tree.tag == f"{SVG}svg"
    words = "".join(tree.itertext()).replace("\u200b", "")
    for text in (picture.x, picture.y, picture.caption):
        assert re.sub("_", "", text.to(language)) in re.sub("_", "", words)
        if text.en != text.zh:
            assert text.to("zh" if language == "en" else "en") not in words
    width, height = map(float, tree.get("viewBox").split()[2:])
    for node in tree.iter():
        for name, most in (("x", width), ("y", height), ("cx", width), ("cy", height)):
            if node.get(name):
                assert -1 <= float(node.get(name)) <= most + 1
        assert not {name for name in node.attrib if name.startswith("on") or name == "style"}


def test_inside_the_page_a_drawing_has_both_languages_and_no_style():
    drawn = svg.draw(claims.curves())
    assert 'lang="en"' in drawn
    assert 'lang="zh-CN"' in drawn
    assert "<style" not in drawn


def test_few_points_stand_by_themselves_and_have_whiskers():
    few = Line(Text("few", "少"), (1.0, 2.0), (1.0, 2.0), (0.5, 1.5), (1.5, 2.5))
    level = Line(Text("level", "平"), (1.0, 2.0), (1.5, 1.5))
    enough = Line(Text("enough", "多"), (1.0, 1.3, 1.7, 2.0), (1.0, 1.2, 1.7, 2.0))
    joined = [look.joined for look in series(replace(claims.curves(), lines=(few, level, enough)))]
    assert joined == [False, True, True]
    drawn = svg.draw(replace(claims.curves(), lines=(few, replace(few, name=level.name))), "en")
    assert not re.search(r'class="c\d stroke (curve|solid band)"', drawn)
    assert len(re.findall(r'class="c\d stroke whisker"', drawn)) == 2
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn)]
    assert len(set(places)) == len(places)


def test_seven_lines_have_seven_colours():
    lines = tuple(Line(Text(f"{i}", f"{i}"), (1.0, 2.0), (1.0, 2.0)) for i in range(7))
    assert len({look.colour for look in series(replace(claims.curves(), lines=lines))}) == 7


def numbers_of(drawn):
    """The numbers of a heat map's cells, and where their middles lie."""
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="middle" class="cell-\w+">([^<]+)<', drawn)
    return [(float(x), float(y) - 4, text) for x, y, text in found]


def boundary_of(drawn):
    """Points along a heat map's boundary, close together."""
    path = re.search(r'<path d="M([\d.L ]+)" class="boundary"', drawn)[1]
    corners = [tuple(map(float, point.split())) for point in path.split("L")]
    parts = [step / 50 for step in range(51)]
    return [(x + part * (a - x), y + part * (b - y)) for (x, y), (a, b) in pairwise(corners) for part in parts]


@pytest.mark.parametrize("shift", [1.4, 2.0])
def test_the_numbers_of_a_heat_map_stand_beside_its_boundary(shift):
    picture = claims.heatmap()
    moved = replace(picture.boundary, x=tuple(x * shift for x in picture.boundary.x))
    plain = numbers_of(svg.draw(replace(picture, boundary=None), "en"))
    drawn = svg.draw(replace(picture, boundary=moved), "en")
    numbers = numbers_of(drawn)
    assert len(numbers) == len(plain)
    assert numbers != plain
    for x, y, text in numbers:
        half = 3.6 * len(text)
        assert not [1 for at, up in boundary_of(drawn) if abs(at - x) < half and abs(up - y) < 7], text


def test_a_power_of_ten_in_a_table_is_written_as_in_a_sentence():
    number = Measured(Text("n", "n"), 6.711e7, low=-2.5e-16, high=0.125)
    assert words.cell(number, "value") == "6.711·10⁷"
    assert words.cell(number, "low") == "−2.5·10⁻¹⁶ … 0.1250"
    assert words.cell(number, "predicted") == "–"


def test_the_last_label_of_an_axis_does_not_run_into_the_one_before_it():
    xs = (2.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
    line = Line(Text("line", "线"), xs, tuple(float(i) for i in range(9)))
    drawn = svg.draw(replace(claims.curves(), lines=(line,), x_log=True), "en")
    base = re.findall(r'<text x="([\d.]+)" y="270" text-anchor="middle" class="word">(\d+)<', drawn)
    assert len(base) > 5
    for (x, label), (next_x, next_label) in pairwise((float(x), label) for x, label in base):
        assert next_x - x > (len(label) + len(next_label)) / 2 * GLYPH + 5, (label, next_label)


def test_sources_differ_by_more_than_colour():
    looks = {look.line.source: look for look in series(claims.curves())}
    assert (looks["measured"].dash, looks["measured"].marker is not None) == (None, True)
    assert (looks["predicted"].dash is not None, looks["predicted"].marker) == (True, None)
    assert looks["document"].dash is not None
    assert looks["document"].marker is not None
    drawn = svg.draw(claims.curves(), "en")
    assert re.search(r'class="c-doc stroke hollow"', drawn)


def test_measured_curves_differ_by_marker_and_predictions_go_with_them():
    name = [Text(f"rule {i}", f"规则 {i}") for i in range(4)]
    measured = [Line(it, (1.0, 2.0), (1.0, 2.0)) for it in name]
    predicted = [
        Line(Text(f"{it.en}: theory", f"{it.zh}：理论"), (1.0, 2.0), (1.0, 2.0), source="predicted") for it in name
    ]
    looks = series(replace(claims.curves(), lines=(*measured, *predicted)))
    assert len({look.marker for look in looks[:4]}) == 4
    assert [look.colour for look in looks[:4]] == [look.colour for look in looks[4:]]
    assert [look.name for look in looks[4:]] == [None] * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d_k", "<i>d</i><sub>k</sub>"),
        ("1/d_k，d_k 维", "1/<i>d</i><sub>k</sub>，<i>d</i><sub>k</sub> 维"),
        ("jacobian_trace", "jacobian_trace"),
        ("e^(−t) < d_k^0.5", "e<sup>−t</sup> &lt; <i>d</i><sub>k</sub><sup>0.5</sup>"),
        ("a^b, ^", "a<sup>b</sup>, ^"),
        ("Σ_qμ_k", "<i>Σ</i><sub>q</sub><i>μ</i><sub>k</sub>"),
        ("with 1/√d_k", 'with 1<span class="whole">/√</span><i>d</i><sub>k</sub>'),
        ("than 1 − y, 2 ln n", "than 1\u00a0−\u00a0y, 2\u00a0ln\u00a0n"),
    ],
)
def test_indices_and_powers_are_set_as_such(text, expected):
    assert typeset(text) == expected


@given(st.text())
def test_nothing_gets_through_unescaped(text):
    made = tag("p", text, title=text)
    tree = ET.fromstring(made)
    assert list(tree) == []
    assert tree.get("title") is not None
    assert "<" not in re.sub('</?(i|su[bp])>|<span class="whole">/√</span>', "", typeset(text))


def test_one_element_where_both_languages_say_the_same():
    assert both(Text("√d", "√d")) == "<span>√d</span>"
    assert both(Text("a", "甲")) == '<span lang="en">a</span><span lang="zh-CN">甲</span>'
    assert html(both(Text("<", "<"))) == "<span>&lt;</span>"


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<mi onclick='x()'>x</mi>",
        '<mi href="javascript:alert(1)">x</mi>',
        "<mtext><img src=x/></mtext>",
        "<mi>x</mi></math><b>x</b>",
        "<annotation-xml encoding='text/html'><p>x</p></annotation-xml>",
        "<mi>x",
        "<!DOCTYPE a [<!ENTITY x 'y'>]><mi>&x;</mi>",
        "<msup><mi>x</mi></msup>",
        "<style>*{display:none}</style>",
    ],
)
def test_a_formula_that_is_not_mathml_is_shown_as_text(attack):
    made = mathml.to_html(attack)
    assert made.startswith("<code>")
    assert unescape(made.removeprefix("<code>").removesuffix("</code>")) == attack


def test_formulas_are_let_through_and_read_on_a_line():
    root = "<msqrt><msub><mi>d</mi><mi>k</mi></msub></msqrt>"
    source = f"{root}<mo>&le;</mo><mfrac><mn>1</mn><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow></mfrac>"
    assert mathml.to_html(source).startswith("<math")
    assert "≤" in mathml.to_html(source)
    assert mathml.to_text(source) == "√d_k ≤ 1/(a + 1)"


def test_a_terminal_shows_every_part():
    out = shown(claims.usual(), derive=True)
    for part in (
        "The variance of q·k is d_k.",
        "from documents 000, 002",
        "Tested inequality",
        "Variances add up.",
        "Var(q·k) = d_k",
        "「点积的方差为dk」  document 000, line 21",
        "the dot product has variance dk",
        "Erratum, document 002, line 20: “the variance is √d” → the variance is d",
    ):
        assert part in out
    assert "✔ confirmed" in out
    assert "◐ conditional" in out
    assert "Condition: q and k are independent." in out
    assert "✖ refuted  (on record: confirmed)" in out
    assert "? failed" in out
    assert "? not run" in out
    assert "errata in the documents: 3" in out
    assert re.search(r"variance at d = 64\s+64.20\s+63.10 … 65.30\s+64\s+8\s+✔", out)


def test_a_quotation_is_the_documents_own_in_both_languages_and_translated_in_one():
    english, chinese = (shown(claims.usual(), language, derive=True) for language in ("en", "zh"))
    assert english.count("点积的方差为dk") == chinese.count("点积的方差为dk") == 3
    assert english.count("the dot product has variance dk") == 3
    assert "the dot product" not in chinese
    assert "文档 000 第 21 行" in chinese


def test_a_closer_look_shows_every_curve_and_more_numbers():
    assert "Three readings side by side." in shown(claims.usual(), derive=True)
    many = claims.timed(measured=tuple(Measured(Text(f"number {i}", f"数 {i}"), float(i)) for i in range(30)))
    assert "number 19" in shown(claims.book(many), derive=True)
    assert "… more numbers (11)" in shown(claims.book(many), derive=True)
    assert "number 19" not in shown(claims.book(many))
    assert "… more numbers (23)" in shown(claims.book(many))


MATRIX = "<mi>J</mi><mo>=</mo><mo>(</mo><mtable>{}</mtable><mo>)</mo>".format(
    "".join(f"<mtr>{''.join(f'<mtd><mn>{cell}</mn></mtd>' for cell in row)}</mtr>" for row in ((1, 20), (0, 3)))
)


def test_a_matrix_is_drawn_on_several_lines():
    assert mathml.to_lines(MATRIX) == ["J = ⎡ 1  20 ⎤", "    ⎣ 0  3  ⎦"]
    assert mathml.to_text(MATRIX) == "J = ([1, 20; 0, 3])"


def test_what_recorded_runs_found_is_in_the_terminal_and_on_the_page():
    line = Text("Recorded: ahead by +1.30 nats.", "已记录：领先 +1.30 nat。")
    book = claims.book(claims.timed(recorded=(line,)))
    assert line.en in shown(book)
    assert line.zh in shown(book, "zh")
    assert line.zh in page.to_html(book, "en")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_of_any_width_is_kept_to(language, width):
    from rich.cells import cell_len

    assert max(cell_len(line) for line in shown(claims.usual(), language, width).splitlines()) <= width


def test_no_colour_in_a_pipe_and_some_on_a_terminal():
    assert "\x1b" not in shown(claims.usual())
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system="truecolor")
    terminal.show(claims.usual(), console, "en")
    assert "\x1b[" in stream.getvalue()


def test_chinese_is_chinese():
    out = shown(claims.usual(), "zh")
    assert "成立" in out
    assert "有条件成立" in out
    rest = re.sub(
        r"logit|softmax|transformers|[a-z-]*-[a-z-]+|freezing|bert|ln|(?<![A-Za-z])[A-Za-z](_[a-z])?(?![A-Za-z])",
        "",
        out,
    )
    assert re.findall(r"[A-Za-z]{2,}", rest) == ["Var"] * len(re.findall("Var", rest))


def test_hostile_texts_do_not_steer_a_terminal():
    assert "\x1b" not in shown(claims.hostile(), derive=True)


@pytest.mark.parametrize("make", [claims.curves, claims.bars, claims.heatmap], ids=lambda make: make.__name__)
def test_a_plot_has_axes_and_a_legend(make):
    text = "\n".join(line.plain for line in plot.draw(make(), "en", 76))
    picture = make()
    assert picture.x.en in text
    assert picture.y.en in text
    if isinstance(picture, Figure):
        for line in picture.lines:
            assert line.name.en in text
    else:
        assert picture.boundary.name.en in text
        assert text.count("○") >= 3


def test_a_braille_line_is_where_its_points_are():
    rows = [line.plain for line in plot.draw(figure((0.0, 0.5, 1.0)), "en", 40)]
    body = [row.split("┤")[-1].split("│")[-1] for row in rows if "┤" in row or "│" in row]
    first = next(i for i, letter in enumerate(body[0]) if letter != " ")
    last = next(i for i, letter in enumerate(body[-1]) if letter != " ")
    assert first > len(body[0]) - 6
    assert last == 0


def test_the_same_book_makes_the_same_page():
    assert page.to_html(claims.usual(), "en") == page.to_html(claims.usual(), "en")


def texts(value):
    """Every `Text` in a record, wherever it stands."""
    if isinstance(value, Text):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts(item)
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from texts(getattr(value, field))


def one_language_only(text):
    """What is wrong with a text: Chinese in its English, or a Chinese half that was left in English."""
    if CJK.search(text.en):
        return "Chinese in the English"
    if not CJK.search(text.zh) and re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", text.zh):
        return "English in the Chinese"
    if re.search(
        r"\b(the|is|of|and|with|that|this|from|are)\b [a-z]+ [a-z]+", re.sub("[“«「《].*?[”»」》]", "", text.zh)
    ):
        return "an English sentence in the Chinese"
    return None


def test_the_language_check_can_fail():
    assert one_language_only(Text("the 方差", "方差"))
    assert one_language_only(Text("x", "the variance is not what it was"))
    assert one_language_only(Text("x", "方差 the variance of dot products"))
    assert not one_language_only(Text("the variance of q·k", "q·k 的方差"))
    assert not one_language_only(Text("GRU", "GRU"))


def test_every_claim_speaks_both_languages():
    from isotherm.lab import claims as registry

    wrong = {}
    for name in registry.CLAIMS:
        if name not in registry.missing():
            claim = registry.load(name)
            own = [
                it for it in claim.quotations if it.words.en != it.words.zh
            ]  # some lines of the documents are English
            for text in texts(
                [claim.title, claim.question, claim.statement, claim.hypothesis, claim.steps, claim.errata, own]
            ):
                if what := one_language_only(text):
                    wrong[name, text.en[:40]] = what
    assert wrong == {}


def test_every_formula_of_every_claim_can_be_shown():
    from isotherm.lab import claims as registry

    loaded = [registry.load(name) for name in registry.CLAIMS if name not in registry.missing()]
    wrong = [(it.id, step.math) for it in loaded for step in it.steps if step.math and mathml.parse(step.math) is None]
    assert wrong == []


@pytest.mark.parametrize("name", ["explain.md", "explain.zh.md"])
def test_every_field_of_the_documents_is_documented(name):
    text = (Path(__file__).parent.parent.parent / "docs" / name).read_text(encoding="utf-8")
    for kind in (*vars(claim_records).values(), Book, Chapter, Missing):
        for field in getattr(kind, "__dataclass_fields__", {}):
            assert f"`{field}`" in text or f"`{field}[]`" in text or kind is Text, f"{kind.__name__}.{field}"


EXTREMES = (5e-324, 1e-320, 1e-160, 1e-140, 1.0, 1e140, 1e308)


@pytest.mark.parametrize("log", [False, True], ids=["linear", "logarithmic"])
@pytest.mark.parametrize("low", [0.0, -1e308, *EXTREMES])
@pytest.mark.parametrize("high", EXTREMES)
def test_numbers_near_the_limits_of_float64_are_drawn(low, high, log):
    line = Line(Text("a", "甲"), (low, 1.0, high), (high, 1.0, low))
    for bars in (False, True):
        figure = Figure("f", line.name, line.name, line.name, (line,), x_log=log, y_log=log, bars=bars)
        assert svg.draw(figure, "en").startswith("<svg")
    grid = Heatmap("h", *[line.name] * 4, (low, high), (low, high), ((low, high), (high, low)), line)
    assert svg.draw(grid, "en").startswith("<svg")


def test_pictures_beyond_the_alphabet_have_labels():
    many = claims.timed(figures=tuple(claims.curves(f"c{number}") for number in range(60)))
    assert "1.1bb" in page.to_html(claims.book(many), "en")
