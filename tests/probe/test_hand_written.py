"""softmax(q·kᵀ) written out, in the ways people write it; and ways that can only be measured."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.ops import blockwise
from isotherm.probe import probe, recognise
from tests.probe.architectures import NanoAttention, widen

TOKENS, WIDTH, HEADS, DIM = 7, 32, 4, 8
CAUSAL = torch.ones(TOKENS, TOKENS).tril().bool()
ADDED = torch.zeros(TOKENS, TOKENS).masked_fill(~CAUSAL, torch.finfo(torch.float32).min)
ALIBI = -torch.arange(TOKENS).sub(torch.arange(TOKENS).view(-1, 1)).abs() * torch.tensor([0.5, 0.2, 0.1, 0.05]).view(
    4, 1, 1
)
Weights = Callable[[Tensor, Tensor], Tensor]


class WrittenAttention(NanoAttention):
    """Attention with these weights(q, k) [B, H, T, S]."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        self.kept = self.weights(q, k)
        return self.merge(self.kept @ v)


def states() -> Tensor:
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(5))


def in_place(q: Tensor, k: Tensor) -> Tensor:
    s = q @ k.mT
    s /= sqrt(DIM)
    s += ADDED
    return s.softmax(-1)


def flat(q: Tensor, k: Tensor) -> Tensor:
    s = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)) / sqrt(DIM)
    s = s.masked_fill(~CAUSAL, -1e9)
    return F.softmax(s.view(2, HEADS, TOKENS, TOKENS), dim=-1)


def baddbmm(q: Tensor, k: Tensor) -> Tensor:
    bias = ALIBI.repeat(2, 1, 1)
    s = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.5, alpha=1 / sqrt(DIM))
    return s.view(2, HEADS, TOKENS, TOKENS).softmax(-1, dtype=torch.float32)


def stable(q: Tensor, k: Tensor) -> Tensor:
    s = torch.einsum("bhid,bhjd->bhij", q, k) * DIM**-0.5
    s = torch.where(CAUSAL, s, torch.tensor(-torch.inf))
    return torch.softmax(s - s.amax(-1, keepdim=True).detach(), -1)


def capped(q: Tensor, k: Tensor) -> Tensor:
    s = torch.tanh(q @ k.transpose(2, 3) / sqrt(DIM) / 5.0) * 5.0
    return torch.softmax(s + ADDED, dim=-1)


def per_head(q: Tensor, k: Tensor) -> Tensor:
    return ((q @ k.mT) * torch.tensor([0.1, 0.2, 0.3, 0.4]).view(4, 1, 1)).softmax(dim=-1)


def grouped(q: Tensor, k: Tensor) -> Tensor:
    s = torch.einsum("bghtd,bgsd->bghts", q.unflatten(1, (2, 2)), k[:, :2]) * 0.3
    return s.softmax(-1).flatten(1, 2)


def scaled_mask(q: Tensor, k: Tensor) -> Tensor:
    hidden = (~CAUSAL).float()
    return torch.softmax(0.2 * (q @ k.mT + ALIBI) - 1e30 * hidden, -1)


def by_keyword(q: Tensor, k: Tensor) -> Tensor:
    return ((q @ k.mT) * 0.3).masked_fill(~CAUSAL, value=-1e9).softmax(-1)


def one_key_head(q: Tensor, k: Tensor) -> Tensor:
    return (torch.einsum("bhid,bjd->bhij", q, k[:, 0]) * 0.3).softmax(-1)


