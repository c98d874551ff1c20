import pytest
import torch
from torch import nn

from isotherm.errors import ArgumentError
from isotherm.models import RecurrentTranslator, Shape
from isotherm.models.recurrent import GRU

from .small import SHAPE, ids


def pair(width: int, units: int) -> tuple[GRU, nn.GRU]:
    torch.manual_seed(2)
    ours, theirs = GRU(width, units).double(), nn.GRU(width, units, batch_first=True).double()
    names = ("input.weight", "state.weight", "input.bias", "state.bias")
    ours.load_state_dict(dict(zip(names, theirs.parameters(), strict=True)))
    return ours, theirs


@pytest.mark.parametrize("backwards", [False, True])
def test_a_gru_is_torchs_gru(backwards):
    ours, theirs = pair(3, 5)
    x, start = (torch.randn(2, *size, dtype=torch.float64, requires_grad=True) for size in ((7, 3), (5,)))
    want, last = theirs(x.flip(1) if backwards else x, start.unsqueeze(0))
    want = want.flip(1) if backwards else want
    got = ours(x, start, backwards=backwards)
    torch.testing.assert_close(got, want, atol=1e-13, rtol=0)
    torch.testing.assert_close(got[:, 0 if backwards else -1], last[0], atol=1e-13, rtol=0)
    weight = torch.randn_like(want)
    gradients = [torch.autograd.grad((y * weight).sum(), (x, start)) for y in (got, want)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_the_state_stands_still_on_padding():
    ours, theirs = pair(3, 5)
    x, start = torch.randn(2, 7, 3, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    words = torch.arange(7) < torch.tensor([[7], [4]])
    got = ours(x, start, words)
    torch.testing.assert_close(got[1, :4], theirs(x[1:, :4])[0][0], atol=1e-13, rtol=0)
    assert all(torch.equal(got[1, t], got[1, 3]) for t in range(4, 7))
    back = ours(x, start, words, backwards=True)
    torch.testing.assert_close(back[1, 0], theirs(x[1:, :4].flip(1))[1][0, 0], atol=1e-13, rtol=0)


def test_units_are_the_head_dimension_or_the_width():
    assert RecurrentTranslator(SHAPE, "additive").score.query.out_features == 5
    assert RecurrentTranslator(Shape(13, width=12, heads=3), "scaled-dot").score.key.out_features == 12


@pytest.mark.parametrize("score", ["additive", "multiplicative", "dot", "scaled-dot"])
def test_every_weight_learns(score):
    torch.manual_seed(1)
    model = RecurrentTranslator(SHAPE, score)
    model(ids(2, 7, padded=2), ids(2, 5, seed=1)).logsumexp(-1).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_scaled_dot_and_multiplicative_differ_by_the_scale_alone():
    torch.manual_seed(1)
    plain, scaled = (RecurrentTranslator(SHAPE, score) for score in ("multiplicative", "scaled-dot"))
    scaled.load_state_dict(plain.state_dict())
    source, target = ids(2, 7), ids(2, 5)
    before = scaled(source, target)
    assert not torch.allclose(plain(source, target), before)
    with torch.no_grad():
        plain.score.query.weight.mul_(5**-0.5)
    torch.testing.assert_close(plain(source, target), before)


def test_an_odd_width_has_no_two_halves():
    with pytest.raises(ArgumentError, match=r"^width: expected an even number"):
        RecurrentTranslator(Shape(13, width=7, heads=1))
    assert RecurrentTranslator(Shape(13, width=7, heads=1), bidirectional=False)(ids(1, 3), ids(1, 2)).shape == (
        1,
        2,
        13,
    )


def test_an_unknown_score_is_refused():
    with pytest.raises(ArgumentError, match=r"^score: expected one of additive"):
        RecurrentTranslator(SHAPE, "cosine")
