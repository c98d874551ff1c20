"""`isotherm tune` as typed."""

import json

import pytest

from isotherm.cli import run
from isotherm.language import LANGUAGES
from isotherm.record import to_plain
from tests.report import tuned

TEXT = " ".join(
    f"The ferry number {number} left the harbour in the fog, and came home at noon." for number in range(60)
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "held-out.txt"
    path.write_text(TEXT)
    return str(path)


def test_minilm_is_tuned_and_its_record_comes_back(text, tmp_path, capsys):
    page, earlier = tmp_path / "tuned.html", tmp_path / "tuned.json"
    code = run(["tune", "--text", text, "--lengths", "12,8", "--documents", "4", "--json", "--html", str(page)])
    printed = capsys.readouterr().out
    record = json.loads(printed)
    assert record["schema"] == "isotherm.tune/1"
    assert record["task"] == "pairs"
    assert [one["length"] for one in record["lengths"]] == [8, 12]
    assert len(record["laws"]) in (0, 5)
    assert len(record["gradient"]["gradient"]) == 6
    assert code == int(any(one["best"]["worth"] for one in record["lengths"]))
    assert page.read_text().startswith("<!doctype html>")
    earlier.write_text(printed)
    assert run(["tune", str(earlier)]) == code
    assert "all-MiniLM-L6-v2" in capsys.readouterr().out


def test_the_exit_code_says_whether_to_change_anything(tmp_path):
    for make, code in ((tuned.fine, 0), (tuned.several, 1)):
        path = tmp_path / f"{code}.json"
        path.write_text(json.dumps(to_plain(make())))
        assert run(["tune", str(path)]) == code


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--lengths", "5000"], "5,000"),
        (["--lengths", "99999999", "--documents", "1000000"], "99,999,999"),
        (["--lengths", "16", "--layers", "encoder.99"], "--layers"),
        (["--lengths", "x"], "--lengths"),
        (["--lengths", "1"], "--lengths"),
        (["--lengths", "16", "--task", "next"], "--task"),
    ],
    ids=["too long", "longer than memory", "no such layer", "no number", "one token", "wrong task"],
)
def test_bad_input_is_one_line_that_names_it(words, named, language, text, capsys):
    assert run(["tune", "--text", text, *words, "--lang", language]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert named in said[0]


def test_what_is_no_record_and_no_text_is_refused(tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text('{"schema": "isotherm.check/1"}')
    assert run(["tune", str(path)]) == 2
    assert "isotherm.tune/1" in capsys.readouterr().err
    assert run(["tune"]) == 2
    assert "--text" in capsys.readouterr().err
    assert run(["tune", "--text", str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err
    assert run(["tune", str(path), "--html", str(path)]) == 2
    assert "--html: expected a file that is neither read" in capsys.readouterr().err
    assert path.read_text() == '{"schema": "isotherm.check/1"}'


def test_check_measures_the_temperature_gradient(capsys):
    arguments = ["check", "--loss", "--json", "--what-if", "", "--one-implementation", "--tokens", "64"]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)["temperature_gradient"]
    assert found["task"] == "pairs"
    assert [len(row) for row in found["gradient"]] == [12] * 6
    assert any(abs(value) > 1e-4 for row in found["gradient"] for value in row)