def baddbmm_without_alpha(q: Tensor, k: Tensor) -> Tensor:
    s = torch.baddbmm(ALIBI.repeat(2, 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT)
    return s.view(2, HEADS, TOKENS, TOKENS).softmax(-1)


def method_where(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).mul(0.3).where(CAUSAL, torch.tensor(-1e9)).softmax(-1)


SEEN = [
    (in_place, 1 / sqrt(DIM), 1.0),
    (flat, 1 / sqrt(DIM), 1.0),
    (baddbmm, 1 / sqrt(DIM), 1.0),
    (stable, 1 / sqrt(DIM), 1.0),
    (capped, 1 / sqrt(DIM), 1.0),
    (per_head, None, 1.0),
    (grouped, 0.3, 1.0),
    (scaled_mask, 0.2, 1.0),
    (method_where, 0.3, 1.0),
    (by_keyword, 0.3, 1.0),
    (one_key_head, 0.3, 1.0),
    (baddbmm_without_alpha, 1.0, 1.0),
    (lambda q, k: nn.Softmax(-1)(q @ k.mT), 1.0, 1.0),
    (lambda q, k: F.softmax((q / sqrt(DIM)) @ k.mT + ALIBI, -1), 1.0, 1 / sqrt(DIM)),
    (lambda q, k: torch.softmax((q * DIM**-0.25) @ (k * DIM**-0.25).mT, -1), 1.0, DIM**-0.25),
    (lambda q, k: torch.matmul(q, k.mT).div(torch.tensor(3.0)).clamp(min=-1e4).float().softmax(-1), 1 / 3, 1.0),
]
NAMES = ["in-place", "flat", "baddbmm", "stable", "capped", "per-head", "grouped", "scaled-mask", "method-where",
         "by-keyword", "one-key-head", "baddbmm-without-alpha",
         "module", "scaled-query", "quarter-roots", "tensor-divisor"]  # fmt: skip


@pytest.mark.parametrize(("weights", "passed", "on_q"), SEEN, ids=NAMES)
def test_seen(weights: Weights, passed: float | None, on_q: float):
    model, x = widen(WrittenAttention(weights)), states()
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(plain, model(x))
    assert seen.unseen == []
    (capture,) = seen.captures
    assert capture.name == ""
    assert capture.implementation == "hand-written"
    assert capture.passed == (None if passed is None else pytest.approx(passed))
    assert (capture.q_factor.kind, capture.k_factor.kind) == ("constant", "constant")
    assert capture.q_factor.value == pytest.approx(on_q, rel=1e-5)
    p = model.kept.double()
    stats = blockwise.statistics(capture.problem)
    torch.testing.assert_close(stats.entropy, -torch.special.xlogy(p, p).sum(-1), rtol=0, atol=1e-5)
    assert torch.equal(stats.n, (p > 0).sum(-1))


def product_mask(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT) * torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)), -1)


def concatenated(q: Tensor, k: Tensor) -> Tensor:
    s = q @ k.mT
    return torch.softmax(torch.cat([s, torch.zeros(2, HEADS, TOKENS, 1)], -1), -1)[..., :-1]


def other_axis(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(k @ q.mT, 2).mT


def dropped(q: Tensor, k: Tensor) -> Tensor:
    s = q @ k.mT
    s.copy_(s.sort(-1).values)
    return s.softmax(-1)


def by_exp(q: Tensor, k: Tensor) -> Tensor:
    e = (q @ k.mT / sqrt(DIM)).exp()
    return e / e.sum(-1, keepdim=True)


def behind_the_back(q: Tensor, k: Tensor) -> Tensor:
    s = q @ k.mT
    s.numpy()[:] *= 0.5  # no torch function sees this
    return s.softmax(-1)


@pytest.mark.parametrize(
    ("weights", "scale"),
    [
        (product_mask, None),
        (concatenated, 1.0),
        (other_axis, 1.0),
        (dropped, None),
        (by_exp, 1 / sqrt(DIM)),
        (behind_the_back, 0.5),
    ],
)
def test_what_is_not_described_is_measured(weights: Weights, scale: float | None):
    """The scale is read off logits and q·k. Where logits are no number times q·k, only they are kept."""
    model, x = widen(WrittenAttention(weights)), states()
    with torch.no_grad():
        plain = model(x)
        with probe(model) as seen:
            assert torch.equal(plain, model(x))
    assert seen.unseen == []
    (capture,) = seen.captures
    assert capture.affine is (scale is not None)
    assert scale is None or capture.problem.scale == pytest.approx(scale, rel=1e-4)
    p = model.kept.double()
    rest = (1 - p.sum(-1)).clamp(min=0)
    stats = blockwise.statistics(capture.problem)
    stats = stats if capture.sink is None else stats.with_sink(capture.sink.view(-1, 1))
    entropy = -torch.special.xlogy(p, p).sum(-1) - torch.where(rest > 1e-5, torch.special.xlogy(rest, rest), 0.0)
    torch.testing.assert_close(stats.entropy, entropy, rtol=0, atol=1e-4)


def test_rows_with_few_keys_have_their_own_number():
    """The first rows of causal attention have too few keys for a line of their own. Their logits are the model's, too."""
    made = []

    def by_query(q: Tensor, k: Tensor) -> Tensor:
        s = q @ k.mT
        s.numpy()[:] *= 0.2 + torch.arange(TOKENS).view(-1, 1).numpy()  # no torch function sees this
        made.append(s.clone())
        return s.masked_fill(~CAUSAL, -torch.inf).softmax(-1)

    model = widen(WrittenAttention(by_query))
    with torch.no_grad(), probe(model) as seen:
        model(states())
    (capture,) = seen.captures
    largest = made[-1].masked_fill(~CAUSAL, -torch.inf).amax(-1).double()
    torch.testing.assert_close(blockwise.statistics(capture.problem).max_logit.double(), largest, rtol=1e-4, atol=1e-4)


def test_two_dimensions_are_one_head():
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(WIDTH, DIM) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.q(x) @ self.k(x).T / sqrt(DIM), dim=1) @ self.v(x)

    model, x = widen(Single()), states()[0]
    with probe(model) as seen:
        model(x)
    (capture,) = seen.captures
    assert tuple(capture.problem.q.shape) == (1, 1, TOKENS, DIM)
    assert (capture.q_factor.source, capture.k_factor.source) == ("q", "k")


