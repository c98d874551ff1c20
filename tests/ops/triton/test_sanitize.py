"""How compute-sanitizer's reports are read (`make sanitize-gpu` makes them; these are pieces of real ones)."""

import pytest

from tests.ops.triton import sanitize
from tests.ops.triton.sanitize import DONE, PARTS, Access, races, signals, verdict

HEAD, CALL = sorted(signals())
CUDNN = """\
========= Error: Race reported between Write access at cudnn_generated_sdpa_sm90_flash_bprop_wgmma_f16+0x5750
=========     and Read access at cudnn_generated_sdpa_sm90_flash_bprop_wgmma_f16+0x1330 [112 hazards]
========= """
SIGNAL = f"""\
========= Error: Race reported between Read access at hopper+0x140 in fast_hopper_kernel.py:{HEAD}
=========     and Write access at hopper+0xf720 in fast_hopper_kernel.py:{HEAD} [15 hazards]
=========     and Write access at hopper+0x1ce50 in fast_hopper_kernel.py:{CALL} [8 hazards]
========= """
OURS = SIGNAL.replace(f"py:{CALL}", f"py:{CALL - 100}")
NAMELESS = SIGNAL.replace(f" in fast_hopper_kernel.py:{CALL}", "")
ELSEWHERE = SIGNAL.replace("hopper+", "fast_pass+")


def racecheck(*found, displayed=None):
    count = len(found) if displayed is None else displayed
    summary = f"========= RACECHECK SUMMARY: {count} hazards displayed ({count} errors, 0 warnings)"
    return "\n".join(["========= COMPUTE-SANITIZER", *found, DONE, summary])


@pytest.mark.parametrize("found", [(), (CUDNN,), (SIGNAL,), (CUDNN, SIGNAL, CUDNN)])
def test_clean(found):
    assert not verdict("racecheck", racecheck(*found))


@pytest.mark.parametrize("race", [OURS, NAMELESS, ELSEWHERE, CUDNN.replace("Read access at cudnn_", "Read access at ")])
def test_races_of_ours_are_not_excused(race):
    assert verdict("racecheck", racecheck(SIGNAL, race, CUDNN)).startswith("1 races")


def test_a_report_that_is_not_understood_is_not_clean():
    assert "does not fit" in verdict("racecheck", racecheck(CUDNN, displayed=2))
    assert "does not fit" in verdict("racecheck", DONE)
    assert "does not fit" in verdict("memcheck", DONE)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_a_part_that_stops_early_is_not_clean(tool):
    report = racecheck().replace(DONE, "") + "\n========= ERROR SUMMARY: 0 errors\nRuntimeError: out of memory"
    assert verdict(tool, report) == "did not finish: RuntimeError: out of memory"
    assert verdict(tool, "") == "did not finish: no output"


def test_memory_errors_are_counted():
    assert verdict("memcheck", f"{DONE}\n========= ERROR SUMMARY: 3 errors") == "3 errors"
    assert verdict("memcheck", f"{DONE}\n========= ERROR SUMMARY: 10 errors") == "10 errors"
    assert not verdict("memcheck", f"{DONE}\n========= ERROR SUMMARY: 0 errors")


def test_faults_are_told_of_a_part_that_they_stopped():
    assert verdict("memcheck", "RuntimeError\n========= ERROR SUMMARY: 3 errors") == "3 errors"
    assert verdict("racecheck", racecheck(OURS).replace(DONE, "RuntimeError")).startswith("1 races")


def test_accesses_are_read_with_their_lines():
    assert races(SIGNAL) == [
        [Access("hopper", "fast_hopper_kernel.py", line) for line in (HEAD, HEAD, CALL)],
    ]
    assert [len(race) for race in races(CUDNN + "\n" + SIGNAL)] == [2, 3]


MEMORY = {0: f"{DONE}\n========= ERROR SUMMARY: 0 errors", 1: "========= ERROR SUMMARY: 1 error"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretend to have a GPU. Return a dict of reports for parts to print, and the list of what ran."""
    said, asked = {}, []

    def ran(name, *before):
        asked.append((before[2], name) if before else name)
        if not before:
            return DONE
        sound = PARTS[name].sound
        clean = MEMORY[not sound] if before[2] == "memcheck" else racecheck(*(() if sound else (OURS,)))
        return said.get((before[2], name), clean)

    monkeypatch.setattr(sanitize, "ran", ran)
    monkeypatch.setattr(sanitize, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(sanitize.torch.cuda, "get_device_capability", lambda: (9, 0))
    return said, asked


def test_every_part_runs_once_and_then_under_its_tools(machine, capsys, tmp_path):
    _, asked = machine
    assert sanitize.examined("compute-sanitizer") == 0
    compiled, checked = asked[: len(PARTS)], asked[len(PARTS) :]
    assert sorted(compiled) == sorted(PARTS)
    assert sorted(checked) == sorted((tool, name) for name, part in PARTS.items() for tool in part.tools)
    assert "FAILED" not in capsys.readouterr().out
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(
    ("tool", "name", "report"),
    [
        ("memcheck", "window", MEMORY[1]),
        ("racecheck", "float32", racecheck(OURS)),
        ("racecheck", "persistent programs", racecheck(SIGNAL).replace(DONE, "stopped after 900 s")),
        ("memcheck", "a planted read out of bounds", MEMORY[0]),
        ("memcheck", "a planted read out of bounds", "ImportError"),
        ("racecheck", "a planted race", racecheck()),
    ],
)
def test_what_is_not_as_it_should_be_fails_and_is_kept(tool, name, report, machine, capsys, tmp_path):
    """A fault of ours, a part that stops, a planted fault that no tool finds."""
    machine[0][tool, name] = report
    assert sanitize.examined("compute-sanitizer") == 1
    (failed,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED"))
    assert tool in failed
    assert name in failed
    (kept,) = (tmp_path / "reports").iterdir()
    assert kept.read_text(encoding="utf-8") == report


def test_other_gpus_leave_out_what_needs_hopper(machine, monkeypatch, capsys):
    monkeypatch.setattr(sanitize.torch.cuda, "get_device_capability", lambda: (8, 0))
    assert sanitize.examined("compute-sanitizer") == 0
    left = {name for name, part in PARTS.items() if part.hopper}
    assert left == {"persistent programs", "a planted race"}
    assert {name for name in machine[1] if isinstance(name, str)} == set(PARTS) - left
    printed = capsys.readouterr().out
    assert all(f"Hopper: {name}" in printed for name in left)
