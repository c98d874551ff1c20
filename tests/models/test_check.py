"""Our own models under our own check-up: every attention call is seen, with the scale that is in force."""

import pytest
import torch

import isotherm
from isotherm.models import build

from .small import SHAPE, ids

PLAIN = {"what_if": (), "compare": False}
SOURCE, TARGET = ids(2, 19, padded=4), ids(2, 17, seed=2)


def checked(kind: str, rule: str | None):
    torch.manual_seed(1)
    model = build(kind, SHAPE, rule)
    given = (SOURCE, TARGET) if kind in ("transformer", "recurrent") else (SOURCE,)
    before = model(*given)
    report = isotherm.check(model, given, **PLAIN)
    assert torch.equal(model(*given), before)
    return report


@pytest.mark.parametrize(
    ("rule", "scale"), [(None, 5**-0.5), ("1/d", 0.2), ("none", 1.0), ("0.37", 0.37), ("per-head", 5**-0.5)]
)
@pytest.mark.parametrize(("kind", "calls"), [("transformer", 6), ("decoder", 2), ("bert", 2)])
def test_every_call_is_seen_with_its_scale(kind, calls, rule, scale):
    report = checked(kind, rule)
    assert len(report.layers) == calls
    assert not report.record.unseen
    for layer in report.layers:
        assert layer.implementation == "sdpa"
        assert layer.scale.effective == pytest.approx(scale, rel=1e-4)
        assert (layer.heads, layer.head_dim) == (3, 5)
    kinds = [layer.kind for layer in report.layers]
    assert kinds == (["self", "self", "self", "cross", "self", "cross"] if kind == "transformer" else ["self"] * calls)


def test_a_scale_by_layer_is_seen_by_layer():
    scales = [layer.scale.effective for layer in checked("decoder", "by-layer * 1/sqrt(d)").layers]
    assert scales == pytest.approx([5**-0.5, 5**-0.5 / 2], rel=1e-4)


@pytest.mark.parametrize("rule", ["softcap:3 * 1/sqrt(d)", "sinks:0.5 * 1/sqrt(d)"])
def test_caps_and_sinks_are_seen_through_our_own_attention(rule):
    for layer in checked("decoder", rule).layers:
        assert layer.implementation == "isotherm"
        assert layer.scale.effective == pytest.approx(5**-0.5, rel=1e-4)


@pytest.mark.parametrize(("rule", "note"), [("qk-norm * 1/d", "normalised"), ("log-n:3 * 1/d", "position")])
def test_what_happens_to_q_and_k_on_the_way_is_told(rule, note):
    for layer in checked("decoder", rule).layers:
        assert layer.scale.effective == pytest.approx(0.2)
        assert note in str(layer.scale.note)


def test_the_recurrent_models_attention_is_seen():
    (layer,) = checked("recurrent", "scaled-dot").layers
    assert (layer.kind, layer.heads, layer.head_dim) == ("cross", 1, 5)
    assert layer.scale.effective == pytest.approx(5**-0.5, rel=1e-4)