def test_weights_that_are_used_twice_are_one_call():
    class Twice(NanoAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x)
            weights = by_exp(q, k)
            return self.merge(weights @ v + weights @ v.flip(-1))

    with torch.no_grad(), probe(model := widen(Twice())) as seen:
        model(states())
    assert seen.unseen == []
    assert len(seen.captures) == 1


def test_a_softmax_module_is_not_what_attends():
    class Named(WrittenAttention):
        def __init__(self) -> None:
            super().__init__(lambda q, k: self.soft(q @ k.mT / sqrt(DIM)))
            self.soft = nn.Softmax(-1)

    model = nn.ModuleDict({"attention": widen(Named())})
    with probe(model) as seen:
        model["attention"](states())
    assert [(capture.name, capture.module) for capture in seen.captures] == [("attention", "Named")]


def test_a_sum_of_everything_is_no_product():
    class Energetic(WrittenAttention):
        def forward(self, x: Tensor) -> Tensor:
            self.energy = (x.unsqueeze(1) * x.unsqueeze(2)).sum()
            return super().forward(x)

    with probe(model := widen(Energetic(stable))) as seen:
        model(states())
    assert seen.unseen == []
    assert len(seen.captures) == 1


@pytest.mark.parametrize("described", [True, False])
def test_of_many_logits_some_rows_are_kept_from_the_first_to_the_last(described: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recognise, "MOST", 2 * HEADS * TOKENS * 3)
    model, x = widen(WrittenAttention(behind_the_back if described else product_mask)), states()
    with torch.no_grad(), probe(model) as seen:
        model(x)
    (capture,) = seen.captures
    assert (capture.rows.tolist(), capture.total) == ([0, 3, 6], TOKENS)
    p = model.kept.double()[:, :, [0, 3, 6]]
    torch.testing.assert_close(
        blockwise.statistics(capture.problem).entropy, -torch.special.xlogy(p, p).sum(-1), rtol=0, atol=1e-4
    )


def test_a_router_is_no_attention():
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ self.weight.t(), -1)

    with probe(model := Router()) as seen:
        model(states())
    assert seen.captures == []
    assert seen.unseen == []


def test_cross_attention_by_its_projections():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            x = self.norm(x)
            q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in (self.q(x), self.k(memory), self.v(memory)))
            return torch.softmax(q @ k.mT / sqrt(8), -1) @ v

    model, x = widen(Reader()), states()
    for memory, kind in ((torch.randn(2, TOKENS, WIDTH), "cross"), (torch.randn(2, 3, WIDTH), "cross")):
        with probe(model) as seen:
            model(x, memory)
        assert [capture.kind for capture in seen.captures] == [kind]
