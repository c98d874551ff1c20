"""Implementations of one model side by side: what counts as a difference, and threads that wait for one another."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.implementations import difference, switched, taking_turns
from isotherm.checkup.thresholds import SAME_STATISTICS
from tests.checkup.models import Attention, Model, batch, trained

NAMES = ("eager", "sdpa")


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    report = isotherm.check(trained(Model(Attention(), Attention())), batch(), what_if=(), compare=False)
    return report.record.layers


def changed(layer, **fields):
    """The layer with other statistics of its first head."""
    first, *others = layer.head_stats
    return replace(layer, head_stats=(replace(first, **fields), *others))


def test_layers_that_are_the_same_agree(layers):
    found = difference(layers, layers, NAMES, 0.01)
    assert found.agree
    assert (found.implementations, found.difference, found.tolerance) == (NAMES, 0.0, 0.01)


def test_the_first_layer_beyond_the_tolerance_is_named_though_a_later_one_differs_more(layers):
    one, two = layers
    other = (changed(one, max_logit=one.head_stats[0].max_logit + 1), changed(two, max_logit=1e6))
    found = difference(layers, other, NAMES, 0.01)
    assert (found.layer, found.statistic, found.agree) == (0, "max_logit", False)


def test_the_worst_layer_is_named_where_all_agree(layers):
    one, two = layers
    slightly = changed(two, logit_std=two.head_stats[0].logit_std * 1.001)
    found = difference(layers, (one, slightly), NAMES, 0.01)
    assert (found.layer, found.statistic, found.agree) == (1, "logit_std", True)
    assert found.difference == pytest.approx(1 - 1 / 1.001)


def test_a_statistic_that_neither_has_is_no_difference_and_one_that_only_one_has_is_whole(layers):
    one, two = layers
    without = (changed(one, logit_std=None), two)
    assert difference(without, without, NAMES, 0.01).difference == 0
    assert difference(layers, without, NAMES, 0.01).difference == 1


def test_another_number_of_layers_is_a_difference(layers):
    found = difference(layers, layers[:1], NAMES, 0.01)
    assert (found.statistic, found.difference, found.agree) == ("layers", 1.0, False)


@pytest.mark.parametrize(("dtype", "room"), [(torch.float32, 1), (torch.bfloat16, 5)])
def test_half_precision_has_more_room(dtype, room):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, vocab_size=50
    )
    model = transformers.BertModel(config).to(dtype).eval()
    report = isotherm.check(model, {"input_ids": torch.arange(9).view(1, -1)}, what_if=())
    (comparison,) = report.record.comparisons
    assert comparison.tolerance == SAME_STATISTICS.value * room


def test_every_configuration_is_restored_and_one_that_is_a_plain_dict_is_left_alone():
    class Switching(nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.inner = SimpleNamespace(_attn_implementation="eager"), nn.Identity()
            self.inner.config = {"own": "dict"}

        def set_attn_implementation(self, name):
            self.config._attn_implementation = name

    with switched(model := Switching(), "sdpa") as why_not:
        assert why_not is None
        assert model.config._attn_implementation == "sdpa"
    assert model.config._attn_implementation == "eager"
    assert model.inner.config == {"own": "dict"}


def test_a_thread_waits_until_the_other_has_checked_the_model():
    model, inside, order = nn.Identity(), threading.Event(), []

    def second():
        inside.set()
        with taking_turns(model):
            order.append("second")

    thread = threading.Thread(target=second, daemon=True)
    with taking_turns(model), taking_turns(model):  # one thread does not wait for itself
        thread.start()
        inside.wait(10)
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
