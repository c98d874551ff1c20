"""The other scores, against their formulas written out pair by pair."""

import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.ops import Additive, Dot, Multiplicative
from isotherm.ops import scores as scores_module
from isotherm.scale import InverseSqrt, NoScale

T, S, DIM, UNITS = 3, 7, 5, 11
SCORES = {
    "additive": lambda: Additive(DIM, DIM, UNITS),
    "multiplicative": lambda: Multiplicative(DIM, DIM, UNITS),
    "scaled multiplicative": lambda: Multiplicative(DIM, DIM, UNITS, InverseSqrt()),
    "dot": lambda: Dot(NoScale()),
    "scaled dot": Dot,
}


def score(module, h, s):
    """One pair, as the documents write it."""
    if isinstance(module, Additive):
        return module.out.weight[0] @ torch.tanh(module.key.weight @ h + module.query.weight @ s)
    if isinstance(module, Multiplicative):
        h, s = module.key.weight @ h, module.query.weight @ s
    return h @ s * (len(h) ** -0.5 if isinstance(module.rule, InverseSqrt) else 1)


@pytest.mark.parametrize("make", SCORES.values(), ids=SCORES.keys())
def test_scores_are_their_formulas(make):
    torch.manual_seed(0)
    module = make().double()
    query, keys, values = (torch.randn(2, n, d, dtype=torch.float64) for n, d in ((T, DIM), (S, DIM), (S, 13)))
    s = torch.stack(
        [
            torch.stack([torch.stack([score(module, keys[b, j], query[b, i]) for j in range(S)]) for i in range(T)])
            for b in range(2)
        ]
    )
    result = module(query, keys, values, stats=True)
    p = torch.softmax(s, -1)
    torch.testing.assert_close(result.output[:, 0], p @ values)
    torch.testing.assert_close(result.stats.entropy[:, 0], -(p * p.log()).sum(-1).detach())


@pytest.mark.parametrize("make", SCORES.values(), ids=SCORES.keys())
def test_scores_take_masks_and_train(make):
    module = make()
    states = torch.randn(2, S, DIM, requires_grad=True)
    mask = torch.ones(2, 1, S, S, dtype=torch.bool)
    mask[0, 0, 2] = False
    result = module(states, states, causal=True, mask=mask, stats=True)
    assert result.output[0, 0, 2].abs().sum() == 0
    assert result.stats.n[1, 0].tolist() == list(range(1, S + 1))
    result.output.square().sum().backward()
    assert states.grad.isfinite().all()
    assert states.grad.abs().sum() > 0


def test_additive_works_through_its_rows_a_few_at_a_time(monkeypatch):
    module = Additive(DIM, DIM, UNITS)
    states = torch.randn(2, S, DIM)
    whole = module(states, states).output
    monkeypatch.setattr(scores_module, "HIDDEN_AT_ONCE", 1)
    torch.testing.assert_close(module(states, states).output, whole)


def test_states_of_the_wrong_rank_are_refused():
    with pytest.raises(ArgumentError, match=r"keys: expected \[batch, length, dimension\], got \[5, 8\]"):
        Dot()(torch.zeros(1, 5, 8), torch.zeros(5, 8))


@pytest.mark.parametrize("make", SCORES.values(), ids=SCORES.keys())
@pytest.mark.parametrize(("values", "got"), [(torch.ones(2, S, DIM).long(), "torch.int64"), ([1.0], "list")])
def test_values_are_numbers_with_fractions(make, values, got):
    """Whole numbers would make the output whole: zeros."""
    with pytest.raises(ArgumentError, match=f"values: expected .* got {got}"):
        make()(torch.zeros(2, T, DIM), torch.zeros(2, S, DIM), values)


@pytest.mark.parametrize("option", ["window", "rows", "casual"])
def test_additive_ignores_no_option(option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        Additive(DIM, DIM, UNITS)(torch.zeros(2, T, DIM), torch.zeros(2, S, DIM), **{option: 1})


@pytest.mark.parametrize(("rule", "kept"), [(None, NoScale), (InverseSqrt(), InverseSqrt)], ids=["left out", "given"])
def test_multiplicative_does_not_scale_unless_told_to(rule, kept):
    assert isinstance(Multiplicative(DIM, DIM, UNITS, rule).rule, kept)


@pytest.mark.parametrize("make", SCORES.values(), ids=SCORES.keys())
@pytest.mark.parametrize(
    ("how", "seen"), [(True, [5, 6, 7]), ("bottom-right", [5, 6, 7]), ("top-left", [1, 2, 3]), (False, [7, 7, 7])]
)
def test_scores_align_both_ways(make, how, seen):
    result = make()(torch.randn(2, T, DIM), torch.randn(2, S, DIM), causal=how, stats=True)
    assert result.stats.n[:, 0].tolist() == [seen, seen]


@pytest.mark.parametrize("make", SCORES.values(), ids=SCORES.keys())
def test_a_mask_of_the_wrong_shape_is_refused_with_the_right_one(make):
    with pytest.raises(ArgumentError, match=r"mask: .* = \[2, 1, 3, 7\], any of them 1, got \[2, 4, 3, 7\]"):
        make()(torch.zeros(2, T, DIM), torch.zeros(2, S, DIM), mask=torch.ones(2, 4, T, S, dtype=torch.bool))
