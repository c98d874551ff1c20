"""The view on a terminal: what it says is what the record holds, in both languages, at any width."""

import re
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from isotherm.language import LANGUAGES, Text
from isotherm.record.watch import Event, WatchedLayer
from isotherm.report.watch import series, terminal
from tests.monitor.runs import LAYERS, reading, run


def shown(record, language="en", width=100):
    console = Console(width=width, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    terminal.show(record, console, language)
    console.file.close()
    return console.export_text()


@pytest.fixture
def record(tmp_path):
    return run(tmp_path / "run.db")


def test_it_shows_layers_worst_heads_and_alerts(record):
    text = shown(record)
    assert "3 layers · 12 heads · every 50 steps · 128 rows a head" in text
    assert "step 4,950 · 91 readings · loss 2.00 · 2.0 ms a reading" in text
    rows = re.findall(r"^ +(\d) ([▁-█·]+) +([\d.]+) ([▁-█]+) ([\d.]+) ", text, re.M)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert rows[2][1].startswith("▁")
    assert rows[2][1].endswith("█")
    assert "█" not in rows[0][1]
    hottest = record.readings[-1].values["max_logit"].max()
    worst = re.search(r"^ +2 +3 +(\d+) ", text, re.M)
    assert float(worst[1]) == pytest.approx(hottest, abs=1)
    assert re.search(r"▲ alert step [\d,]+ +layer 2, head 3: the largest logit is [\d.]+, past 100", text)


def test_chinese_leaves_no_english(record):
    text = shown(record, "zh")
    kept = r"tiny|logits?|p10|NaN|Inf|blocks\.\d\.attn|(?<![A-Za-z])[qk](?![A-Za-z])"
    assert not re.search(r"[A-Za-z]", re.sub(kept, "", text))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", [60, 80, 160])
def test_no_line_is_wider_than_the_terminal(record, width, language):
    assert max(cell_len(line) for line in shown(record, language, width).splitlines()) <= width


def test_a_store_without_readings_says_so(tmp_path):
    text = shown(run(tmp_path / "run.db", steps=()))
    assert "No reading yet" in text
    assert "-wal" in text
    assert "No alert" not in text


def test_a_quiet_run_says_that_nothing_was_told(tmp_path):
    assert "✔ No alert so far" in shown(run(tmp_path / "run.db", hot=0.0))


def test_many_layers_are_cut_to_the_hottest(tmp_path):
    layers = tuple(WatchedLayer(number, f"l{number}", 2) for number in range(40))
    text = shown(run(tmp_path / "run.db", layers, range(0, 500, 50)))
    assert "… and 16 more" in text


def test_hostile_names_steer_no_terminal(record):
    evil = Event(1, 0.0, "alert", "x", 0, 0, Text("\x1b[31mred\n", "红\x1b]0;"), {})
    layers = (replace(record.layers[0], name="\x1b[2J"), *record.layers[1:])
    text = shown(replace(record, model="\x1b[31m[bold]", layers=layers, events=(evil,)))
    assert "\x1b" not in text
    assert "□[31m[bold]" in text


def test_layers_that_did_not_run_and_infinite_logits_are_shown(record):
    last = reading(5000)
    last.values["max_logit"][:4] = np.nan
    last.values["max_logit"][5] = np.inf
    last.values["invalid"][5] = 0.5
    changed = replace(record, readings=(*record.readings, last))
    assert series.worst_heads(changed, 1) == [5]
    assert series.worst_heads(changed, 20) == [
        5,
        *sorted([4, 6, 7, 8, 9, 10, 11], key=lambda at: -last.values["max_logit"][at]),
    ]
    assert "∞" in shown(changed)


def test_series_of_layers_take_the_mean_or_the_largest(record):
    values = record.readings[7].values
    assert series.by_layer(record, "entropy")[7, 1] == pytest.approx(values["entropy"][4:8].mean())
    assert series.by_layer(record, "max_logit")[7, 2] == values["max_logit"][8:].max()


def test_stretches_hold_every_reading_once(record):
    for most in (1, 7, 91, 1000):
        parts = series.stretches(record, most)
        assert len(parts) <= most
        assert [index for part in parts for index in range(part.start, part.end)] == list(range(91))
        assert parts[-1].last == 4950
    values = series.heads(record, "max_logit")
    assert np.nanmax(series.over(values, series.stretches(record, 7), "largest")) == values.max()


def test_layers_of_no_heads_are_possible(tmp_path):
    layers = (WatchedLayer(0, "empty", 0), *LAYERS)
    assert "12 heads" in shown(run(tmp_path / "run.db", layers, range(0, 500, 50)))
