"""Masks as models write them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.ops import Visibility
from isotherm.probe.masks import Masks, Terms, padded_positions

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


@st.composite
def visibilities(draw):
    """Self-attention [B, H, T, T] with padding and some structure, and where the padding is."""
    length, batch = draw(st.integers(2, 7)), draw(st.integers(1, 3))
    real = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=batch, max_size=batch))
    )
    structure = draw(st.sampled_from(["none", "causal", "packed", "window", "random"]))
    rows = torch.ones(length, length, dtype=torch.bool)
    if structure == "causal":
        rows = rows.tril()
    elif structure == "packed":
        rows = torch.block_diag(torch.ones(length // 2, length // 2), torch.ones(*[length - length // 2] * 2)).bool()
    elif structure == "window":
        rows = rows.tril(1) & rows.triu(-1)
    elif structure == "random":
        rows = torch.rand(length, length, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) < 0.5
        rows |= torch.eye(length).bool()
    flag = structure == "causal" and draw(st.booleans())
    seen = real[:, None, None] if structure == "none" or flag else real[:, None, None] & rows
    heads = draw(st.integers(1, 2))
    return Visibility(torch.arange(length), length, flag, None, seen.expand(-1, heads, -1, -1)), ~real


@settings(max_examples=60, deadline=None)
@given(visibilities())
def test_padding_is_found_exactly_whatever_else_a_mask_hides(case):
    seen, padded = case
    found = padded_positions(seen)
    assert found is None if not padded.any() else torch.equal(found, padded)


@settings(max_examples=60, deadline=None)
@given(
    mask=st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n).map(torch.tensor)
    )
)
def test_a_position_that_anyone_sees_is_no_padding(mask):
    found = padded_positions(Visibility(torch.arange(len(mask)), len(mask), False, None, mask[None, None]))
    if found is not None:
        assert not (found[0] & mask.any(0)).any()


def test_without_a_mask_over_all_keys_nothing_is_known():
    rows = torch.ones(1, 1, 3, 1).bool()
    for seen in (
        Visibility(torch.arange(3), 3, causal=True),
        Visibility(torch.arange(3), 3, mask=rows),
        Visibility(torch.arange(3), 5, mask=torch.zeros(1, 1, 1, 5).bool()),
        Visibility(torch.arange(2, 5), 5, mask=torch.zeros(1, 1, 1, 5).bool()),
        Visibility(torch.arange(0), 0, mask=torch.zeros(1, 1, 1, 0).bool()),
    ):
        assert padded_positions(seen) is None


def test_a_mask_that_hides_real_positions_from_themselves_says_nothing_about_padding():
    """Nobody sees key 3, which alone would be padding; but position 1 does not see itself, though others see it."""
    seen = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    seen[..., 3] = False
    padding = padded_positions(Visibility(torch.arange(4), 4, mask=seen))
    assert padding is not None
    assert padding.tolist() == [[False, False, False, True]]
    seen[0, 0, 1, 1] = False
    assert padded_positions(Visibility(torch.arange(4), 4, mask=seen)) is None
