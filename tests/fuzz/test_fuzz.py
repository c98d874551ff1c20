"""A slice of the fuzzer, the findings of earlier runs, and proof that a broken promise is found."""

from pathlib import Path
from random import Random

import pytest

from isotherm import cli
from tests.fuzz import case as cases
from tests.fuzz import examples
from tests.fuzz.case import Case, findings
from tests.fuzz.targets import TARGETS

KNOWN = sorted((Path(__file__).parent / "cases").glob("*.json"))
COUNTS = {"runs": 20, "models": 20}
"""Cases of a slice, where they are slower than a few milliseconds each."""


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz")
    (path / "hf").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in examples.environment(str(path)).items():
            patch.setenv(name, value)
        yield path


@pytest.mark.parametrize("target", TARGETS)
def test_a_slice_of_the_fuzzer_finds_nothing(target, room):
    for number in range(COUNTS.get(target, 60)):
        case = TARGETS[target][1](Random(f"slice/{number}"))
        assert findings(case, room) == [], case


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_an_earlier_finding_does_not_come_back(path, room):
    assert findings(Case.from_json(path.read_text(encoding="utf-8")), room) == []


def test_a_case_in_a_process_of_its_own(room):
    assert findings(Case(("rulez", "\x1b[31m")), room, in_process=False) == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_seed_gives_the_same_case_and_cases_can_be_written_down(target):
    make = TARGETS[target][1]
    assert make(Random(3)) == make(Random(3))
    assert any(make(Random(3)) != make(Random(number)) for number in range(4, 9))
    case = make(Random(3))
    assert Case.from_json(case.to_json()) == case


def raises(_):
    raise KeyError("x")


def hangs(_):
    while True:
        pass


def says(text, code=2):
    def run(_):
        import sys

        sys.stderr.write(text)
        return code

    return run


def writes(name):
    def run(_):
        Path(name).write_text("")
        return 0

    return run


BROKEN = {
    "exception": (raises, "KeyError at "),
    "exit": (lambda _: __import__("sys").exit(3), "SystemExit at "),
    "hang": (hangs, "hang at "),
    "exit code": (says("no", 3), "exit code 3"),
    "control character": (says("isotherm: \x1b[31m"), "control characters in a message"),
    "traceback": (says("Traceback (most recent call last)"), "traceback"),
    "mute": (says(""), "failed without a word"),
    "not JSON": (says("", 0), "not JSON"),
    "a file beside the output": (writes("elsewhere"), "wrote elsewhere"),
    "a file of the input": (writes("input"), "wrote elsewhere"),
    "a file above": (writes("../above"), "wrote elsewhere"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_promise_is_found(kind, room, monkeypatch):
    broken, expected = BROKEN[kind]
    monkeypatch.setattr(cli, "run", broken)
    monkeypatch.setattr(cases, "SECONDS", 0.3)
    found = findings(Case(("rules", "--json"), {"input": b"text", "out/x": b""}), room)
    assert [finding.kind for finding in found if finding.kind.startswith(expected)]
    (room / "above").unlink(missing_ok=True)


def test_output_where_it_was_asked_for_is_no_finding(room, monkeypatch):
    monkeypatch.setattr(cli, "run", writes("out/page.html"))
    assert findings(Case(("rules",), {"out/x": b""}), room) == []
