"""The lesson's state and its reader of reports, in node."""

import json
import subprocess
from typing import Any

import pytest

from isotherm.record import to_plain
from isotherm.report import shell
from tests.report import records
from tests.report.lesson import reports, runs
from tests.report.lesson.engines import MATHS, node

LESSON = MATHS.parent


def in_node(module: str, expression: str, given: Any = None) -> Any:
    """The value of an expression over a module `m` and `given`, by way of JSON."""
    source = (
        f'import * as m from "{(LESSON / module).as_uri()}";\n'
        f"const given = {json.dumps(given)};\n"
        f"console.log(JSON.stringify(await ({expression})));"
    )
    command = [node(), "--input-type=module", "-"]
    done = subprocess.run(command, input=source, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


STATES = [
    {},
    {"d": 128, "n": 3, "rule": "none", "lang": "zh"},
    {"keys": 12, "trained": 8, "context": 128, "statistic": "gate", "moment": 35},
    {"mean": -0.25, "correlation": 0.5, "spread": 2, "seed": 77, "theme": "dark", "at": "freezing"},
    {"rule": "log-n:512 * 1/sqrt(d)", "power": 0, "growth": 64, "a": 0, "factor": 0.0625, "layer": 3, "head": 11},
]


@pytest.mark.parametrize("state", STATES)
def test_an_address_keeps_the_state(state):
    printed, again = in_node(
        "state.js",
        "(() => { const hash = m.printHash({ ...m.DEFAULTS, ...given }); return [hash, m.parseHash(hash)]; })()",
        state,
    )
    assert again == {"lang": "en"} | state
    assert printed.count("&") == len(again) - 1  # only what differs from the default, and the language


@pytest.mark.parametrize(
    ("address", "state"),
    [
        ("", {}),
        ("#freezing", {"at": "freezing"}),
        ("#d=1e9&n=-3&seed=2.6", {"d": 1024, "n": 2, "seed": 3}),
        ("#d=NaN&n=&mean=Infinity&a=x&lang=fr&theme=red&rule=alert(1)&__proto__=1&constructor=2&nobody=3", {}),
        ("#lang=zh&power=0.75&at=step-dots", {"lang": "zh", "power": 0.75, "at": "step-dots"}),
        ("#d=%E0%A4%A", {}),
    ],
)
def test_an_address_that_cannot_be_is_left_at_the_default(address, state):
    assert in_node("state.js", "m.parseHash(given)", address) == state


def test_followers_hear_of_what_changed():
    script = """(() => {
      const [store, heard] = [new m.Store({ d: 16 }), []];
      const leave = store.subscribe((changed, state) => heard.push([changed, state.d, state.n]));
      store.set({ d: 32, n: 16 });
      store.set({ d: 32 });
      store.reset(["d"]);
      leave();
      store.set({ d: 2 });
      return heard;
    })()"""
    assert in_node("state.js", script) == [[["d"], 32, 16], [["d"], 64, 16]]


def test_a_report_is_read():
    found = in_node("drop.js", "m.reportOf(given)", reports.report())
    assert found["name"] == "my-model"
    assert [(it["index"], len(it["heads"])) for it in found["layers"]] == [(0, 2), (3, 5)]
    assert found["layers"][0]["whole"]["entropy"] == [0.99, 0.8, None]
    assert found["layers"][1]["heads"][4]["gate"][1] == pytest.approx(0.9)


REFUSED = "(() => { try { m.reportOf(given); return null; } catch (error) { return { key: error.key, ...error.values }; } })()"


@pytest.mark.parametrize("name", reports.BROKEN)
def test_a_broken_report_is_refused_with_its_place(name):
    path, value, key = reports.BROKEN[name]
    found = in_node("drop.js", REFUSED, reports.broken(path, value))
    assert found["key"] == key
    words = json.loads(shell.asset("lesson/words.json"))[key]
    for sentence in words:
        assert set(pieces(sentence)) <= found.keys()
    if key in ("drop_number", "drop_length", "drop_missing") and "." in path:
        assert found["place"].replace("[", ".").replace("]", "") == path


def pieces(sentence: str) -> list[str]:
    return [part.partition("}")[0] for part in sentence.split("{")[1:]]


@pytest.mark.parametrize(
    ("text", "size", "key"),
    [
        ("{", 1, "drop_no_json"),
        ('{"schema": NaN}', 1, "drop_nan"),
        ("[1, 2]", 1, "drop_no_schema"),
        ("null", 1, "drop_no_schema"),
        ("", 1, "drop_no_json"),
        ("[" * 100_000, 1, "drop_no_json"),
        ("{}", 100_000_000, "drop_large"),
    ],
)
def test_a_file_that_is_no_report_is_refused(text, size, key):
    script = """(async () => {
      let read = false;
      const file = { size: given.size, text: async () => { read = true; return given.text; } };
      try { await m.readReport(file); } catch (error) { return [error.key, read]; }
    })()"""
    assert in_node("drop.js", script, {"text": text, "size": size}) == [key, key != "drop_large"]


def test_a_name_is_cut_and_cannot_steer():
    found = in_node("drop.js", "m.reportOf(given)", reports.broken("model.name", reports.ATTACK + "x" * 500))
    assert len(found["name"]) == 200
    assert "\u202e" not in found["name"]


def test_what_the_command_line_prints_is_read():
    record = records.minilm()
    found = in_node("drop.js", "m.reportOf(given)", to_plain(record))
    assert found["name"] == record.model.name
    assert [it["index"] for it in found["layers"]] == [layer.index for layer in record.layers]
    assert found["layers"][2]["heads"][7]["gate"] == list(record.layers[2].curve.heads[7].gate)


def test_a_run_is_cut_down_to_the_worst_head_of_each_layer():
    found = in_node("drop_run.js", "m.runOf(given)", runs.exported())
    assert found["name"] == "my-run"
    assert [reading["step"] for reading in found["readings"]] == [0, 50, 100]
    assert [reading["loss"] for reading in found["readings"]] == [3.0, None, 1.0]
    worst = [reading["worst"]["max_logit"] for reading in found["readings"]]
    assert worst == [
        [{"value": 1.0, "head": 0}, {"value": 3.0, "head": 1}],
        [None, {"value": 30.0, "head": 1}],
        [{"value": 10.0, "head": 0}, {"value": 300.0, "head": 1}],
    ]
    assert found["readings"][0]["worst"]["gate"][1] == {"value": 0.25, "head": 0}
    assert found["alerts"] == [{"step": 100, "kind": "alert", "said": ["layer 1 is hot", "第 1 层过热"]}]


REFUSED_RUN = REFUSED.replace("reportOf", "runOf")
RUNS_THAT_ARE_NONE = [
    ("schema", "isotherm.check/1", "drop_is_report", None),
    ("schema", runs.ATTACK, "drop_run_schema", None),
    ("model", 3, "drop_text", "model"),
    ("layers", [], "drop_long", "readings[0].values.max_logit"),
    ("layers.1.heads", 5, "drop_heads", "readings[0].values.max_logit"),
    ("layers.0.heads", -1, "drop_number", "layers[0].heads"),
    ("readings", [], "drop_no_readings", None),
    ("readings", "none", "drop_list", "readings"),
    ("readings.1.step", 0, "drop_order", "readings[1].step"),
    ("readings.1.step", 1.5, "drop_whole", "readings[1].step"),
    ("readings.0.loss", "3", "drop_number", "readings[0].loss"),
    ("readings.0.values", {}, "drop_missing", "readings[0].values.max_logit"),
    ("readings.2.values.gate", [0.5, 0.25], "drop_heads", "readings[2].values.gate"),
    ("readings.2.values.gate", [0.5, runs.ATTACK, 0.5], "drop_number", "readings[2].values.gate[1]"),
    ("events.0.message", runs.ATTACK, "drop_object", "events[0].message"),
    ("events.0.step", -1, "drop_number", "events[0].step"),
]


@pytest.mark.parametrize(("path", "value", "key", "place"), RUNS_THAT_ARE_NONE)
def test_a_run_that_does_not_fit_is_refused_by_place(path, value, key, place):
    found = in_node("drop_run.js", REFUSED_RUN, runs.broken(path, value))
    assert found["key"] == key
    assert found.get("place") == place


def test_a_run_is_told_from_a_report():
    assert in_node("drop.js", REFUSED, runs.exported())["key"] == "drop_is_run"


def test_the_library_s_own_export_is_a_run(tmp_path):
    from isotherm.report.watch import tables
    from tests.monitor.runs import run

    record = run(tmp_path / "run.db")
    found = in_node("drop_run.js", "m.runOf(given)", json.loads(tables.to_json(record)))
    assert len(found["readings"]) == len(record.readings)
    assert found["readings"][-1]["worst"]["max_logit"][-1]["value"] == pytest.approx(
        record.readings[-1].values["max_logit"][-4:].max()
    )
    assert len(found["alerts"]) == sum(event.kind == "alert" for event in record.events) > 0
