"""Masks as models write them."""

import torch

from isotherm.probe.masks import Masks, Terms

HIDDEN = torch.ones(3, 5).triu(2).bool()


def test_a_bool_mask_stays_the_same_tensor():
    mask = ~HIDDEN
    assert Masks().visible(mask).mask.data_ptr() == mask.data_ptr()


def test_every_way_of_hiding_is_a_mask_and_nothing_else():
    for low in (-torch.inf, torch.finfo(torch.float32).min, -1e9, -10000.5, -1000.0, -100.0):
        terms = Masks().added(torch.zeros(3, 5).masked_fill(HIDDEN, low))
        assert torch.equal(terms.mask, ~HIDDEN), low
        assert terms.bias is None


def test_half_precision_masks():
    for dtype in (torch.float16, torch.bfloat16):
        terms = Masks().added(torch.zeros(3, 5, dtype=dtype).masked_fill(HIDDEN, torch.finfo(dtype).min))
        assert torch.equal(terms.mask, ~HIDDEN)
        assert terms.bias is None


def test_a_bias_is_kept_where_it_is_visible():
    bias = torch.randn(3, 5)
    terms = Masks().added(bias.masked_fill(HIDDEN, -torch.inf))
    assert torch.equal(terms.mask, ~HIDDEN)
    assert torch.equal(terms.bias, bias.masked_fill(HIDDEN, 0))
    assert torch.equal(Masks().added(bias).bias, bias)


def test_small_numbers_are_a_bias_not_a_mask():
    bias = torch.zeros(3, 5).masked_fill(HIDDEN, -50.0)
    terms = Masks().added(bias)
    assert terms.mask is None
    assert torch.equal(terms.bias, bias)


def test_zeros_are_nothing():
    assert Masks().added(torch.zeros(3, 5)) == Terms(None, None)


def test_coefficients():
    terms = Masks().added(HIDDEN.float(), -1e30)
    assert torch.equal(terms.mask, ~HIDDEN)
    assert terms.bias is None
    assert torch.equal(Masks().added(torch.ones(2), 0.5).bias, torch.full((2,), 0.5))


def test_a_mask_is_taken_apart_once():
    masks, mask = Masks(), torch.zeros(3, 5).masked_fill(HIDDEN, -torch.inf)
    assert masks.added(mask).mask is masks.added(mask).mask
    assert masks.hidden(HIDDEN).mask is masks.hidden(HIDDEN).mask


def test_terms_combine():
    one, other = Terms(torch.tensor([True, True, False]), torch.ones(3)), Terms(torch.tensor([True, False, True]))
    both = one & other & Terms(bias=torch.ones(3))
    assert both.mask.tolist() == [True, False, False]
    assert both.bias.tolist() == [2, 2, 2]
