import torch
from torch import nn

from isotherm.lab import recurrence
from isotherm.lab.tally import Tally, depth, rounds


def test_products_tanhs_and_bytes_are_counted():
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    with Tally() as tally:
        made = torch.tanh(a @ b)
        made.t()  # a view makes nothing
    assert (tally.multiply_adds, tally.tanhs, tally.elementwise) == (105, 21, 0)
    assert (tally.written, tally.largest) == (2 * 21 * 4, 21 * 4)


def test_a_batched_product_with_a_sum_counts_its_inner_dimension():
    with Tally() as tally:
        torch.baddbmm(torch.zeros(2, 3, 7), torch.ones(2, 3, 5), torch.ones(2, 5, 7))
    assert tally.multiply_adds == 2 * 3 * 5 * 7


def test_depth_is_the_longest_path_and_nothing_else():
    x = torch.ones(3, requires_grad=True)
    short, long = x + 1, (((x * 2) * 3) * 5).exp()
    assert depth((short + long).sum(), x) == 6
    assert depth(short.sum(), x) == 2
    assert depth(torch.ones(2, requires_grad=True).sum(), x) == 0


def test_a_sum_waits_for_its_rounds():
    x = torch.ones(3, 16, requires_grad=True)
    assert depth(x.sum(-1), x, rounds) == 1 + 4
    assert depth((x * 2).sum(), x, rounds) == 1 + 1 + 6
    assert depth(torch.ones(2, 3) @ x, x, rounds) == 1 + 2
    assert depth(torch.baddbmm(torch.ones(1, 3, 2), x[None], torch.ones(1, 16, 2)), x, rounds) == 1 + 1 + 4


def test_our_gru_is_torchs_gru():
    d, generator = 5, torch.Generator().manual_seed(3)
    ours = recurrence.weights([generator], d, 3)
    theirs = nn.GRUCell(d, d, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_ih.copy_(ours.into[0].T)
        theirs.weight_hh.copy_(ours.over[0].T)
        theirs.bias_ih.copy_(ours.bias[0, 0])
        theirs.bias_hh.copy_(ours.state_bias[0, 0])
        x, h = torch.randn(2, 1, 7, d, dtype=torch.float64, generator=generator).unbind()
        got = recurrence.gru_step(ours, x, h)
        torch.testing.assert_close(got[0], theirs(x[0], h[0]), atol=1e-14, rtol=1e-13)


def test_biased_gates_hold_on():
    d, generator = 5, torch.Generator().manual_seed(3)
    layer = recurrence.keep_long(recurrence.weights([generator], d, 3), [generator], 1000)
    gates = layer.bias[..., d : 2 * d]
    assert 0 <= gates.min() < gates.max() <= torch.tensor(999.0).log()
