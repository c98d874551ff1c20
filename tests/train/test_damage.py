"""Damaged and edited files of a run: one sentence that names the file, exit code 2, and nothing overwritten."""

import json
import re
import shutil
from pathlib import Path

import pytest

from isotherm.cli import run
from isotherm.train.loop import train
from tests.train.corpora import SMALL, learned, tiny, write_tsv

SETTINGS = (
    "[run]\nsteps = 9\nbatch_tokens = 160\nlog_every = 3\nevaluate_every = 4\ncheckpoint_every = 4\nsamples = 0\n"
)
DEEP = "[" * 1000 + "]" * 1000


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of six steps, and the configuration that asks for nine."""
    folder = tmp_path_factory.mktemp("damage")
    text = SMALL.format(path=write_tsv(folder / "x.tsv")) + SETTINGS
    (folder / "nine.toml").write_text(text)
    (folder / "six.toml").write_text(text.replace("steps = 9", "steps = 6"))
    assert run(["train", str(folder / "six.toml"), "--out", str(folder / "run")]) == 0
    return folder


def manifests(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").glob("*.json"))


def each_manifest(text: str):
    def damage(path: Path) -> None:
        for manifest in manifests(path):
            manifest.write_text(text)

    return damage


def edited(**changes: object):
    """Every manifest with other values."""

    def damage(path: Path) -> None:
        for manifest in manifests(path):
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))

    return damage


def edited_without_seal(**changes: object):
    """As a version wrote it that sealed nothing."""

    def damage(path: Path) -> None:
        edited(**changes)(path)
        for manifest in manifests(path):
            plain = json.loads(manifest.read_text())
            manifest.write_text(json.dumps({key: value for key, value in plain.items() if key != "seal"}))

    return damage


def with_line(line: str, place: int = 1):
    def damage(path: Path) -> None:
        lines = (path / "metrics.jsonl").read_text().splitlines()
        lines.insert(place, line)
        (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    return damage


DAMAGE = {
    "a number in metrics": (with_line("5"), r"metrics\.jsonl: line 2: expected an object, got 5"),
    "half a line in metrics": (with_line('{"kind": "train"}'), r"metrics\.jsonl: line 2: loss: expected a value"),
    "a step in words": (
        with_line('{"kind": "train", "step": "5", "loss": 1.0}'),
        r"metrics\.jsonl: line 2: step: expected a whole number, got '5'",
    ),
    "a negative step": (
        with_line('{"kind": "train", "step": -5, "loss": 1.0}'),
        r"metrics\.jsonl: line 2: step: expected 0 to 1000000000, got -5",
    ),
    "another kind": (
        with_line('{"kind": "song", "step": 5, "loss": 1.0}'),
        r"metrics\.jsonl: line 2: kind: expected train \| held_out, got 'song'",
    ),
    "a deep line": (with_line(DEEP), r"metrics\.jsonl: line 2: nested too deeply"),
    "a cut line in the middle": (with_line('{"kind": "tra'), r"metrics\.jsonl: line 2: not JSON"),
    "no configuration": (lambda path: (path / "config.json").write_text(""), r"config\.json: not JSON"),
    "null": (lambda path: (path / "config.json").write_text("null"), r"config\.json: expected a table, got None"),
    "a list": (lambda path: (path / "config.json").write_text("[1]"), r"config\.json: expected a table, got \[1\]"),
    "a deep configuration": (lambda path: (path / "config.json").write_text(DEEP), r"config\.json: nested too deeply"),
    "a section of another type": (
        lambda path: (path / "config.json").write_text('{"data": 5}'),
        r"config\.json: data: expected a table, got 5",
    ),
    "empty manifests": (each_manifest("{}"), r"step-0+6\.json: schema: expected a value"),
    "manifests that are a list": (each_manifest("[1]"), r"step-0+6\.json: expected an object, got \[1\]"),
    "deep manifests": (each_manifest(DEEP), r"step-0+6\.json: nested too deeply"),
    "edited notes": (edited(notes=5), r"step-0+6\.json: changed since it was written"),
    "notes of another type": (edited_without_seal(notes=5), r"step-0+6\.json: notes: expected an object, got 5"),
    "an edited step": (edited(step=-5), r"step-0+6\.json: changed since it was written"),
    "a step before the start": (edited_without_seal(step=-5), r"step-0+6\.json: it says step -5"),
    "a step that is text": (edited_without_seal(step="6"), r"step-0+6\.json: step: expected a whole number, got '6'"),
    "no vocabulary": (lambda path: (path / "tokenizer.json").write_text("{}"), r"tokenizer\.json: not a tokenizer"),
    "a deep vocabulary": (lambda path: (path / "tokenizer.json").write_text(DEEP), r"tokenizer\.json: not a tokenizer"),
    "a folder for metrics": (
        lambda path: ((path / "metrics.jsonl").unlink(), (path / "metrics.jsonl").mkdir()),
        r"metrics\.jsonl: this is a folder",
    ),
}


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file() and file.name != ".lock"}


@pytest.mark.parametrize(("damage", "why"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_run_is_refused_and_left_as_it_is(trained, tmp_path, capsys, damage, why):
    path = tmp_path / "run"
    shutil.copytree(trained / "run", path)
    damage(path)
    before = contents(path)
    capsys.readouterr()
    assert run(["train", str(trained / "nine.toml"), "--out", str(path), "--resume"]) == 2
    said = capsys.readouterr().err
    assert re.search(why, said), said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("isotherm: ")
    assert contents(path) == before


@pytest.mark.parametrize("rules", [[], ["--rules", "none,1/d"]], ids=["one run", "under rules"])
def test_a_folder_of_something_else_is_left_as_it_is(tmp_path, capsys, rules):
    config, out = tmp_path / "task.toml", tmp_path / "out"
    config.write_text('[data]\nkind = "copy"\n[run]\nsteps = 1\n')
    model = out / "none" if rules else out
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "bert"}')
    (model / "tokenizer.json").write_text("mine")
    before = sorted(out.rglob("*"))
    assert run(["train", str(config), "--out", str(out), *rules]) == 2
    assert "its config.json is not that of a run and would be overwritten" in capsys.readouterr().err
    assert sorted(out.rglob("*")) == before
    assert (model / "config.json").read_text() == '{"model_type": "bert"}'


def test_a_line_that_a_kill_cut_short_is_not_damage(trained, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(trained / "run", path)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert run(["train", str(trained / "nine.toml"), "--out", str(path), "--resume"]) == 0


def test_a_run_from_before_manifests_were_sealed_goes_on_exactly(trained, tmp_path):
    sealed, unsealed = tmp_path / "sealed", tmp_path / "unsealed"
    for path in (sealed, unsealed):
        shutil.copytree(trained / "run", path)
    edited_without_seal()(unsealed)
    config = json.loads((unsealed / "config.json").read_text())
    del config["run"]["threads"]  # nor had it this key
    (unsealed / "config.json").write_text(json.dumps(config))
    for path in (sealed, unsealed):
        assert run(["train", str(trained / "nine.toml"), "--out", str(path), "--resume"]) == 0
    assert learned(sealed) == learned(unsealed)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["long", "null"])
def test_a_name_that_no_run_can_have(capsys, name):
    assert run(["translate", name, "hello"]) == 2
    assert "there is no such run" in capsys.readouterr().err


def test_an_infinite_gradient_is_no_damage(tmp_path):
    """float16 skips a step whose gradient is infinite, and its norm is recorded."""
    tsv = write_tsv(tmp_path / "x.tsv")
    train(tiny(tsv, run__steps=7, run__samples=0), tmp_path / "run", quiet=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text(re.sub(r'"gradient_norm": [^,]+', '"gradient_norm": Infinity', metrics.read_text()))
    train(tiny(tsv, run__steps=8, run__samples=0), tmp_path / "run", resume=True, quiet=True)
