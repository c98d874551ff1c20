"""What the documents say of alarms and cost is what was measured."""

import csv
from math import isfinite
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = ["docs/watch.md", "docs/watch.zh.md"]


def rows(name):
    with (ROOT / f"benchmarks/results/{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def said(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_false_alarms_over_healthy_runs(name):
    runs = rows("healthy_cpu")
    learned = [row for row in runs if float(row["last_loss"]) < 0.9 * float(row["first_loss"])]
    others = [row for row in runs if row not in learned]
    assert not any(row["alerts"] for row in learned)
    assert all(row["alerts"] and not isfinite(float(row["last_loss"])) for row in others)
    words = "Of {} other runs of nine kinds|) {} learned" if name.endswith("watch.md") else "共 {} 次训练|{} 次学成"
    assert len({row["kind"] for row in runs}) == 9
    for part, count in zip(words.split("|"), (len(runs), len(learned)), strict=True):
        assert part.format(count) in said(name)
    assert f"{5 + len(learned)} " in said("README.md").partition("hot runs;")[2][:5]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_cost_on_a_cpu(name):
    (row,) = rows("watch_cpu")
    assert (row["way"], row["every"], row["steps"]) == ("eager", "50", "600")
    assert float(row["ratio"]) <= 1.01
    assert f"{float(row['ratio']):.3f} " in said(name)
