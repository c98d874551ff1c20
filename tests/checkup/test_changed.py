"""Weights that the model changes after their softmax, or uses before it divides them: what takes the means is measured."""

import pytest
import torch
import torch.nn.functional as F

from tests.checkup import zoo
from tests.checkup.test_zoo import look
from tests.checkup.zoo import CAUSAL, HEADS, SCALE, TOKENS, WEIGHTS, net, used

GATE = torch.linspace(-1, 1, TOKENS * TOKENS).reshape(TOKENS, TOKENS)


def scores(q, k):
    return q @ k.mT * SCALE


def remember(q, k):
    """Keep the weights of the first forward, which nobody watches."""
    if not WEIGHTS:
        WEIGHTS.append(scores(q, k).softmax(-1))


def hidden_afterwards(q, k, v):
    p = scores(q, k).softmax(-1) * CAUSAL
    return used(p / p.sum(-1, keepdim=True), v)


def hidden_before_and_afterwards(q, k, v):
    """AllenNLP's masked softmax: 0 is no −∞, so what is masked is set to 0 once more."""
    p = torch.softmax(scores(q, k) * CAUSAL, -1) * CAUSAL
    return used(p / (p.sum(-1, keepdim=True) + 1e-13), v)


def hidden_in_place(q, k, v):
    p = scores(q, k).softmax(-1)
    p *= CAUSAL
    p /= p.sum(-1, keepdim=True)
    return used(p, v)


def filled_with_zeros(q, k, v):
    p = scores(q, k).softmax(-1).masked_fill(~CAUSAL, 0)
    return used(p * p.sum(-1, keepdim=True).reciprocal(), v)


def normalised_by_a_function(q, k, v):
    return used(F.normalize(scores(q, k).softmax(-1) * CAUSAL, 1, -1), v)


def hidden_between_logarithms(q, k, v):
    return used(scores(q, k).log_softmax(-1).masked_fill(~CAUSAL, float("-inf")).softmax(-1), v)


def sharpened_logarithms(q, k, v):
    return used((scores(q, k).log_softmax(-1) * 2).softmax(-1), v)


def squared(q, k, v):
    p = scores(q, k).softmax(-1) ** 2
    return used(p / p.sum(-1, keepdim=True), v)


def weighted_by_position(q, k, v):
    p = scores(q, k).softmax(-1) * GATE.exp()
    return used(p / p.sum(-1, keepdim=True), v)


def the_largest_few(q, k, v):
    some, where = scores(q, k).softmax(-1).topk(4, -1)
    p = torch.zeros(2, HEADS, TOKENS, TOKENS).scatter(-1, where, some)
    return used(p / p.sum(-1, keepdim=True), v)


def softmax_of_a_softmax(q, k, v):
    return used(scores(q, k).softmax(-1).softmax(-1), v)


def columns_and_rows(q, k, v):
    """Two steps of Sinkhorn's iteration."""
    p = scores(q, k).softmax(-1)
    p = p / p.sum(-2, keepdim=True)
    return used(p / p.sum(-1, keepdim=True), v)


def small_exponentials(q, k, v):
    """The sum of every row is below one when its exponentials meet the values."""
    remember(q, k)
    e = (scores(q, k) - 30).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def small_exponentials_with_a_column_of_ones(q, k, v):
    remember(q, k)
    out = (scores(q, k) - 30).exp() @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return out[..., :-1] / out[..., -1:]


def sink_by_a_logsumexp(q, k, v):
    """Every row gives a part of itself to an outcome without a key, though nothing is divided."""
    a = scores(q, k)
    total = a.logsumexp(-1, keepdim=True)
    return used((a - torch.logaddexp(total, torch.ones_like(total))).exp(), v)


def sink_of_each_query(q, k, v):
    a, z = scores(q, k), q.sum(-1, keepdim=True)
    return used((a - torch.logaddexp(a.logsumexp(-1, keepdim=True), z)).exp(), v)


def of_some_keys(q, k, v):
    p = scores(q, k).softmax(-1)[..., :7]
    return used(p / p.sum(-1, keepdim=True), v[:, :, :7])


def of_chosen_keys(q, k, v):
    chosen = torch.tensor([0, 2, 5, 6, 9])
    p = scores(q, k).softmax(-1).index_select(-1, chosen)
    return used(p / p.sum(-1, keepdim=True), v[:, :, chosen])


