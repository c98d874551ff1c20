"""The one attention module: every rule in it against `isotherm.attention`, and which kernel ran."""

import pytest
import torch
import torch.nn.functional as F

from isotherm import attention
from isotherm.errors import ArgumentError
from isotherm.models import Attention, Cache
from isotherm.scale import ATLAS, ByLayer, InverseSqrt, PerHead, QKNorm, Sinks, parse

from .small import SHAPE

RULES = {
    **{name: entry.example for name, entry in ATLAS.items() if entry.example is not None},
    "1/sqrt(d), twice log-n": parse("log-n:3 * 1/sqrt(d)"),
    "all at once": parse("qk-norm:layer,width * softcap:3 * sinks:0.7 * per-dim * ssmax"),
    "rotary": parse("yarn:4,none,none,none,2"),
}


@pytest.fixture(params=RULES.values(), ids=RULES.keys())
def rule(request):
    return request.param


def made(rule=None, **options) -> Attention:
    torch.manual_seed(3)
    layer = Attention(SHAPE, rule, **options).double()
    with torch.no_grad():
        for parameter in layer.rule.parameters():
            parameter.add_(0.3 * torch.rand_like(parameter))
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def words(length: int, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, length, SHAPE.width, generator=generator, dtype=torch.float64)


def written_out(layer: Attention, x, memory=None, **seen) -> torch.Tensor:
    """The textbook's attention, with the layer's own projections."""
    memory = x if memory is None else memory
    q, k, v = (
        linear(states).unflatten(-1, (SHAPE.heads, -1)).transpose(1, 2)
        for linear, states in ((layer.query, x), (layer.key, memory), (layer.value, memory))
    )
    out = attention(q, k, v, scale=layer.declares, impl="reference", **seen).output
    return layer.out(out.transpose(1, 2).flatten(2))


SEEN = {
    "all": {},
    "causal": {"causal": True},
    "mask": {"mask": torch.arange(7).view(1, 1, 1, 7) < torch.tensor([7, 4]).view(2, 1, 1, 1)},
    "causal and mask": {"causal": True, "mask": torch.arange(7).view(1, 1, 1, 7) != 2},
}


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN.keys())
def test_every_rule_does_what_it_says(rule, seen):
    layer, x = made(rule), words(7)
    torch.testing.assert_close(layer(x, **seen), written_out(layer, x, **seen), atol=1e-12, rtol=1e-10)


def test_every_rule_does_what_it_says_across(rule):
    layer, x, memory = made(rule), words(3), words(7, seed=6)
    torch.testing.assert_close(layer(x, memory), written_out(layer, x, memory), atol=1e-12, rtol=1e-10)


def test_what_a_rule_learns_gets_a_gradient(rule):
    layer = made(rule)
    layer(words(7), causal=True).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0 or name == "key.bias", name


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 4], [3, 1, 3]], ids=str)
def test_token_by_token_with_a_cache_is_all_at_once(rule, pieces):
    layer, x, cache = made(rule), words(7), Cache()
    parts = [layer(part, causal=True, cache=cache) for part in x.split(pieces, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x, causal=True), atol=1e-12, rtol=1e-10)


def test_a_memory_is_projected_once():
    layer, memory, cache = made(), words(7, seed=6), Cache()
    before = layer(words(3), memory, cache=cache)
    torch.testing.assert_close(layer(words(3), torch.full_like(memory, torch.nan), cache=cache), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("text", "number", "learned"),
    [
        ("1/sqrt(d)", 5**-0.5, []),
        ("1/d * x0.5", 0.1, []),
        ("by-layer * 1/sqrt(d)", 5**-0.5 / 3, []),
        ("per-head", 1.0, ["scale"]),
        ("qk-norm * 1/sqrt(d)", 5**-0.5, ["q_gain", "k_gain"]),
        ("sinks:2 * none", 1.0, ["alpha"]),
        ("log-n:3 * 1/d", 0.2, []),
    ],
)
def test_what_is_one_number_is_worked_out_once_and_what_is_learned_is_a_parameter(text, number, learned):
    rule = Attention(SHAPE, parse(text), layer=2).rule
    assert rule.number == pytest.approx(number)
    assert list(dict(rule.named_parameters())) == learned


def test_learned_parts_start_where_the_rule_stands_and_are_not_shared():
    assert Attention(SHAPE, PerHead()).rule.scale.tolist() == pytest.approx([5**-0.5] * 3)
    assert Attention(SHAPE, Sinks(0.25)).rule.alpha.tolist() == [0.25] * 3
    given = torch.arange(3.0)
    layer = Attention(SHAPE, PerHead(given) * QKNorm(q_gain=torch.full((5,), 2.0)))
    with torch.no_grad():
        layer.rule.scale.zero_()
    assert given.tolist() == [0, 1, 2]
    assert (layer.rule.q_gain.tolist(), layer.rule.k_gain.tolist()) == ([2] * 5, [1] * 5)


def test_two_rules_that_learn_the_same_are_refused():
    with pytest.raises(ArgumentError, match="at most one rule that learns scale"):
        Attention(SHAPE, PerHead() * PerHead())


@pytest.mark.parametrize(
    ("rule", "seen", "want"),
    [
        (None, {"causal": True}, {"attn_mask": False, "is_causal": True, "scale": 5**-0.5}),
        (ByLayer() * InverseSqrt(), {}, {"attn_mask": False, "is_causal": False, "scale": 5**-0.5 / 2}),
        (None, SEEN["mask"], {"attn_mask": True, "is_causal": False, "scale": 5**-0.5}),
        (None, SEEN["causal and mask"], {"attn_mask": True, "is_causal": False, "scale": 5**-0.5}),
        (QKNorm(), {"causal": True}, {"attn_mask": False, "is_causal": True, "scale": 1.0}),
    ],
    ids=["plain", "by layer", "mask", "causal and mask", "qk-norm"],
)
def test_which_kernel_ran_and_what_it_was_handed(rule, seen, want, monkeypatch):
    calls, kernel = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *q, **how: (calls.append(how), kernel(*q, **how))[1])
    made(rule, layer=1)(words(7), **seen)
    (how,) = calls
    assert {**how, "attn_mask": how["attn_mask"] is not None} == {**want, "scale": pytest.approx(want["scale"])}


@torch.no_grad()
def test_a_gain_on_queries_and_keys_heats_the_logits_by_its_square():
    def spread(gain: float) -> float:
        torch.manual_seed(7)
        layer = Attention(SHAPE).double()
        torch.manual_seed(7)
        layer.initialise(gain)
        assert not layer.query.bias.any()
        assert float(layer.value.weight.std()) == pytest.approx((2 / 27) ** 0.5, rel=0.2)
        return float((layer.query(words(7)) @ layer.key(words(7)).mT).std())

    assert spread(3.0) == pytest.approx(9 * spread(1.0))
