"""Claims run side by side, kept, resumed, and failing on their own."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.lab import cache, claims, runner
from isotherm.lab.cache import CacheEntry, code_version
from isotherm.lab.runner import ClaimOrder, Listener, run
from isotherm.record import to_plain
from tests.lab.toys import Toys


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOTHERM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lab"


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "toys"))
    return Toys(tmp_path / "toys")


def bits(outcomes):
    return [json.dumps(to_plain(outcome.timed.record)) for outcome in outcomes]


@pytest.mark.slow
def test_parallel_and_serial_give_the_same_records_bit_for_bit(toy):
    orders = [toy(name, seed=seed) for name, seed in (("one", 1), ("two", 2), ("three", 3))]
    serial = run(orders, jobs=1, fresh=True)
    parallel = run(orders[::-1], jobs=3, fresh=True)[::-1]
    assert bits(serial) == bits(parallel)
    assert len(set(bits(serial))) == 3
    assert [outcome.claim for outcome in serial] == ["one", "two", "three"]


def test_a_finished_claim_is_kept_and_found_again(toy, own_cache):
    order = toy("one")
    first = run([order])[0]
    second = run([order])[0]
    assert toy.ran() == ["one"]
    assert (first.kept, second.kept) == (False, True)
    assert second.timed == first.timed
    assert first.timed.versions["torch"]
    assert first.timed.code == code_version(order.module)
    assert [path.name.rsplit(".", 2)[0] for path in own_cache.iterdir()] == ["one.quick.cpu"]


@pytest.mark.slow
def test_fresh_measures_again_and_keeps_the_new_one(toy):
    order = toy("one")
    run([order])
    assert not run([order], fresh=True)[0].kept
    assert run([order])[0].kept
    assert toy.ran() == ["one", "one"]


def test_the_code_version_covers_data_in_a_folder_of_the_lab(monkeypatch, tmp_path):
    (tmp_path / "lab" / "kept").mkdir(parents=True)
    (tmp_path / "lab" / "claim_of_ours.py").write_text("from isotherm.lab import kept\n")
    (tmp_path / "lab" / "kept" / "__init__.py").write_text("")
    data = tmp_path / "lab" / "kept" / "run.json"
    data.write_text("{}")
    monkeypatch.setattr(cache, "_SOURCE", tmp_path)
    cache._files.cache_clear()
    reached = cache._reached(tmp_path / "lab" / "claim_of_ours.py")
    cache._files.cache_clear()
    assert {path.name for path in reached} == {"claim_of_ours.py", "__init__.py", "run.json"}


@pytest.mark.slow
def test_a_record_given_makes_another_result_and_the_same_record_finds_it_again(toy, tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text("{}")
    plain = toy("one", body=f"if setting.records == (Path({str(path)!r}),): return Result('refuted', T, ())")
    beside = replace(plain, records=(path,))
    found = [run([order])[0] for order in (plain, beside, beside, plain)]
    assert [one.kept for one in found] == [False, False, True, False]
    assert [one.timed.record.verdict for one in found] == ["confirmed", "refuted", "refuted", "confirmed"]
    path.write_text("{ }")
    run([beside])
    assert toy.ran() == ["one"] * 4


@pytest.mark.parametrize("change", [{"size": "full"}, {"device": "meta"}], ids=str)
def test_another_size_or_device_is_another_entry(toy, change):
    order = toy("one")
    code = code_version(order.module)
    paths = {CacheEntry("one", **{"size": "quick", "device": "cpu", **it}, code=code).path for it in ({}, change)}
    assert len(paths) == 2


@pytest.mark.slow
def test_a_change_of_the_code_makes_it_run_again(toy, own_cache):
    order = toy("one")
    run([order])
    toy("one", body="size = setting['size'] + 1")
    cache._imports.cache_clear()
    assert not run([order])[0].kept
    assert toy.ran() == ["one", "one"]
    assert len(list(own_cache.iterdir())) == 1  # the older entry has gone


def test_the_code_version_covers_what_a_claim_reaches():
    def parts(source):
        reached = cache._reached(cache._SOURCE / source)
        return {path.relative_to(cache._SOURCE).parts[0] for path in reached}

    assert {"ops", "scale", "stats.py", "theory.py", "record", "language.py"} <= parts("lab/temperature.py")
    assert not {"report", "cli", "probe"} & parts("lab/temperature.py")
    own = cache._SOURCE / "lab" / "temperature.py"
    lab = {path.name for path in cache._reached(own) if path.is_relative_to(own.parent)}
    assert lab == {"temperature.py", "dots.py", "claim.py"}


DAMAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "changed": lambda text: text.replace("confirmed", "refuted"),
    "empty": lambda text: "",
    "zeros": lambda text: "\x00" * 100,
    "unsealed": lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != "seal"}),
}


@pytest.mark.slow
def test_a_corrupt_entry_is_recognised_and_redone(toy, own_cache):
    order = toy("one")
    first = run([order])[0]
    entry = CacheEntry("one", "quick", "cpu", code_version(order.module))
    whole = entry.path.read_text(encoding="utf-8")
    for kind, damage in DAMAGE.items():
        entry.path.write_text(damage(whole), encoding="utf-8")
        assert entry.read() is None, kind
    again = run([order])[0]
    assert not again.kept
    assert bits([again]) == bits([first])
    assert run([order])[0].kept


def test_a_cache_that_cannot_be_written_is_no_obstacle(toy, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISOTHERM_CACHE", str(tmp_path / "file"))
    assert run([toy("one")])[0].timed is not None


FAILURES = {
    "raises": ("raise ValueError('no such\\nluck')", "ValueError: no such luck"),
    "exits": ("sys.exit(3)", "SystemExit: 3"),
    "dies": ("os._exit(9)", "its process ended with code 9 before it had answered"),
    "not finite": ("return Result('confirmed', T, (Measured(T, float('nan')),))", ".record.measured[0].value"),
    "refuses": (
        "from isotherm.errors import ArgumentError; raise ArgumentError('rows', Text('many', '很多'), got=1)",
        "rows: expected many, got 1",
    ),
}


def test_a_claim_that_fails_takes_no_other_with_it(toy):
    broken = [toy(f"broken_{kind}".replace(" ", "_"), body=body) for kind, (body, _) in FAILURES.items()]
    orders = [toy("one"), *broken, toy("two")]
    outcomes = run(orders, jobs=1)
    assert [outcome.timed is not None for outcome in outcomes] == [True, *[False] * len(broken), True]
    for outcome, (_, message) in zip(outcomes[1:-1], FAILURES.values(), strict=True):
        assert message in outcome.failure.en
    assert "in experiment" in outcomes[1].trace
    assert not list(cache.folder().glob("broken*"))  # a failure is not kept


def test_a_claim_that_needs_what_is_not_installed_says_so(toy):
    assert run([toy("one", needs=("no_such_package", "json"))])[0].needs == ("no_such_package",)


def test_a_claim_without_a_file_fails_alone(toy):
    outcomes = run([ClaimOrder("gone", "no_such_module_of_ours"), toy("one")])
    assert "no_such_module_of_ours" in outcomes[0].failure.en
    assert outcomes[1].timed is not None


def test_the_listener_hears_everything(toy):
    heard = []

    class Ear(Listener):
        def started(self, claim):
            heard.append(("started", claim))

        def moved(self, claim, part):
            heard.append(("moved", claim, part))

        def finished(self, outcome):
            heard.append(("finished", outcome.claim, outcome.kept))

    order = toy("one")
    run([order], listener=Ear())
    run([order], listener=Ear())
    assert heard == [("started", "one"), ("moved", "one", 0.5), ("finished", "one", False), ("finished", "one", True)]


def test_what_a_claim_prints_is_not_on_standard_output_and_its_worker_ends_by_itself(toy, capfd, monkeypatch):
    """A worker that is ended by force leaves semaphores behind, of which Python warns whoever ran the command."""
    ends, dismiss = [], runner._Worker.dismiss

    def dismissed(worker, **how):
        dismiss(worker, **how)
        ends.append(worker.process.exitcode)

    monkeypatch.setattr(runner._Worker, "dismiss", dismissed)
    run([toy("one")])
    assert capfd.readouterr().out == ""
    assert ends == [0]


def test_an_interrupted_run_goes_on_where_it_was(toy, own_cache):
    orders = [toy("slow", body="time.sleep(60)"), toy("one")]  # claims start from the last one
    code = f"from isotherm.lab.runner import ClaimOrder, run\nif __name__ == '__main__':\n    run({orders!r}, jobs=1)\n"
    script = toy.folder / "interrupted.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(toy.folder), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 90
    while toy.ran() != ["one", "slow"] and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, err = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in err
    assert err.count(b"Traceback") == 1  # the parent's alone
    assert len(list(own_cache.iterdir())) == 1
    toy("slow")
    cache._imports.cache_clear()
    assert [outcome.kept for outcome in run(orders, jobs=1)] == [False, True]


def test_the_cache_is_where_the_platform_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("ISOTHERM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    found = {}
    for platform in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        found[platform] = cache.folder()
    assert found == {
        "linux": tmp_path / "xdg" / "isotherm" / "lab",
        "darwin": tmp_path / "Library" / "Caches" / "isotherm" / "lab",
        "win32": tmp_path / "local" / "isotherm" / "lab",
    }


def test_every_claim_of_the_list_has_a_file():
    assert claims.missing() == (), f"not written yet: {', '.join(claims.missing())}"


def test_every_file_of_a_claim_is_in_the_list():
    files = {path.stem for path in Path(claims.__file__).parent.glob("[a-z]*.py")}
    assert files <= {claim.replace("-", "_") for claim in claims.CLAIMS}


@pytest.mark.parametrize("claim", [claim for claim in claims.CLAIMS if claim not in claims.missing()])
def test_the_list_says_what_the_claim_says(claim):
    whole, line = claims.load(claim), claims.listed(claim)
    assert whole.id == claim
    assert (line.title, line.expected) == (whole.title, whole.expected)


def test_listing_needs_no_torch():
    code = (
        "import sys; from isotherm.lab import claims; [claims.listed(c) for c in claims.CLAIMS if c not in claims.missing()]"
        "; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