def of_keys_of_its_own(q, k, v):
    p, where = scores(q, k).softmax(-1).topk(4, -1)
    p = p / p.sum(-1, keepdim=True)
    WEIGHTS.append(p)
    values = v[:, :, None].expand(-1, -1, TOKENS, -1, -1).gather(3, where[..., None].expand(*where.shape, v.shape[-1]))
    return (p[..., None, :] @ values)[..., 0, :]


def hidden_in_another_shape(q, k, v):
    p = scores(q, k).softmax(-1).flatten(0, 1) * CAUSAL
    return used((p / p.sum(-1, keepdim=True)).unflatten(0, (-1, HEADS)), v)


def hidden_logarithms_by_hand(q, k, v):
    a = scores(q, k).log_softmax(-1).masked_fill(~CAUSAL, -1e9)
    return used((a - a.logsumexp(-1, keepdim=True)).exp(), v)


def hidden_logarithms_divided_later(q, k, v):
    p = scores(q, k).log_softmax(-1).masked_fill(~CAUSAL, -1e9).exp()
    return used(p / p.sum(-1, keepdim=True), v)


def sharpened_logarithms_in_place(q, k, v):
    a = scores(q, k).log_softmax(-1)
    a *= 2
    a -= a.logsumexp(-1, keepdim=True)
    return used(a.exp(), v)


