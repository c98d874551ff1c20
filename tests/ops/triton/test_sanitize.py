"""How compute-sanitizer's reports are read (`make sanitize-gpu` makes them; these are pieces of real ones)."""

import pytest

from tests.ops.triton.sanitize import DONE, PARTS, PLANTED, Access, races, signals, verdict

HEAD, CALL = sorted(signals())
CUDNN = """\
========= Error: Race reported between Write access at cudnn_generated_sdpa_sm90_flash_bprop_wgmma_f16+0x5750
=========     and Read access at cudnn_generated_sdpa_sm90_flash_bprop_wgmma_f16+0x1330 [112 hazards]
========= """
SIGNAL = f"""\
========= Error: Race reported between Read access at hopper+0x140 in hopper_kernel.py:{HEAD}
=========     and Write access at hopper+0xf720 in hopper_kernel.py:{HEAD} [15 hazards]
=========     and Write access at hopper+0x1ce50 in hopper_kernel.py:{CALL} [8 hazards]
========= """
OURS = SIGNAL.replace(f"py:{CALL}", f"py:{CALL - 100}")
NAMELESS = SIGNAL.replace(f" in hopper_kernel.py:{CALL}", "")
ELSEWHERE = SIGNAL.replace("hopper+", "dense+")


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
        [Access("hopper", "hopper_kernel.py", line) for line in (HEAD, HEAD, CALL)],
    ]
    assert [len(race) for race in races(CUDNN + "\n" + SIGNAL)] == [2, 3]


def test_names_are_told_apart():
    assert not set(PARTS) & {name for name, _ in PLANTED.values()}
