"""Rarer attentions for the zoo: windows, edges of graphs, pooling, pointers. `zoo.py` says what they take and return."""

from itertools import product
from math import exp, log

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from tests.checkup.zoo import DIM, HEADS, SCALE, TOKENS, WEIGHTS, kept

torch.manual_seed(7)
VECTOR = nn.Parameter(torch.randn(DIM))
SCORE = nn.Linear(DIM, 1)
EACH_HEAD = nn.Linear(DIM, 2)
WINDOW = 3
DESTINATION = torch.arange(TOKENS).repeat(4)
SOURCE = (DESTINATION + torch.arange(4).repeat_interleave(TOKENS) * 2) % TOKENS


def windows(x):
    """[B, H, T, D] → [B, H, T, W, D]: each position with those before it."""
    return F.pad(x, (0, 0, WINDOW - 1, 0)).unfold(2, WINDOW, 1).transpose(-1, -2)


def window_by_sum(q, k, v):
    w = kept(((q[..., None, :] * windows(k)).sum(-1) * SCALE).softmax(-1))
    return (w[..., None] * windows(v)).sum(-2)


def window_by_matmul(q, k, v):
    w = kept(((q.unsqueeze(-2) @ windows(k).mT).squeeze(-2) * SCALE).softmax(-1))
    return (w.unsqueeze(-2) @ windows(v)).squeeze(-2)


def window_by_einsum(q, k, v):
    w = kept((torch.einsum("bhtd,bhtwd->bhtw", q, windows(k)) * SCALE).softmax(-1))
    return torch.einsum("bhtw,bhtwd->bhtd", w, windows(v))


def of_edges(w):
    """Weights [B, H, E] as [B, H, T, 4]: every position has four edges."""
    WEIGHTS.append(w.detach().unflatten(-1, (4, TOKENS)).transpose(-1, -2))
    return w


def edges_by_index_add(q, k, v):
    e = ((q[:, :, DESTINATION] * k[:, :, SOURCE]).sum(-1) * SCALE).exp()
    total = torch.zeros(2, HEADS, TOKENS).index_add(2, DESTINATION, e)
    w = of_edges(e / total[:, :, DESTINATION])
    return torch.zeros_like(q).index_add(2, DESTINATION, w[..., None] * v[:, :, SOURCE])


def edges_by_scatter(q, k, v):
    a = (q[:, :, DESTINATION] * k[:, :, SOURCE]).sum(-1) * SCALE
    where = DESTINATION.expand(2, HEADS, -1)
    most = torch.zeros(2, HEADS, TOKENS).scatter_reduce(2, where, a, "amax", include_self=False)
    e = (a - most.gather(2, where)).exp()
    total = torch.zeros(2, HEADS, TOKENS).scatter_add_(2, where, e) + 1e-16
    w = of_edges(e / total.gather(2, where))
    places = DESTINATION.view(1, 1, -1, 1).expand(2, HEADS, -1, DIM)
    return torch.zeros_like(q).scatter_reduce(2, places, w.unsqueeze(-1) * v[:, :, SOURCE], "sum")


def edges_of_one_graph(q, k, v):
    """Nodes first, heads second, as graph libraries lay them out; both sequences are one graph."""
    nodes = 2 * TOKENS
    q, k, v = (x.permute(0, 2, 1, 3).reshape(nodes, HEADS, DIM) for x in (q, k, v))
    to = torch.cat([DESTINATION, DESTINATION + TOKENS])
    out_of = torch.cat([SOURCE, SOURCE + TOKENS])
    e = (torch.einsum("ehd,ehd->eh", q[to], k[out_of]) * SCALE).exp()
    w = e / torch.zeros(nodes, HEADS).index_add_(0, to, e)[to]
    WEIGHTS.append(w.detach().view(2, 4, TOKENS, HEADS).permute(3, 0, 2, 1).reshape(1, HEADS, nodes, 4))
    out = torch.zeros_like(q).index_add_(0, to, w.unsqueeze(-1) * v[out_of])
    return out.view(2, TOKENS, HEADS, DIM).transpose(1, 2)


