"""Attention that one module computes in a loop is one layer."""

import pytest
import torch
from torch import nn

from isotherm.probe import probe
from isotherm.probe.slices import merge_slices

BATCH, HEADS, LENGTH, DIM = 3, 4, 10, 8


def attend(q, k, v, hidden=None):
    scores = q @ k.mT * DIM**-0.5
    return (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(-1) @ v


def flat(q, k, v, size):
    q, k, v = (x.reshape(-1, LENGTH, DIM) for x in (q, k, v))
    parts = [attend(*(x[i : i + size] for x in (q, k, v))) for i in range(0, BATCH * HEADS, size)]
    return torch.cat(parts).unflatten(0, (BATCH, HEADS))


def per_head(q, k, v):
    return torch.stack([attend(q[:, h], k[:, h], v[:, h]) for h in range(HEADS)], 1)


LOOPS = {
    "pairs of heads": lambda q, k, v: flat(q, k, v, 2),
    "slices that do not divide the heads": lambda q, k, v: flat(q, k, v, 5),
    "one head at a time": per_head,
    "one head at a time, from memory in order": lambda q, k, v: per_head(*(x.contiguous() for x in (q, k, v))),
    "one sequence at a time": lambda q, k, v: torch.stack([attend(q[b], k[b], v[b]) for b in range(BATCH)]),
    "blocks of queries": lambda q, k, v: torch.cat([attend(q[:, :, i : i + 4], k, v) for i in range(0, LENGTH, 4)], 2),
}


class Sliced(nn.Module):
    """Attention in a loop of one's own."""

    def __init__(self, loop, heads=HEADS):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HEADS * DIM, HEADS * DIM) for _ in range(3))
        self.loop, self.heads = loop, heads

    def forward(self, x):
        return self.loop(*(p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)))


def seen_of(loop):
    torch.manual_seed(0)
    model = Sliced(loop)
    x = torch.randn(BATCH, LENGTH, HEADS * DIM)
    with torch.no_grad(), probe(model) as seen:
        model(x)
    assert not seen.unseen
    return seen.captures


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_slices_become_the_whole(loop):
    (whole,) = seen_of(attend)
    slices = seen_of(loop)
    assert len(slices) > 1
    (merged,), place = merge_slices(slices, {"": HEADS})
    assert place == [0] * len(slices)
    for name in ("q", "k"):
        torch.testing.assert_close(getattr(merged.problem, name), getattr(whole.problem, name))
    assert merged.problem.visibility.positions.tolist() == list(range(LENGTH))


def test_masks_are_put_together_as_heads_are():
    hidden = torch.rand(HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.3
    slices = seen_of(lambda q, k, v: [attend(q[:, h], k[:, h], v[:, h], hidden[h]) for h in range(HEADS)])
    (merged,), _ = merge_slices(slices, {"": HEADS})
    assert torch.equal(merged.problem.visibility.mask, ~hidden.expand(BATCH, -1, -1, -1))


def overlapping(q, k, v):
    return [attend(q[:, h : h + 2], k[:, h : h + 2], v[:, h : h + 2]) for h in range(2)]


def twice(q, k, v):
    return attend(q, k, v), attend(q, k, v)


def copies(q, k, v):
    return attend(q, k, v), attend(q.clone(), k.clone(), v)


def one_copy(q, k, v):
    return attend(q[:, :2], k[:, :2], v[:, :2]), attend(q[:, 2:] * 1.0, k[:, 2:], v[:, 2:])


def causal(q, k, v):
    fused = torch.nn.functional.scaled_dot_product_attention
    return [fused(q[:, h : h + 2], k[:, h : h + 2], v[:, h : h + 2], is_causal=h == 2) for h in (0, 2)]


def narrower(q, k, v):
    return attend(q[:, :2], k[:, :2], v[:, :2]), attend(q[:, 2:, :, :4], k[:, 2:, :, :4], v[:, 2:])


def fewer_keys(q, k, v):
    return attend(q[:, :2], k[:, :2], v[:, :2]), attend(q[:, 2:], k[:, 2:, :7], v[:, 2:, :7])


def backwards(q, k, v):
    return [attend(q[:, h : h + 2], k[:, h : h + 2], v[:, h : h + 2]) for h in (2, 0)]


APART = {
    "the same": twice, "copies": copies, "overlapping": overlapping, "one copy": one_copy, "one causal": causal,
    "shorter vectors": narrower, "fewer keys": fewer_keys, "backwards": backwards,
}  # fmt: skip


@pytest.mark.parametrize("loop", APART.values(), ids=APART)
def test_other_calls_stay_apart(loop):
    captures = seen_of(loop)
    assert merge_slices(captures, {"": HEADS}) == (captures, [0, 1])
