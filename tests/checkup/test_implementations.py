"""Implementations of one model side by side: what counts as a difference, and threads that wait for one another."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup import implementations
from isotherm.checkup.differences import Apart, apart, difference, inherited, of_layers
from isotherm.checkup.implementations import switched, taking_turns
from isotherm.checkup.measure import look
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


def compared(one, other, **known):
    return difference(of_layers(one), of_layers(other), NAMES, 0.01, **known)


def test_layers_that_are_the_same_agree(layers):
    found = compared(layers, layers)
    assert found.agree
    assert (found.implementations, found.difference, found.tolerance) == (NAMES, 0.0, 0.01)


def test_the_first_layer_beyond_the_tolerance_is_named_though_a_later_one_differs_more(layers):
    one, two = layers
    other = (changed(one, max_logit=one.head_stats[0].max_logit + 1), changed(two, max_logit=1e6))
    found = compared(layers, other)
    assert (found.layer, found.statistic, found.agree) == (0, "max_logit", False)


def test_the_worst_layer_is_named_where_all_agree(layers):
    one, two = layers
    slightly = changed(two, logit_std=two.head_stats[0].logit_std * 1.001)
    found = compared(layers, (one, slightly))
    assert (found.layer, found.statistic, found.agree) == (1, "logit_std", True)
    assert found.difference == pytest.approx(1 - 1 / 1.001)


def test_a_statistic_that_neither_has_is_no_difference_and_one_that_only_one_has_is_whole(layers):
    one, two = layers
    without = (changed(one, logit_std=None), two)
    assert compared(without, without).difference == 0
    assert compared(layers, without).difference == 1


def test_another_number_of_layers_is_a_difference(layers):
    found = compared(layers, layers[:1])
    assert (found.statistic, found.difference, found.agree) == ("layers", 1.0, False)


def test_what_is_inherited_is_no_difference_and_another_scale_is_one(layers):
    one, two = layers
    other = (changed(one, max_logit=one.head_stats[0].max_logit * 1.5), two)
    assert compared(layers, other, inherited=[1.0, 0.0]).agree
    assert compared(layers, layers, found=[Apart(), Apart(0.001, 0.5)]).statistic == "scale"
    assert compared(layers, layers, found=[Apart(), Apart(0.6, 0.5)]).agree  # q and k are too far apart to say


def captured(scale, multiplier=1.0):
    """A call of the same q and k, both multiplied."""
    torch.manual_seed(0)
    seen = look(trained(Model(Attention())), batch()).captures[0]
    problem = seen.problem
    return replace(seen, problem=replace(problem, q=problem.q * multiplier, k=problem.k * multiplier, scale=scale))


def test_a_scale_is_compared_with_what_q_and_k_were_multiplied_with():
    plain = captured(0.5)
    (same,), (doubled,) = (apart([plain], [captured(scale, 0.5)]) for scale in (2.0, 4.0))
    assert same.direction == pytest.approx(0, abs=1e-6)
    assert same.scale == pytest.approx(0, abs=1e-5)
    assert doubled.scale == pytest.approx(0.5)
    noise = replace(plain, problem=replace(plain.problem, q=plain.problem.q + 0.1 * torch.randn_like(plain.problem.q)))
    (noisy,) = apart([plain], [noise])
    size = float(plain.problem.q.norm()) / plain.problem.q.numel() ** 0.5
    assert noisy.direction == pytest.approx(0.1 / (size**2 + 0.01) ** 0.5, rel=0.3)
    assert inherited([noisy], [torch.tensor([[1.0, -30.0, 1, 1]]).numpy()]) == [30 * noisy.direction]


def bert(**fields):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=3, intermediate_size=16, vocab_size=50, **fields
    )
    return transformers.BertModel(config).eval(), {"input_ids": torch.arange(18).view(2, -1)}


def test_a_glance_sees_the_calls_that_a_look_sees_and_leaves_the_operations_alone():
    model, ids = bert()
    looked, glanced = look(model, ids), look(model, ids, glance=True)
    assert [one.name for one in glanced.captures] == [one.name for one in looked.captures]
    for one, other in zip(looked.captures, glanced.captures, strict=True):
        assert torch.equal(one.problem.q, other.problem.q)
        assert (one.problem.scale, one.implementation) == (other.problem.scale, other.implementation)
        assert one.q_factor.kind == "constant"
        assert other.q_factor.kind == "untraced"


def test_a_model_whose_attention_no_glance_sees_is_followed():
    transformers = pytest.importorskip("transformers")
    model, ids = bert()
    looks = []

    class Written(nn.Module):
        """Attention that no table of functions knows, chosen by its configuration."""

        def __init__(self):
            super().__init__()
            self.config, self.inner = transformers.BertConfig(), trained(Model(Attention()))
            self.config._attn_implementation = "sdpa"

        def set_attn_implementation(self, name):
            self.config._attn_implementation = name

        def forward(self, x):
            return self.inner(x)

    def counted(*given, **options):
        looks.append(options)
        return look(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(implementations, "look", counted)
        seen = isotherm.check(Written().eval(), batch(), what_if=())
        assert [one.agree for one in seen.record.comparisons] == [True]
        assert looks == [{"glance": True}, {}]
        isotherm.check(model, ids, what_if=())
        assert looks[2:] == [{"glance": True}]


def test_another_number_of_heads_is_not_compared(monkeypatch):
    model, ids = bert()
    whole = implementations.of_tables
    monkeypatch.setattr(implementations, "of_tables", lambda tables: [one[:1] for one in whole(tables)])
    record = isotherm.check(model, ids, what_if=()).record
    assert not record.comparisons
    assert "number of heads" in str(record.not_compared[0].why)


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
