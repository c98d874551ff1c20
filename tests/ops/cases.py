"""Problems of every kind attention takes, small, with prime sizes so that a swapped axis cannot pass."""

from dataclasses import dataclass, field
from typing import Any

import torch

from isotherm.ops import Problem, Visibility
from isotherm.scale import InverseSqrt, Llama4Temperature, LogN, PerHead, QKNorm, Sinks, SoftCap
from isotherm.stats import STATISTICS


@dataclass(frozen=True)
class Case:
    """Arguments of `attention` for given sizes; `options` is called with the case's generator."""

    name: str
    options: Any = field(default=lambda case: {})
    batch: int = 2
    heads: int = 3
    groups: int = 1
    queries: int = 13
    keys: int = 13
    dim: int = 5
    value_dim: int = 5

    def tensors(self, dtype=torch.float64, seed=0):
        g = torch.Generator().manual_seed(seed)
        sizes = (
            (self.batch, self.heads * self.groups, self.queries, self.dim),
            (self.batch, self.heads, self.keys, self.dim),
            (self.batch, self.heads, self.keys, self.value_dim),
        )
        return tuple(torch.randn(size, generator=g, dtype=torch.float64).to(dtype) for size in sizes)

    def arguments(self, seed=0):
        return self.options(_Draw(self, torch.Generator().manual_seed(seed + 1)))


@dataclass(frozen=True)
class _Draw:
    case: Case
    g: torch.Generator

    @property
    def all_heads(self):
        return self.case.heads * self.case.groups

    def mask(self, *shape):
        return torch.rand(shape, generator=self.g) > 0.4

    def ids(self):
        """An id for each key, runs of one to about five."""
        return (torch.rand(self.case.batch, self.case.keys, generator=self.g) < 0.3).cumsum(1)

    def bias(self, *shape):
        return torch.randn(shape, generator=self.g, dtype=torch.float64)


CASES = [
    Case("plain"),
    Case("grouped", groups=2),
    Case("one head of keys", heads=1, groups=5),
    Case("T < S", queries=7, keys=17),
    Case("T > S", queries=17, keys=7),
    Case("wide values", value_dim=11),
    Case("narrow values", value_dim=3),
    Case("one key", keys=1),
    Case("causal", lambda c: {"causal": True}),
    Case("causal bottom-right T < S", lambda c: {"causal": "bottom-right"}, queries=7, keys=17),
    Case("causal bottom-right T > S", lambda c: {"causal": "bottom-right"}, queries=17, keys=7),
    Case("causal top-left T < S", lambda c: {"causal": "top-left"}, queries=7, keys=17),
    Case("causal top-left T > S", lambda c: {"causal": "top-left"}, queries=17, keys=7),
    Case("window", lambda c: {"window": 4}),
    Case("causal window grouped", lambda c: {"causal": True, "window": 3}, groups=2),
    Case("documents", lambda c: {"documents": [0, 4, 4, 5, 13]}),
    Case("documents, causal, grouped", lambda c: {"documents": torch.tensor([0, 6, 13]), "causal": True}, groups=2),
    Case("documents by id, T < S", lambda c: {"documents": c.ids(), "causal": True}, queries=7, keys=17),
    Case("documents by id, window, mask", lambda c: {"documents": c.ids(), "window": 3, "mask": c.mask(2, 1, 1, 13)}),
    Case("documents, log-n", lambda c: {"documents": c.ids(), "causal": True, "scale": InverseSqrt() * LogN(2)}),
    Case(
        "documents, by position", lambda c: {"documents": c.ids(), "scale": InverseSqrt() * Llama4Temperature(2, 0.5)}
    ),
    Case("mask [T, S]", lambda c: {"mask": c.mask(13, 13)}),
    Case("mask of keys", lambda c: {"mask": c.mask(2, 1, 1, 13)}),
    Case("mask per head", lambda c: {"mask": c.mask(1, c.all_heads, 13, 13)}, groups=2),
    Case("mask everywhere, causal", lambda c: {"mask": c.mask(2, c.all_heads, 13, 13), "causal": True}, groups=2),
    Case("mask of queries", lambda c: {"mask": c.mask(2, 1, 13, 1)}),
    Case("bias", lambda c: {"bias": c.bias(2, c.all_heads, 13, 13)}, groups=2),
    Case("bias per head", lambda c: {"bias": c.bias(1, c.all_heads, 13, 13)}),
    Case("bias per key, causal", lambda c: {"bias": c.bias(1, c.all_heads, 1, 13), "causal": True}),
    Case("bias and mask", lambda c: {"bias": c.bias(13, 13), "mask": c.mask(2, 1, 1, 13)}),
    Case("soft cap", lambda c: {"scale": InverseSqrt() * SoftCap(1.5), "causal": True}),
    Case("soft cap and bias", lambda c: {"scale": SoftCap(1.5), "bias": c.bias(2, 1, 1, 13)}),
    Case("sinks", lambda c: {"scale": InverseSqrt() * Sinks(c.bias(c.all_heads)), "causal": True}, groups=2),
    Case("log-n", lambda c: {"scale": InverseSqrt() * LogN(4), "causal": True}),
    Case("log-n with mask", lambda c: {"scale": InverseSqrt() * LogN(4), "mask": c.mask(2, 1, 13, 13)}),
    Case("per head", lambda c: {"scale": PerHead(c.bias(c.all_heads).abs() + 0.1)}, groups=2),
    Case("qk-norm", lambda c: {"scale": QKNorm() * InverseSqrt()}),
    Case("large logits", lambda c: {"scale": 200.0}),
    Case("fixed small", lambda c: {"scale": 1e-3, "causal": True}),
]


def problem(q, k, v, *, scale, causal=False, window=None, mask=None, bias=None, softcap=None, documents=None):
    """What a kernel is asked, the last query seeing the last key."""
    positions = torch.arange(q.shape[2], device=q.device) + k.shape[2] - q.shape[2]
    return Problem(q, k, v, Visibility(positions, k.shape[2], causal, window, mask, documents), scale, bias, softcap)


def assert_same(got, want, budget=1e-11):
    """Two results agree: output, lse and every statistic."""
    torch.testing.assert_close(got.output, want.output, rtol=budget, atol=budget)
    if got.lse is not None and want.lse is not None:
        torch.testing.assert_close(got.lse, want.lse, rtol=budget, atol=budget)
    if want.stats is not None:
        assert_same_statistics(got.stats, want.stats, budget=budget)


def assert_same_statistics(got, want, names=STATISTICS, budget=1e-5):
    for name in names:
        torch.testing.assert_close(
            getattr(got, name).cpu(),
            getattr(want, name).cpu(),
            rtol=budget,
            atol=budget,
            equal_nan=True,
            msg=lambda message, name=name: f"{name}: {message}",
        )