def pooled(w, v):
    """Weights [B, H, T] over positions, and the means that they take, for every position."""
    WEIGHTS.append(w.detach().clone())
    return (w.unsqueeze(-1) * v).sum(2, keepdim=True).expand(v.shape)


def pooled_by_a_vector(q, k, v):
    return pooled((k @ VECTOR).softmax(-1), v)


def pooled_by_a_product(q, k, v):
    return pooled((k * VECTOR).sum(-1).softmax(-1), v)


def pooled_by_a_module(q, k, v):
    return pooled(SCORE(k).squeeze(-1).softmax(-1), v)


def pooled_by_hand(q, k, v):
    e = SCORE(k).squeeze(-1).exp()
    return pooled(e / e.sum(-1, keepdim=True), v)


def pooled_by_a_matmul(q, k, v):
    w = SCORE(k).softmax(2)
    WEIGHTS.append(w.detach().squeeze(-1))
    return (w.mT @ v).expand(v.shape)


def pooled_in_several_ways(q, k, v):
    w = EACH_HEAD(torch.tanh(k)).softmax(2)
    WEIGHTS.append(w.detach().mT)
    return torch.einsum("bhtn,bhtd->bhnd", w, v).mean(2, keepdim=True).expand(v.shape)


def pooled_by_a_learned_query(q, k, v):
    w = kept((VECTOR.view(1, 1, 1, -1) @ k.mT * SCALE).softmax(-1))
    return (w @ v).expand(v.shape)


def a_pointer(q, k, v):
    """Which key each query points to, and no values."""
    return kept((q @ k.mT * SCALE).log_softmax(-1).exp())[..., :DIM] + v


def a_pointer_by_hand(q, k, v):
    e = (q @ k.mT * SCALE).exp()
    return kept(e / e.sum(-1, keepdim=True))[..., :DIM] + v


def a_pointer_for_all(q, k, v):
    """One query points to a key; only the logarithms are returned."""
    w = torch.einsum("bhd,bhtd->bht", q[:, :, 0], k).log_softmax(-1)
    WEIGHTS.append(w.exp().detach())
    return w.unsqueeze(-1) + v


def in_blocks(q, k, v):
    return [(q @ keys.mT * SCALE, some) for keys, some in zip(k.split(4, 2), v.split(4, 2), strict=True)]


def merged_by_shares_first(q, k, v):
    """The weights of the blocks come before the softmax of any block."""
    parts = in_blocks(q, k, v)
    sums = [scores.logsumexp(-1, keepdim=True) for scores, _ in parts]
    total = torch.stack(sums).logsumexp(0)
    return sum(
        (one - total).exp() * (scores.softmax(-1) @ some) for one, (scores, some) in zip(sums, parts, strict=True)
    )


def merged_by_a_softmax_first(q, k, v):
    parts = in_blocks(q, k, v)
    share = torch.stack([scores.logsumexp(-1) for scores, _ in parts], -1).softmax(-1)
    return sum(share[..., i, None] * (scores.softmax(-1) @ some) for i, (scores, some) in enumerate(parts))


def merged_by_shares_last(q, k, v):
    parts = in_blocks(q, k, v)
    outputs = [scores.softmax(-1) @ some for scores, some in parts]
    sums = torch.cat([scores.logsumexp(-1, keepdim=True) for scores, _ in parts], -1)
    share = (sums - sums.logsumexp(-1, keepdim=True)).exp()
    return (torch.stack(outputs, -1) * share.unsqueeze(-2)).sum(-1)


def merged_pairwise(q, k, v):
    output, total = None, None
    for scores, some in in_blocks(q, k, v):
        new, own = scores.softmax(-1) @ some, scores.logsumexp(-1, keepdim=True)
        if output is None:
            output, total = new, own
        else:
            output = output - torch.sigmoid(own - total) * (output - new)
            total = torch.logaddexp(total, own)
    return output


