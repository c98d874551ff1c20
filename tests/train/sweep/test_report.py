"""A sweep as a table and as a drawing."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from isotherm import language
from isotherm.cli import run
from isotherm.record import from_plain
from isotherm.record.sweep import SWEEP_SCHEMA, SweepRecord
from isotherm.report import sweep as page
from isotherm.report import sweep_figure
from isotherm.report.draw import png
from isotherm.report.draw.series import series
from isotherm.train.sweep import analysis
from tests.train.sweep.small import SPEC


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder with a finished small sweep, made by the command itself."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "spec.toml").write_text(SPEC, encoding="utf-8")
    assert run(["sweep", str(folder / "spec.toml"), "--store", str(folder / "out"), "--workers", "1"]) == 0
    return folder


def record_of(folder) -> SweepRecord:
    return from_plain(SweepRecord, json.loads((folder / "out" / "sweep.json").read_text(encoding="utf-8")))


def test_the_command_prints_one_json_document_and_nothing_else(swept, capsys):
    call = ["sweep", str(swept / "spec.toml"), "--store", str(swept / "out"), "--workers", "1", "--json"]
    assert run(call) == 0
    said = capsys.readouterr()
    record = from_plain(SweepRecord, json.loads(said.out))
    assert record.schema == SWEEP_SCHEMA
    assert len(record.outcomes) == 12
    assert [one.name for one in record.analyses] == ["lr-sensitivity"] * 3
    assert "sweep.png" in said.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing.toml", "--store", "x"], "no such file"),
        (["SPEC"], "--store: expected a folder"),
        (["SPEC", "--store", "x", "--device", "warp"], "isotherm: --device: expected auto, cpu, cuda or mps"),
        (["SPEC", "--store", "x", "--workers", "0"], "--workers: expected a whole number"),
        (["SPEC", "--store", "x", "--executor", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers there"),
        (["SPEC", "--store", "x", "--address", "127.0.0.1:1"], "--address: expected nothing without --executor ray"),
        (["SPEC", "--store", "x", "--gpus", "0.5"], "--gpus: expected nothing without --executor ray"),
        (["SPEC", "--store", "OUT", "--precision", "bfloat16"], "holds these trials in float32"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(swept, tmp_path, monkeypatch, capsys, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    places = {"SPEC": str(swept / "spec.toml"), "OUT": str(swept / "out")}
    assert run(["sweep", *(places.get(word, word) for word in arguments)]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def shown(record: SweepRecord) -> str:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        page.show(record, console)
    return console.export_text()


@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_the_table_names_every_series_and_place(swept, tongue):
    language.choose(tongue)
    text = shown(record_of(swept))
    for word in ("none", "1/sqrt(d)", "0.001", "0.01", "12", "±"):
        assert word in text
    assert ("闸门" if tongue == "zh" else "gate") in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_legend_explains_lost_runs_where_there_are_some(swept):
    record = record_of(swept)
    assert "lost" not in shown(record)
    lost = replace(record, cells=(replace(record.cells[0], diverged=2), *record.cells[1:]))
    assert shown(lost).count("lost") == 2


def test_the_unit_is_nat_in_both_languages():
    texts = [*page.NAMES.values(), *page.ANALYSES.values(), page.LEGEND, sweep_figure.TRAINING]
    named = [text for text in texts if re.search(r"\bnats\b", text.en)]
    assert len(named) == 4
    assert all("nat" in text.zh and "奈特" not in text.zh for text in named)


@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_the_drawing_has_labelled_axes_with_units_on_white(swept, tmp_path, monkeypatch, tongue):
    language.choose(tongue)
    monkeypatch.setattr(png, "_chinese_font", lambda: "DejaVu Sans")  # this machine may have none
    drawn, vector = sweep_figure.write(record_of(swept), tmp_path)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    texts = {text.text for text in ElementTree.parse(vector).findall(".//{*}text")}
    assert {page.NAMES["lr"].to(tongue), page.NAMES["loss"].to(tongue), "none", "1/sqrt(d)", "10⁻³"} <= texts
    assert ".paper{fill:#ffffff}" in vector.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.png", "sweep.svg"]


def test_a_series_that_a_block_lacks_leaves_the_others_their_colours(swept):
    record = record_of(swept)
    first = record.cells[0].series
    second = [replace(cell, block="second") for cell in record.cells if cell.series != first]
    whole, part = sweep_figure.figures(replace(record, cells=(*record.cells, *second)))
    assert [look.colour for look in series(part)] == [look.colour for look in series(whole)]
    assert part.lines[0].x == ()


def test_a_drawing_is_the_same_each_time(swept, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        sweep_figure.write(record_of(swept), folder)
    assert (first / "sweep.svg").read_bytes() == (second / "sweep.svg").read_bytes()


def test_every_analysis_is_explained_in_both_languages():
    source = (Path(analysis.__file__)).read_text(encoding="utf-8")
    names = set(re.findall(r'(?:_over_seeds|_ratio)\("([^"]+)"', source))
    assert names == set(page.ANALYSES)
    assert len(names) == 6


def test_without_matplotlib_the_svg_is_written_and_it_says_how_to_get_the_png(swept, tmp_path, monkeypatch):
    monkeypatch.setattr(png, "find_spec", lambda _name: None)
    assert "isotherm[plots]" in str(sweep_figure.write(record_of(swept), tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.svg"]
