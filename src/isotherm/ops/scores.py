"""The scores attention has been built on, as modules with one interface: additive, multiplicative, dot, scaled dot.

Each takes query states s [B, T, Dq], key states h [B, S, Dk] and values [B, S, Dv], and returns what `attention`
returns, with one head.

>>> states = torch.randn(2, 5, 8)
>>> Additive(8, 8, 16)(states, states, stats=True).output.shape
torch.Size([2, 1, 5, 8])
"""

from abc import ABC, abstractmethod
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.ops import reference
from isotherm.ops.api import AttentionResult, attention
from isotherm.ops.arguments import Causal, check_broadcast, check_causal, check_numbers
from isotherm.ops.problem import Problem, Visibility
from isotherm.scale import InverseSqrt, NoScale, Rule

HIDDEN_AT_ONCE = 1 << 23
"""Hidden units tanh(W₁h + W₂s) that `Additive` holds at once: 32 MiB of float32."""


class Options(TypedDict, total=False):
    """Options of `attention` that every score takes."""

    causal: Causal
    mask: Tensor | None
    stats: bool


class Score(nn.Module, ABC):
    """How well a query state matches a key state, and the attention that follows from it."""

    @abstractmethod
    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor | None = None, **options: Unpack[Options]
    ) -> AttentionResult:
        """query [B, T, Dq], keys [B, S, Dk], values [B, S, Dv] (the keys if left out)."""


class Dot(Score):
    """⟨h, s⟩ under a scale rule: `NoScale()` is Luong's dot, `InverseSqrt()` Vaswani's scaled dot."""

    def __init__(self, rule: Rule | None = None) -> None:
        super().__init__()
        self.rule = InverseSqrt() if rule is None else rule

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor | None = None, **options: Unpack[Options]
    ) -> AttentionResult:
        """Attention with one head."""
        q, k, v = (states.unsqueeze(1) for states in _check(query, keys, values))
        return attention(q, k, v, scale=self.rule, **options)


class Multiplicative(Dot):
    """⟨W₁h, W₂s⟩ (Luong et al. 2015, Britz et al. 2017): a dot product after two projections to `units` dimensions."""

    def __init__(self, query_dim: int, key_dim: int, units: int, rule: Rule | None = None) -> None:
        super().__init__(NoScale() if rule is None else rule)
        self.query = nn.Linear(query_dim, units, bias=False)
        self.key = nn.Linear(key_dim, units, bias=False)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor | None = None, **options: Unpack[Options]
    ) -> AttentionResult:
        """Attention with one head over the projected states."""
        query, keys, values = _check(query, keys, values)
        return super().forward(self.query(query), self.key(keys), values, **options)


class Additive(Score):
    """⟨v, tanh(W₁h + W₂s)⟩ (Bahdanau et al. 2015): a hidden layer of `units` for every pair of states."""

    def __init__(self, query_dim: int, key_dim: int, units: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, units, bias=False)
        self.key = nn.Linear(key_dim, units, bias=False)
        self.out = nn.Linear(units, 1, bias=False)

    def logits(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, T, S], a few queries at a time: the hidden layer would be T × S × units."""
        s, h = self.query(query), self.key(keys)
        step = max(1, HIDDEN_AT_ONCE // max(1, h.numel()))
        rows = [self.out(torch.tanh(part.unsqueeze(2) + h.unsqueeze(1))).squeeze(-1) for part in s.split(step, 1)]
        return torch.cat(rows, 1)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor | None = None, **options: Unpack[Options]
    ) -> AttentionResult:
        """Attention with one head. Holds the T × S scores: they are no dot products, so no fused kernel computes them."""
        query, keys, values = _check(query, keys, values)
        causal, mask, stats = _read(**options)
        s = self.logits(query, keys).unsqueeze(1)
        alignment = check_causal(causal)
        first = 0 if alignment == "top-left" else keys.shape[1] - query.shape[1]
        positions = torch.arange(query.shape[1], device=query.device) + first
        mask = check_broadcast("mask", mask, (s.shape[0], 1, s.shape[2], s.shape[3]), query)
        visibility = Visibility(positions, keys.shape[1], alignment is not None, None, mask)
        # The scores enter as a bias on an empty q·k, which costs nothing.
        q, k = (s.new_zeros(s.shape[0], 1, length, 0) for length in s.shape[2:])
        problem = Problem(q, k, values.unsqueeze(1), visibility, bias=s)
        solution = reference.solve(problem, stats=stats)
        return AttentionResult(solution.output, solution.stats, solution.lse, "additive")


def _read(
    *, causal: Causal = False, mask: Tensor | None = None, stats: bool = False
) -> tuple[Causal, Tensor | None, bool]:
    """The options, in their order. Python refuses others."""
    return causal, mask, stats


def _check(query: Tensor, keys: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    values = keys if values is None else values
    for name, states in (("query", query), ("keys", keys), ("values", values)):
        check_numbers(name, states)
        if states.dim() != 3:
            expected = Text("[batch, length, dimension]", "[批, 长度, 维度] 三维")
            raise ArgumentError(name, expected, got=list(states.shape))
    return query, keys, values