def merged_by_plain_sums(q, k, v):
    parts = [(scores.exp(), some) for scores, some in in_blocks(q, k, v)]
    sums = [e.sum(-1, keepdim=True) for e, _ in parts]
    total = sum(sums)
    return sum(one / total * ((e / one) @ some) for one, (e, some) in zip(sums, parts, strict=True))


def merged_from_kernels(q, k, v):
    parts = [
        flex_attention(q, keys, some, return_lse=True) for keys, some in zip(k.split(4, 2), v.split(4, 2), strict=True)
    ]
    total = torch.stack([lse for _, lse in parts]).logsumexp(0)
    return sum((lse - total).exp().unsqueeze(-1) * output for output, lse in parts)


def online(q, k, v):
    most, total, output = torch.full((2, HEADS, TOKENS, 1), -torch.inf), torch.zeros(1), torch.zeros_like(q)
    for scores, some in in_blocks(q, k, v):
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        e, before = (scores - now).exp(), (most - now).exp()
        total, output, most = total * before + e.sum(-1, keepdim=True), output * before + e @ some, now
    return output / total


def online_by_single_keys(q, k, v):
    most, total, output = torch.full((2, HEADS, TOKENS, 1), -torch.inf), torch.zeros(1), torch.zeros_like(q)
    for key, value in zip(k.unbind(2), v.unbind(2), strict=True):
        scores = (q * key.unsqueeze(2)).sum(-1, keepdim=True) * SCALE
        now = torch.maximum(most, scores)
        e, before = (scores - now).exp(), (most - now).exp()
        total, output, most = total * before + e, output * before + e * value.unsqueeze(2), now
    return output / total


def causal_in_blocks(q, k, v):
    """The first queries see keys of one block only, and their exponentials are whole rows that are divided last."""
    made = []
    for start, some in ((0, q[:, :, :4]), (4, q[:, :, 4:])):
        parts = []
        for first in range(0, start + some.shape[2], 4):
            keys, values = k[:, :, first : first + 4], v[:, :, first : first + 4]
            row, key = torch.arange(start, start + some.shape[2]), torch.arange(first, first + keys.shape[2])
            scores = (some @ keys.mT * SCALE).masked_fill(key > row.unsqueeze(1), -1e30)
            most = scores.amax(-1, keepdim=True)
            e = (scores - most).exp()
            parts.append((e.sum(-1), e @ values, most.squeeze(-1)))
        sums, outputs, most = (torch.stack(each, -1) for each in zip(*parts, strict=True))
        share = (most - most.amax(-1, keepdim=True)).exp()
        total = (sums * share).sum(-1, keepdim=True)
        made.append((outputs * share.unsqueeze(-2)).sum(-1) / (total + 1e-8))
    return torch.cat(made, -2)


def two_branches(q, k, v):
    """Two kinds of keys with a softmax each, as an adapter adds: these are whole rows."""
    both = [
        (q @ keys.mT * SCALE).softmax(-1) @ some
        for keys, some in ((k[:, :, :5], v[:, :, :5]), (k[:, :, 5:], v[:, :, 5:]))
    ]
    return both[0] + 0.3 * both[1]


def edges_by_a_vector(q, k, v):
    """Scores of edges that are no product of two activations, as in the first graph attention."""
    e = F.leaky_relu((q @ VECTOR)[:, :, DESTINATION] + (k @ VECTOR)[:, :, SOURCE]).exp()
    total = torch.zeros(2, HEADS, TOKENS).index_add(2, DESTINATION, e)
    w = of_edges(e / total[:, :, DESTINATION])
    return torch.zeros_like(q).index_add(2, DESTINATION, w[..., None] * v[:, :, SOURCE])


def the_best_few(q, k, v):
    """A memory from which only the best keys are read."""
    best, where = (q @ k.mT * SCALE).topk(4, -1)
    found = v.unsqueeze(2).expand(-1, -1, TOKENS, -1, -1).gather(3, where.unsqueeze(-1).expand(-1, -1, -1, -1, DIM))
    return (kept(best.softmax(-1)).unsqueeze(-1) * found).sum(3)


