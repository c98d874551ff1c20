"""The terminal view against golden text. ISOTHERM_OVERWRITE_GOLDEN=1 writes the files anew; read the diff before keeping it."""

import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from isotherm.report import terminal
from tests.report import records

GOLDEN = Path(__file__).parent / "golden"
MAKERS = [records.minilm, records.gpt2, records.giant, records.ugly, records.bare]


def shown(record, language, *, width=80, **options):
    console = Console(file=StringIO(), width=width, **options)
    terminal.show(record, console, language)
    return console.file.getvalue()


def without_trailing_space(text):
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def assert_golden(name, text):
    """Compare with a golden file, or write it where that was asked for."""
    path = GOLDEN / name
    if os.environ.get("ISOTHERM_OVERWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_golden(make, language):
    text = shown(make(), language)
    assert "\x1b" not in text
    assert_golden(f"{make.__name__}.{language}.txt", without_trailing_space(text))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal(make, language, width):
    lines = without_trailing_space(shown(make(), language, width=width)).splitlines()
    assert [line for line in lines if cell_len(line) > width] == []


def test_numbers_are_not_cut_at_80_columns():
    table = shown(records.gpt2(), "en").split("Layers\n")[1].split("Scale as passed")[0]
    assert "…" not in table


def test_findings_come_before_numbers():
    text = shown(records.gpt2(), "en")
    assert text.index("3 errors") < text.index("scale.differs") < text.index("Heads") < text.index("Layers")


def test_colour_only_where_there_is_a_terminal(monkeypatch):
    coloured = shown(records.gpt2(), "en", force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown(records.gpt2(), "en", force_terminal=True, color_system="truecolor")
    assert "38;2;" not in plain
    assert "48;2;" not in plain


def test_colours_and_signs_say_the_same_thing():
    record = records.gpt2()
    picture = shown(record, "en").split("Heads\n")[1].split("Layers\n")[0]
    rows = [line.split()[1:] for line in picture.splitlines()[1:13]]
    signs = {"balanced": "●", "saturated": "▲", "diffuse": "≈", "sink": "◆", "invalid": "✖", "empty": "·"}
    assert rows == [[signs[head.state] for head in layer.head_stats] for layer in record.layers]


def test_giants_are_condensed_to_the_layers_worth_a_look():
    text = shown(records.giant(), "en")
    assert len(text.splitlines()) < 110
    for index in (0, 17, 34, 51, 68):
        assert f"\n{index:>6} " in text


def test_a_name_cannot_steer_the_terminal():
    record = records.minilm()
    record = replace(record, model=replace(record.model, name="a\x1b[2Jb\rc\nd"))
    assert shown(record, "en").splitlines()[0] == "a□[2Jb□c□d"
    assert "[red]" + records.ATTACK in shown(records.ugly(), "en")


def test_quiet_shows_findings_alone():
    console = Console(file=StringIO(), width=80)
    terminal.show_findings(records.gpt2(), console, "en")
    text = console.file.getvalue()
    assert "values.invalid" in text
    assert "Layers" not in text
