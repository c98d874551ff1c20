import re
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import InputError
from isotherm.train.sweep.spec import read_spec
from tests.train.sweep.small import SMALL, SPEC

ROOT = Path(__file__).parents[3]
RUNS = sorted((ROOT / "sweeps").glob("*.toml"))


def spec_of(tmp_path: Path, text: str, **options):
    path = tmp_path / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return read_spec(path, **options)


def test_every_combination_is_a_trial(tmp_path):
    spec = spec_of(tmp_path, SPEC)
    assert len(spec.trials) == 3 * 2 * 2
    assert spec.trials[0] == replace(SMALL, rule="none", lr=1e-3, seed=0)
    assert spec.trials[-1] == replace(SMALL, rule="qk-norm*1/sqrt(d)", lr=1e-2, seed=1)
    assert (spec.axes.x, spec.axes.series) == ("lr", ("rule",))


def test_quick_replaces_what_it_names(tmp_path):
    spec = spec_of(tmp_path, SPEC, quick=True)
    assert len(spec.trials) == 3 * 2
    assert {trial.steps for trial in spec.trials} == {2}


def test_blocks_share_the_common_part_and_override_it(tmp_path):
    text = (
        SPEC + '[[sweep]]\nname = "a"\n[[sweep]]\nname = "b"\nbase = { rule = "ssmax" }\ngrid = { width = [14, 28] }\n'
    )
    spec = spec_of(tmp_path, text)
    assert [(name, len(trials)) for name, trials in spec.blocks] == [("a", 12), ("b", 8)]
    assert {trial.rule for trial in spec.blocks[1][1]} == {"ssmax"}


def test_quick_also_replaces_what_a_block_says(tmp_path):
    spec = spec_of(tmp_path, SPEC + "[[sweep]]\nbase = { steps = 9, width = 28 }\nquick = { width = 14 }\n", quick=True)
    assert {(trial.steps, trial.width) for trial in spec.trials} == {(2, 14)}


def test_a_matching_gain_follows_the_head_dimension(tmp_path):
    text = '[base]\nrule = "none"\ninit = "match"\nheads = 1\n[grid]\nwidth = [16, 256]\n'
    assert [trial.init for trial in spec_of(tmp_path, text).trials] == [0.5, 0.25]


def test_lengths_to_test_are_one_value(tmp_path):
    text = "[base]\ntest_lengths = [3, 5]\n[grid]\nseed = [0, 1]\n[quick]\ntest_lengths = [4]\n"
    assert {trial.test_lengths for trial in spec_of(tmp_path, text).trials} == {(3, 5)}
    assert {trial.test_lengths for trial in spec_of(tmp_path, text, quick=True).trials} == {(4,)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[base]\nstep = 5", r"base\.step: expected a known key \(did you mean steps\?\)"),
        ("[gird]\nlr = [1]", r"gird: expected a known key \(did you mean grid\?\)"),
        ("[grid]\nlr = 1e-3", r"grid\.lr: expected a list"),
        ("[grid]\nlr = []", r"grid\.lr: expected a list"),
        ("[base]\nlr = '1e-3'", r"base\.lr: expected a number, got '1e-3'"),
        ("[base]\nwidth = 64.0", r"base\.width: expected a whole number, got 64\.0"),
        ("[base]\nseed = true", r"base\.seed: expected a whole number, got True"),
        ("[base]\nlr = 1.0\n[grid]\nlr = [1.0]", "lr is in both base and grid"),
        ("[base]\nrule = 'logn'", r"toml: rule: expected .*nearest: log-n"),
        ("[report]\nx = 'wdith'", r"report\.x: expected step .* \(did you mean width\?\), got 'wdith'"),
        ("[report]\ny = 'speed'", r"report\.y: expected loss \| accuracy"),
        ("[report]\nseries = 'rule'", r"report\.series: expected a list of texts"),
        ("[report]\nseries = [[1]]", r"report\.series\[0\]: expected text in quotes, got \[1\]"),
        ("[report]\nx = 'rule'", r"report\.x: expected step \| width"),
        ("[report]\nx = 'test_lengths'", r"report\.x: expected .* \(did you mean length\?\), got .test_lengths"),
        ("[report]\nbest = 'seed'", r"report\.best: expected task"),
        ("report = 3", "report: expected a table"),
        ("[[sweep]]\nnaem = 'x'", r"sweep\[0\]\.naem: expected a known key \(did you mean name\?\)"),
        ("sweep = 3", "sweep: expected a list, got 3"),
        ("sweep = []", r"expected \[\[sweep\]\]"),
        ("[base]\ntask = 'text'\nmodel = 'decoder'\ncorpus = 'none.txt'\nvocabulary = 300", "no such file"),
        ("[[sweep]]\nbase = { rule = 'logn' }", r"toml: sweep\[0\]\.rule: expected .*nearest: log-n"),
        ("[base]\nlayers = 100000000000000000000", r"toml: base\.layers: expected 1 to 1024, got 10\^20"),
        (f"[grid]\nseed = {list(range(400))}\nwarmup = {list(range(400))}", "grid: expected lists with at most 100000"),
        ("[base", "not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, complaint):
    with pytest.raises(InputError, match=complaint):
        spec_of(tmp_path, text)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
def test_the_runs_that_come_along_are_understood(path, quick, tmp_path):
    text = path.read_text(encoding="utf-8")
    for name in ("corpora/en-zh.tsv", "corpora/text.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\tb\n", encoding="utf-8")
    spec = spec_of(tmp_path, text, quick=quick)
    assert len(spec.trials) >= 4


@pytest.mark.parametrize("document", ["README.md", "docs/sweep.md"])
def test_the_first_sweep_a_reader_is_shown_needs_nothing_that_does_not_come_along(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    first = re.search(r"^isotherm sweep (\S+) .*--quick", text, re.M).group(1)
    spec = read_spec(ROOT / first, quick=True)
    assert {trial.corpus for trial in spec.trials} == {None}
    assert not re.search(r"\d", spec.title)  # the small version has other sizes


def test_there_are_runs_that_come_along():
    assert {"attention-kind", "initialisation", "learning-rate", "length"} <= {path.stem for path in RUNS}