def neighbours_in_a_picture(q, k, v):
    """Windows by unfold, with the features before the positions."""

    def around(x):
        return F.unfold(x.mT.reshape(2 * HEADS, DIM, TOKENS, 1), (3, 1), padding=(1, 0)).view(2, HEADS, DIM, 3, TOKENS)

    w = ((q.mT.unsqueeze(3) * around(k)).sum(2) * SCALE).softmax(2)
    WEIGHTS.append(w.mT.detach())
    return (w.unsqueeze(2) * around(v)).sum(3).mT


def keys_in_two_parts(q, k, v):
    """Keys of two kinds (memory and present, text and picture) under one softmax."""
    return kept((torch.cat([q @ k[:, :, :5].mT, q @ k[:, :, 5:].mT], -1) * SCALE).softmax(-1)) @ v


def queries_in_two_parts(q, k, v):
    scores = [(part * SCALE) @ k.mT for part in q.split(6, 2)]
    return kept(torch.cat(scores, dim=2).softmax(-1)) @ v


def heads_one_by_one(q, k, v):
    scores = [q[:, head : head + 1] @ k[:, head : head + 1].mT * SCALE for head in range(HEADS)]
    return kept(torch.cat(scores, 1).softmax(-1)) @ v


def parts_of_two_scales(q, k, v):
    """No number holds for all keys of a row."""
    scores = torch.cat([q @ k[:, :, :5].mT * SCALE, q @ k[:, :, 5:].mT * 0.1], -1)
    return kept(scores.softmax(-1)) @ v


def by_distance(q, k, v):
    distance = (q * q).sum(-1, keepdim=True) - 2 * q @ k.mT + (k * k).sum(-1).unsqueeze(-2)
    return kept((-distance * SCALE).softmax(-1)) @ v


def powers_of_two(q, k, v):
    e = torch.exp2(q @ k.mT * SCALE)
    return kept(e / e.sum(-1, keepdim=True)) @ v


def softplus(q, k, v):
    e = F.softplus(q @ k.mT * SCALE)
    return kept(e / e.sum(-1, keepdim=True)) @ v


def sums_of_positions(q, k, v):
    """Attention without queries: the exponentials are used before they are divided by their sums."""
    e = k.exp()
    return torch.sigmoid(q) * (e * v).sum(2, keepdim=True) / e.sum(2, keepdim=True)


def cumulative_sums(q, k, v):
    e = (k @ VECTOR).exp().unsqueeze(-1)
    return (e * v).cumsum(2) / e.cumsum(2)


def in_python_numbers(q, k, v):
    out = torch.empty_like(q)
    for b, h, i in product(range(2), range(HEADS), range(TOKENS)):
        e = [exp(float(q[b, h, i] @ key) * SCALE) for key in k[b, h]]
        out[b, h, i] = sum(one / sum(e) * value for one, value in zip(e, v[b, h], strict=True))
    return out


SEEN = {  # what it is → the scale in force, None where there is none or it is not known
    window_by_sum: None, window_by_matmul: None, window_by_einsum: None, edges_by_index_add: None, edges_by_scatter: None,
    edges_of_one_graph: None, pooled_by_a_vector: None, pooled_by_a_product: None, pooled_by_a_module: None,
    pooled_by_hand: None, pooled_by_a_matmul: None, pooled_in_several_ways: None, pooled_by_a_learned_query: None,
    a_pointer: SCALE, a_pointer_by_hand: SCALE, a_pointer_for_all: None, edges_by_a_vector: None, the_best_few: None,
    neighbours_in_a_picture: None, by_distance: None, powers_of_two: SCALE * log(2), softplus: None,
    keys_in_two_parts: SCALE, queries_in_two_parts: SCALE, heads_one_by_one: SCALE, parts_of_two_scales: None,
}  # fmt: skip
IN_BLOCKS = (
    merged_by_shares_first, merged_by_a_softmax_first, merged_by_shares_last, merged_pairwise, merged_by_plain_sums,
    merged_from_kernels, online, online_by_single_keys, causal_in_blocks,
)  # fmt: skip
LISTED = (*IN_BLOCKS, sums_of_positions, cumulative_sums, in_python_numbers)