@pytest.mark.parametrize(
    ("middle", "scale"),
    [
        (hidden_afterwards, SCALE), (hidden_before_and_afterwards, SCALE), (hidden_in_place, SCALE),
        (normalised_by_a_function, SCALE), (hidden_between_logarithms, SCALE), (sharpened_logarithms, 2 * SCALE),
        (filled_with_zeros, SCALE), (squared, 2 * SCALE), (weighted_by_position, None), (the_largest_few, SCALE),
        (softmax_of_a_softmax, None), (columns_and_rows, None), (small_exponentials, SCALE),
        (small_exponentials_with_a_column_of_ones, SCALE), (sink_by_a_logsumexp, SCALE), (sink_of_each_query, None),
        (of_some_keys, None), (of_chosen_keys, None), (of_keys_of_its_own, None), (hidden_in_another_shape, SCALE),
        (hidden_logarithms_by_hand, SCALE), (hidden_logarithms_divided_later, SCALE),
        (sharpened_logarithms_in_place, 2 * SCALE),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)  # fmt: skip
def test_the_weights_that_take_the_means_are_measured(middle, scale):
    report = look(*net(middle))
    assert not report.record.unseen
    (layer,) = report.layers
    assert (layer.heads, layer.head_stats[0].rows) == (HEADS, 2 * TOKENS)
    assert layer.scale.effective == (None if scale is None else pytest.approx(scale, rel=1e-3))
    p = WEIGHTS[0].double()
    rest = (1 - p.sum(-1)).clamp(min=0)
    entropy = -torch.special.xlogy(p, p).sum(-1) - torch.where(rest > 1e-5, torch.special.xlogy(rest, rest), 0.0)
    torch.testing.assert_close(report.rows[0].entropy.flatten(), entropy.flatten(), rtol=0, atol=1e-4)


def mixed_over_heads(q, k, v):
    mixing = torch.full((HEADS, HEADS), 0.1) + 0.7 * torch.eye(HEADS)
    return torch.einsum("gh,bhts->bgts", mixing, scores(q, k).softmax(-1)) @ v


def normalised_over_queries_too(q, k, v):
    """Slot attention and point cloud transformers: the second sum is over another axis than the softmax."""
    p = scores(q, k).softmax(-1)
    return (p / (1e-9 + p.sum(-2, keepdim=True))).mT @ v


def divided_by_nothing_new(q, k, v):
    p = scores(q, k).softmax(-1)
    return (p / p.sum(-1, keepdim=True)) @ v


def softmax_of_a_log_softmax(q, k, v):
    return scores(q, k).log_softmax(-1).softmax(-1) @ v


def used_before_a_few_are_chosen(q, k, v):
    """What a model does with weights after they took the means is no attention."""
    p = scores(q, k).softmax(-1)
    few = p[:, :, 0].topk(4, -1).values
    return (p @ v) * (few / few.sum(-1, keepdim=True)).sum(-1)[..., None, None]


def gated_by_its_largest_weight(q, k, v):
    p = scores(q, k).softmax(-1)
    return (p @ v) * p.amax(-1, keepdim=True)


def multiplied_by_one_over_its_sums(q, k, v):
    e = scores(q, k).exp()
    return (e @ v) * e.sum(-1, keepdim=True).reciprocal()


@pytest.mark.parametrize(
    "middle",
    [
        mixed_over_heads, normalised_over_queries_too, divided_by_nothing_new, softmax_of_a_log_softmax,
        used_before_a_few_are_chosen, gated_by_its_largest_weight, multiplied_by_one_over_its_sums,
    ],
)  # fmt: skip
def test_other_uses_of_a_softmax_leave_it_as_it_is(middle):
    report = look(*net(middle))
    (layer,) = report.layers
    assert layer.scale.effective == pytest.approx(SCALE, rel=1e-3)
    torch.testing.assert_close(report.rows[0].entropy, look(*net(zoo.softmax_module)).rows[0].entropy)


def one_in_the_denominator_afterwards(q, k, v):
    e = scores(q, k).exp()
    return (e @ v) / (e.sum(-1, keepdim=True) + 1)


def hidden_and_divided_afterwards(q, k, v):
    p = scores(q, k).softmax(-1) * CAUSAL
    return (p @ v) / p.sum(-1, keepdim=True)


def one_in_the_denominator_by_a_reciprocal(q, k, v):
    e = scores(q, k).exp()
    return (e @ v) * (e.sum(-1, keepdim=True) + 1).reciprocal()


def one_in_the_denominator_by_a_power(q, k, v):
    e = scores(q, k).exp()
    return (e.sum(-1, keepdim=True) + 1) ** -1 * (e @ v)


def hidden_and_multiplied_afterwards(q, k, v):
    p = scores(q, k).softmax(-1) * CAUSAL
    return (p @ v) * (1 / p.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    "middle",
    [
        one_in_the_denominator_afterwards, hidden_and_divided_afterwards, one_in_the_denominator_by_a_reciprocal,
        one_in_the_denominator_by_a_power, hidden_and_multiplied_afterwards,
    ],
)  # fmt: skip
def test_means_that_are_divided_by_other_sums_are_listed(middle):
    report = look(*net(middle))
    assert not report.layers
    (entry,) = report.record.unseen
    assert "only after it has used them" in entry.why.en


def hidden_in_some_heads(q, k, v):
    p = scores(q, k).softmax(-1)
    few = p[:, :2] * CAUSAL
    return torch.cat([few / few.sum(-1, keepdim=True), p[:, 2:]], 1) @ v


def test_rows_that_are_changed_in_part_are_listed():
    report = look(*net(hidden_in_some_heads))
    assert not report.layers
    (entry,) = report.record.unseen
    assert "some of the rows" in entry.why.en


def twice_computed(kernel):
    def middle(q, k, v):
        parts = list(zip(k.split(4, 2), v.split(4, 2), strict=True))
        shares = torch.stack([scores(q, keys).logsumexp(-1) for keys, _ in parts], -1).softmax(-1)
        return sum(shares[..., i, None] * kernel(q, keys, some) for i, (keys, some) in enumerate(parts))

    return middle


def pairwise(q, k, v):
    parts = list(zip(k.split(4, 2), v.split(4, 2), strict=True))
    total = sum(scores(q, keys).exp().sum(-1, keepdim=True) for keys, _ in parts)
    shares = [scores(q, keys).exp().sum(-1, keepdim=True) / total for keys, _ in parts]
    return sum(share * (scores(q, keys).softmax(-1) @ some) for share, (keys, some) in zip(shares, parts, strict=True))


@pytest.mark.parametrize(
    "middle",
    [
        twice_computed(F.scaled_dot_product_attention),
        twice_computed(lambda q, k, v: scores(q, k).softmax(-1) @ v),
        pairwise,
    ],
)
def test_blocks_whose_products_are_computed_twice_are_blocks(middle):
    report = look(*net(middle))
    assert not report.layers
    (entry,) = report.record.unseen
    assert "blocks of keys" in entry.why.en
