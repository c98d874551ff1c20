"""`isotherm explain` as a person or a pipeline runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.cli import run
from isotherm.lab import claims as registry
from isotherm.lab import recorded
from isotherm.lab.claims import Topic
from isotherm.lab.runner import ClaimOutcome
from isotherm.language import Text
from isotherm.record import Step
from isotherm.report.explain.book import SCHEMA
from tests.lab.toys import Toys
from tests.report import claims


def call(capsys, *words):
    code = run(["explain", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOTHERM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def answered(monkeypatch):
    """Puts outcomes in place of a run; `asked` holds what the runner was asked."""
    asked = {}

    def answer(*outcomes):
        def fake(orders, **options):
            asked.update(options, orders=orders)
            named = {outcome.claim: outcome for outcome in outcomes}
            return tuple(
                named.get(order.claim) or ClaimOutcome(order.claim, claims.timed(order.claim)) for order in orders
            )

        monkeypatch.setattr("isotherm.cli.explain.run_orders", fake)
        return asked

    return answer


def test_all_claims_confirmed_as_recorded_exit_0(capsys, answered):
    asked = answered()
    code, out, err = call(capsys)
    assert code == 0
    assert [order.claim for order in asked["orders"]] == list(registry.CLAIMS)
    assert {(order.size, order.device) for order in asked["orders"]} == {("quick", "cpu")}
    assert (asked["fresh"], asked["jobs"]) == (False, None)
    assert f"✔ {len(registry.CLAIMS)} confirmed" in out
    assert "DIR/index.html" in err
    assert "\x1b" not in out


def test_some_claims_in_the_order_of_the_chapters(capsys, answered):
    asked = answered()
    code, out, _ = call(capsys, "freezing", "a-a-2a", "--size", "full", "--jobs", "3", "--fresh")
    assert code == 0
    assert [order.claim for order in asked["orders"]] == ["a-a-2a", "freezing"]
    assert {order.size for order in asked["orders"]} == {"full"}
    assert (asked["fresh"], asked["jobs"]) == (True, 3)
    assert "1. Variances add up." in out  # one who asks for a claim gets its derivation too


def test_the_old_name_of_size_still_works_and_is_not_shown(capsys, answered):
    asked = answered()
    assert call(capsys, "freezing", "--scale", "full")[0] == 0
    assert {order.size for order in asked["orders"]} == {"full"}
    assert "--scale" not in call(capsys, "--help")[1]


def test_a_record_goes_to_the_claims_that_show_it(capsys, answered, monkeypatch):
    asked = answered()
    monkeypatch.setattr(recorded, "given", lambda path: asked.setdefault("read", []).append(path))
    assert call(capsys, "--record", "one.json", "--record", "two.json")[0] == 0
    paths = [Path("one.json"), Path("two.json")]
    assert asked["read"] == paths
    given = {order.claim: order.records for order in asked["orders"] if order.records}
    assert given == dict.fromkeys(recorded.SHOWN_IN, tuple(paths))


def test_a_changed_verdict_exits_1_and_says_which(capsys, answered):
    answered(ClaimOutcome("freezing", claims.timed("freezing", "refuted", expected="confirmed")))
    code, out, err = call(capsys)
    assert code == 1
    assert "isotherm: verdict changed: freezing, from confirmed to refuted" in err
    assert "← confirmed" in out
    code, _, err = call(capsys, "--lang", "zh")
    assert code == 1
    assert "结论有变：freezing，由成立变为不成立" in err


def test_a_failed_claim_exits_2_and_the_others_are_shown(capsys, answered):
    changed = claims.timed("freezing", "refuted", expected="confirmed")
    failed = ClaimOutcome("bert", failure=Text("ValueError: no", "ValueError：不行"), trace="Traceback: here")
    answered(failed, ClaimOutcome("freezing", changed))
    code, out, err = call(capsys)
    assert code == 2
    assert "isotherm: bert failed: ValueError: no" in err
    assert "--debug shows where" in err
    assert "Traceback" not in err
    assert "The spread of parallel" in out
    assert "Traceback: here" in call(capsys, "--debug")[2]


def test_a_claim_that_lacks_a_package_is_told_how_to_get_it(capsys, answered):
    answered(ClaimOutcome("bert", needs=("transformers",)))
    code, out, err = call(capsys)
    assert code == 0
    assert "isotherm: bert: needs transformers: pip install 'isotherm[hf]'" in err
    assert "? not run" in out
    assert call(capsys, "bert")[0] == 2  # asked for by name


def test_formulas_that_are_no_mathml_are_told_with_the_way_to_get_it(capsys, answered):
    plain = claims.timed("jacobian")
    step = Step(Text("a step", "一步"), r"\frac{1}{\sqrt{d}} < 1")
    answered(ClaimOutcome("jacobian", replace(plain, record=replace(plain.record, steps=(step,)))))
    assert "isotherm: formulas stay LaTeX: latex2mathml was not installed" in call(capsys, "jacobian")[2]
    assert "LaTeX" not in call(capsys, "freezing")[2]


def test_json_is_one_document_and_nothing_else(capsys, answered):
    answered(ClaimOutcome("freezing", claims.timed("freezing", "refuted", expected="confirmed")))
    code, out, err = call(capsys, "freezing", "jacobian", "--json")
    document = json.loads(out)
    assert code == 1
    assert document["schema"] == SCHEMA
    assert document["changed"] == ["freezing"]
    found = [timed["record"]["id"] for chapter in document["chapters"] for timed in chapter["claims"]]
    assert found == ["jacobian", "freezing"]
    assert "index.html" not in err


def test_out_writes_the_page_the_figures_and_the_records(capsys, answered, tmp_path):
    answered()
    target = tmp_path / "new" / "page"
    code, _, err = call(capsys, "jacobian", "--out", str(target), "--lang", "zh")
    assert code == 0
    assert f"已写出 {target / 'index.html'}" in err
    assert '<html lang="zh-CN">' in (target / "index.html").read_text(encoding="utf-8")
    assert {path.name for path in target.iterdir()} == {
        "index.html",
        "figures",
        "records",
        "captions.en.txt",
        "captions.zh.txt",
    }


MISTAKES = {
    "unknown claim": (
        ["freezes"],
        "isotherm: no such claim: freezes; did you mean freezing? isotherm explain --list shows all",
    ),
    "nothing near": (["qqqq"], "isotherm: no such claim: qqqq;  isotherm explain --list shows all"),
    "size": (["--size", "huge"], "isotherm: --size: expected quick | full"),
    "jobs": (["--jobs", "0"], "isotherm: --jobs: expected a whole number from 1 on"),
    "device": (
        ["--device", "toaster"],
        "isotherm: --device: expected a device that PyTorch finds here (cpu), got 'toaster'",
    ),
    "a record for a claim": (
        ["out/ak/sweep.json"],
        "isotherm: out/ak/sweep.json: not a claim; give a record with --record",
    ),
    "a record that is not there": (["--record", "none.json"], "isotherm: none.json: there is no such file"),
    "a record nobody shows": (
        ["freezing", "--record", "none.json"],
        "isotherm: --record: expected a claim that shows recorded runs (additive-wins-at-large-d, scaling-restores-it),"
        " got freezing",
    ),
    "option": (["--szie", "full"], "isotherm: no such option: --szie (--size, --scale?)"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_wrong_use_is_one_line_and_exit_2(capsys, answered, kind):
    asked = answered()
    words, message = MISTAKES[kind]
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert err.replace(";  ", "; ") == message.replace(";  ", "; ") + "\n"
    assert asked == {}


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(capsys, answered, tmp_path):
    asked = answered()
    (tmp_path / "file").write_text("")
    code, out, err = call(capsys, "--out", str(tmp_path / "file" / "page"))
    assert (code, out) == (2, "")
    assert "cannot write" in err
    assert asked == {}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_list_is_quick_and_shows_every_claim(capsys):
    start = time.perf_counter()
    code, out, err = call(capsys, "--list")
    assert (code, err) == (0, "")
    assert time.perf_counter() - start < 2
    for name in registry.CLAIMS:
        assert name in out or name in registry.missing()
    listed = json.loads(call(capsys, "--list", "--json")[1])
    assert [line["id"] for line in listed] == [name for name in registry.CLAIMS if name not in registry.missing()]
    assert "记录在案的结论" in call(capsys, "--list", "--lang", "zh")[1]


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """A laboratory of two toy claims in place of the real one."""
    monkeypatch.syspath_prepend(str(tmp_path / "toys"))
    make = Toys(tmp_path / "toys")
    orders = {order.claim: order.module for order in (make("one"), make("two"))}
    chapter = Topic("toys", Text("Toys", "玩具"), Text("For tests.", "测试用。"), tuple(orders))
    monkeypatch.setattr(registry, "TOPICS", (chapter,))
    monkeypatch.setattr(registry, "CLAIMS", tuple(orders))
    monkeypatch.setattr(registry, "module_of", orders.__getitem__)
    return make


def test_the_whole_way_from_experiment_to_page_and_from_the_cache(capsys, toys, tmp_path):
    code, out, _ = call(capsys, "--out", str(tmp_path / "page"))
    assert code == 0
    assert "✔ 2 confirmed" in out
    assert sorted(toys.ran()) == ["one", "two"]
    start = time.perf_counter()
    assert call(capsys)[1] == out
    assert time.perf_counter() - start < 2
    assert len(toys.ran()) == 2
    assert sorted(path.name for path in (tmp_path / "page" / "figures").glob("*.svg")) == [
        "one.en.svg",
        "one.zh.svg",
        "two.en.svg",
        "two.zh.svg",
    ]


def test_ctrl_c_exits_130_says_what_is_kept_and_writes_nothing(toys, tmp_path):
    slow = toys("one", body="time.sleep(60)")  # claims start from the last one
    script = tmp_path / "toys" / "interrupted.py"
    script.write_text(
        "import sys\nfrom isotherm.cli import run\n"
        "from isotherm.lab import claims as registry\nfrom isotherm.lab.claims import Topic\n"
        "from isotherm.language import Text\n"
        "if __name__ == '__main__':\n"
        "    registry.CLAIMS = ('one', 'two')\n"
        "    registry.TOPICS = (Topic('t', Text('t', 't'), Text('t', 't'), registry.CLAIMS),)\n"
        f"    registry.module_of = lambda name: {slow.module!r}[:-3] + name\n"
        f"    sys.exit(run(['explain', '--jobs', '1', '--out', {str(tmp_path / 'page')!r}]))\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while toys.ran() != ["two", "one"] and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == b""
    assert b"interrupted; 1 of 2 claims are finished and kept" in err
    assert b"Traceback" not in err
    assert not (tmp_path / "page").exists()
