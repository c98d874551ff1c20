import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from isotherm.record import from_plain, to_plain
from isotherm.report.changes import CompareRecord, change
from isotherm.report.compare import compare, show, to_markdown
from tests.report import records
from tests.report.drawn import model_of
from tests.report.test_terminal import assert_golden, without_trailing_space


def healthy():
    return model_of("gpt2", 12, 12, keys=1024, seed=5, path="transformer.h.{}.attn")


def shown(record, language, width=80):
    console = Console(file=StringIO(), width=width)
    show(record, console, language)
    return console.file.getvalue()


def test_nothing_changed():
    same = compare(healthy(), healthy())
    assert same.new_findings == same.gone_findings == same.flips == same.added_layers == same.removed_layers == ()
    assert "Nothing changed." in shown(same, "en")
    assert "没有变化" in to_markdown(same, "zh")
    assert not same.worse


def test_what_got_worse_and_what_got_better():
    worse, better = compare(healthy(), records.gpt2()), compare(records.gpt2(), healthy())
    assert [found.finding.code for found in worse.new_findings] == [finding.code for finding in records.gpt2().findings]
    assert worse.gone_findings == better.new_findings == ()
    assert worse.new_findings == better.gone_findings
    assert worse.worse
    assert not better.worse
    third = worse.layers[3]
    assert third.scale.before == pytest.approx(0.125)
    assert third.scale.difference == pytest.approx(0.875)
    assert third.gate_p50.difference < -0.8
    assert {(flip.layer, flip.head, flip.before, flip.after) for flip in worse.flips} == {
        (flip.layer, flip.head, flip.after, flip.before) for flip in better.flips
    }


def test_layers_are_matched_by_name_not_by_number():
    before = healthy()
    extra = replace(before.layers[0], name="transformer.extra")
    moved = tuple(replace(layer, index=i) for i, layer in enumerate((extra, *before.layers[:-1])))
    result = compare(before, replace(before, layers=moved))
    assert result.added_layers == ("transformer.extra",)
    assert result.removed_layers == ("transformer.h.11.attn",)
    assert result.flips == ()
    assert all(line.gate_p50.difference == 0 for line in result.layers)


def test_a_finding_on_a_layer_that_moved_is_the_same_finding():
    before = records.gpt2()
    shifted = tuple(replace(layer, index=layer.index + 1) for layer in before.layers)
    findings = tuple(replace(finding, layer=finding.layer + 1) for finding in before.findings)
    result = compare(before, replace(before, layers=shifted, findings=findings))
    assert result.new_findings == result.gone_findings == ()


def test_a_module_that_runs_twice_is_two_layers():
    before = healthy()
    shared = tuple(replace(layer, name="shared") for layer in before.layers)
    assert len(compare(replace(before, layers=shared), replace(before, layers=shared)).layers) == 12


def test_json_round_trip():
    result = compare(healthy(), records.gpt2())
    assert from_plain(CompareRecord, json.loads(json.dumps(to_plain(result)))) == result
    json.dumps(to_plain(compare(records.ugly(), records.gpt2())), allow_nan=False)


def test_what_is_not_a_number_is_missing():
    assert change(float("nan"), 1.0).difference is None
    assert change(None, 1.0).before is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_golden(language):
    result = compare(healthy(), records.gpt2())
    text = without_trailing_space(shown(result, language))
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert_golden(f"compare.{language}.txt", text)
    assert_golden(f"compare.{language}.md", to_markdown(result, language))
