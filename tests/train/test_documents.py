"""What docs/train says is so: every key, every metric, and the same commands in both languages."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from isotherm.train.config import DataSettings, ModelSettings, OptimizerSettings, RunSettings
from isotherm.train.config_file import load
from isotherm.train.loop import train
from tests.train.config_table import keys
from tests.train.corpora import tiny, write_tsv

ROOT = Path(__file__).parents[2]
PAGES = {"en": "docs/train.md", "zh": "docs/train.zh.md"}


def read(language):
    return (ROOT / PAGES[language]).read_text(encoding="utf-8")


def told(language):
    """The document's tables of keys: section, name, default and meaning of each."""
    rows = []
    for part in re.search(r"<!-- keys -->\n(.*?)<!-- /keys -->", read(language), re.S)[1].split("### ")[1:]:
        section, *lines = part.strip().splitlines()
        rows += [(section.strip("`[]"), *(cell.strip() for cell in line.split("|")[1:-1])) for line in lines[2:]]
    return [(section, name.strip("`"), default, meaning) for section, name, default, meaning in rows]


@pytest.mark.parametrize("language", PAGES)
def test_the_tables_of_keys_are_the_configuration_s(language):
    shown, wanted = told(language), keys()
    assert [row[:3] for row in shown] == [row[:3] for row in wanted]
    assert [meaning for *_, meaning in shown if not meaning] == []
    for (*_, meaning), (*_, choices) in zip(shown, wanted, strict=True):
        assert meaning.endswith(choices)
        said = meaning.removesuffix(choices)
        assert bool(re.search(r"[\u4e00-\u9fff]", said)) == (language == "zh")


@pytest.mark.parametrize("language", PAGES)
def test_the_keys_that_may_change_are_named(language):
    free = [
        f"`{item.name}`"
        for section in (DataSettings, ModelSettings, OptimizerSettings, RunSettings)
        for item in fields(section)
        if item.metadata["free"]
    ]
    assert {"en": ", ", "zh": "、"}[language].join(free) in read(language)


def test_every_metric_is_documented(tmp_path):
    train(tiny(write_tsv(tmp_path / "x.tsv"), run__steps=3, run__samples=0), tmp_path / "run", quiet=True)
    names = {name for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines() for name in json.loads(line)}
    for language in PAGES:
        assert [name for name in names - {"kind"} if f"`{name}`" not in read(language)] == []


def test_both_languages_show_the_same_commands():
    blocks = [re.findall(r"^```\w*\n(.*?)^```", read(language), re.M | re.S) for language in PAGES]
    english, chinese = ([re.sub(r"\s+#.*", "", block) for block in part] for part in blocks)
    assert english == chinese


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_the_configurations_that_come_along_are_valid(path):
    assert load(path).run.steps > 0
