"""`isotherm watch` and `isotherm export` from the command line."""

import csv
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from isotherm.cli import run
from isotherm.monitor.store import Writer
from isotherm.record.plain import to_plain
from isotherm.record.watch import STATISTICS
from tests.monitor import runs
from tests.monitor.runs import LAYERS, reading


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def test_it_shows_a_run_and_writes_its_page(path, tmp_path, capsys):
    runs.run(path)
    page = tmp_path / "run.html"
    assert run(["watch", str(path), "--html", str(page)]) == 0
    said = capsys.readouterr()
    assert "step 4,950 · 91 readings" in said.out
    assert said.err == f"wrote {page}\n"
    assert "Content-Security-Policy" in page.read_text(encoding="utf-8")


def test_what_was_exported_as_json_is_shown_alike(path, tmp_path, capsys):
    record = runs.run(path)
    assert run(["export", str(path), "--json", str(tmp_path / "run.json")]) == 0
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == to_plain(record)
    capsys.readouterr()
    assert run(["watch", str(path)]) == 0
    shown = capsys.readouterr().out
    assert run(["watch", str(tmp_path / "run.json")]) == 0
    assert capsys.readouterr().out == shown


def test_csv_has_a_row_for_each_head_of_each_reading(path, tmp_path):
    record = runs.run(path, steps=(0, 50), alarms=False)
    assert run(["export", str(path), "--csv", str(tmp_path / "run.csv")]) == 0
    with open(tmp_path / "run.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 12
    places = [(int(row["step"]), int(row["layer"]), row["name"], int(row["head"])) for row in rows]
    assert places[:5] == [(0, 0, "blocks.0.attn", head) for head in range(4)] + [(0, 1, "blocks.1.attn", 0)]
    for name in STATISTICS:
        found = np.array([row[name] for row in rows], np.float32)
        np.testing.assert_array_equal(found, np.concatenate([one.values[name] for one in record.readings]))
    assert np.float32(rows[-1]["gradient_k"]) == record.readings[1].gradients["k"][2]
    assert float(rows[0]["loss"]) == record.readings[0].loss


def test_csv_leaves_what_is_not_known_empty_and_holds_no_formula(path, tmp_path):
    one = reading(0, loss=None, seconds=None, rows=None)
    one.values["gate"][1], one.values["max_logit"][2] = np.nan, np.inf
    with Writer(path, model="x", every=1, rows=None) as writer:
        writer.layers([type(LAYERS[0])(0, "=1+1", 4), *LAYERS[1:]])
        writer.reading(one)
    assert run(["export", str(path), "--csv", str(tmp_path / "run.csv")]) == 0
    with open(tmp_path / "run.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[1]["gate"], rows[1]["loss"], rows[1]["rows"], rows[2]["max_logit"]) == ("", "", "", "inf")
    assert rows[0]["name"] == "'=1+1"


def test_parquet_holds_the_same_table(path, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    record = runs.run(path, steps=(0, 50), alarms=False)
    assert run(["export", str(path), "--parquet", str(tmp_path / "run.parquet")]) == 0
    table = parquet.read_table(tmp_path / "run.parquet")
    assert table.num_rows == 24
    assert table.schema.metadata[b"schema"] == b"isotherm.watch/1"
    np.testing.assert_array_equal(
        table["entropy"].to_numpy(), np.concatenate([one.values["entropy"] for one in record.readings])
    )
    assert str(table["entropy"].type) == "float"


@pytest.mark.parametrize(
    ("tongue", "sentence"), [("en", "writing Parquet needs pyarrow"), ("zh", "写出 Parquet 需要 pyarrow")]
)
def test_without_pyarrow_parquet_is_one_clear_error(path, tmp_path, monkeypatch, capsys, tongue, sentence):
    runs.run(path, steps=(0,), alarms=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["export", str(path), "--parquet", str(tmp_path / "run.parquet"), "--lang", tongue]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run.parquet").exists()


def foreign(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()


BAD = {
    "nothing": (lambda path: None, "there is no such file"),
    "folder": (lambda path: path.mkdir(), "this is a folder"),
    "pipe": (os.mkfifo, "this is no regular file"),
    "text": (lambda path: path.write_text("notes" * 1000), "this is not a store"),
    "foreign": (foreign, "this is a database of another program"),
}


@pytest.mark.parametrize("verb", [["watch"], ["export", "--csv", "out.csv"]], ids=["watch", "export"])
@pytest.mark.parametrize("what", BAD)
def test_what_is_no_run_is_one_clear_error(path, tmp_path, monkeypatch, capsys, what, verb):
    monkeypatch.chdir(tmp_path)
    make, why = BAD[what]
    make(path)
    before = sorted(one.name for one in tmp_path.iterdir())
    assert run([*verb, str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err
    assert said.err.count("\n") == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "why"),
    [("{}", "not a run of schema isotherm.watch/1"), ('{"schema": "isotherm.watch/1"}', "model: expected a value")],
)
def test_json_that_is_no_run_is_one_clear_error(tmp_path, capsys, text, why):
    (tmp_path / "run.json").write_text(text)
    assert run(["watch", str(tmp_path / "run.json")]) == 2
    assert why in capsys.readouterr().err


def test_nothing_is_written_if_one_of_the_files_cannot_be_made(path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    runs.run(path)
    table = tmp_path / "run.csv"
    assert run(["export", str(path), "--csv", str(table), "--parquet", str(tmp_path / "run.parquet")]) == 2
    assert not table.exists()


def test_an_export_without_a_file_says_what_to_give(path, capsys):
    runs.run(path, steps=(0,), alarms=False)
    assert run(["export", str(path)]) == 2
    assert "--csv, --json or --parquet" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_one_clear_error(path, tmp_path, capsys):
    runs.run(path, steps=(0,), alarms=False)
    assert run(["watch", str(path), "--html", str(tmp_path / "none" / "x.html")]) == 2
    assert "the folder does not exist" in capsys.readouterr().err


def test_following_writes_the_page_again_until_the_run_ends(path, tmp_path, capsys):
    page, seen = tmp_path / "run.html", []

    def train():
        with Writer(path, model="tiny", every=50, rows=128) as writer:
            writer.layers(LAYERS)
            began.set()
            for step in range(0, 300, 50):
                writer.reading(reading(step))
                deadline = time.monotonic() + 20
                while time.monotonic() < deadline:  # until the page shows this step
                    if page.exists() and f'"last":[{",".join(map(str, range(0, step + 1, 50)))}]' in page.read_text(
                        "utf-8"
                    ):
                        seen.append(step)
                        break
                    time.sleep(0.01)

    began = threading.Event()
    training = threading.Thread(target=train)
    training.start()
    began.wait()
    assert run(["watch", str(path), "--follow", "--interval", "0.1", "--html", str(page)]) == 0
    training.join()
    assert seen == list(range(0, 300, 50))
    said = capsys.readouterr()
    assert "step 250 · 6 readings" in said.out
    assert re.search(r"no process is writing to .*run\.db: the run has ended", said.err)


def test_watching_needs_no_torch(path):
    runs.run(path, steps=(0,), alarms=False)
    code = f"import sys; from isotherm.cli import run; run(['watch', {str(path)!r}]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["watch", "{run}", "--html", "{run}"], "--html"),
        (["export", "{run}", "--csv", "{link}"], "--csv"),
        (["export", "{run}", "--csv", "{new}", "--json", "{new}"], "--json"),
    ],
)
def test_a_result_never_takes_the_place_of_what_is_read_or_of_another(path, tmp_path, capsys, words, option):
    runs.run(path)
    before = path.read_bytes()
    link, new = tmp_path / "link", tmp_path / "new"
    link.symlink_to(path)
    typed = [word.format(run=path, link=link, new=new) for word in words]
    assert run(typed) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"isotherm: {option}: expected a file that is neither read nor written otherwise, got ")
    assert path.read_bytes() == before
    assert not new.exists()


def test_two_results_may_go_to_one_device(path):
    runs.run(path)
    assert run(["export", str(path), "--csv", "/dev/null", "--json", "/dev/null"]) == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give a RUN to show, or --demo, and not both"),
        (["run.db", "--demo"], "give a RUN to show, or --demo, and not both"),
        (
            ["--demo", "--html", "x.html", "--follow"],
            "--html, --follow: needs a RUN; --demo keeps its runs in the folder of --out",
        ),
        (["run.db", "--seeds", "3", "--out", "x"], "--seeds, --out: only with --demo"),
    ],
)
def test_options_that_would_do_nothing_are_refused(capsys, words, why):
    assert run(["watch", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"isotherm: {why}")
    assert said.out == ""


def test_a_file_where_the_demo_should_make_a_folder_is_named_as_one(tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert run(["watch", "--demo", "--out", str(taken)]) == 2
    assert capsys.readouterr().err == f"isotherm: cannot write {taken}: it is a file, not a folder\n"
