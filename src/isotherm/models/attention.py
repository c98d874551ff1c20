"""Multi-head attention: the one place in these models where tokens look at one another.

    Attention(x, m) = W_o · concat_h softmax(scale · q_h·k_hᵀ) · v_h,   q = W_q·x,  k = W_k·m,  v = W_v·m

Every model here attends through this module, and every scale rule acts in it. A rule that is one number costs nothing
beyond PyTorch's fused kernel; one that normalises or multiplies q goes through the same kernel; a soft cap, a sink or a
sigmoid, which that kernel does not know, goes through `isotherm.ops`' reference.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from isotherm.models.cache import Cache
from isotherm.models.layer_rule import LayerRule
from isotherm.models.shape import Shape
from isotherm.ops import Visibility, attention
from isotherm.scale import Fixed, Rule, Site


class Attention(nn.Module):
    """Self-attention of x, or cross-attention from x to a memory, under a scale rule (None: 1/√d_k)."""

    def __init__(self, shape: Shape, rule: Rule | None = None, *, layer: int = 0) -> None:
        super().__init__()
        self.heads, self.head_dim = shape.heads, shape.per_head
        inner = self.heads * self.head_dim
        self.query = nn.Linear(shape.width, inner)
        self.key = nn.Linear(shape.width, inner)
        self.value = nn.Linear(shape.width, inner)
        self.out = nn.Linear(inner, shape.width)
        self.rule = LayerRule(rule, heads=self.heads, head_dim=self.head_dim, layer=layer)
        self.initialise()

    @torch.no_grad()
    def initialise(self, gain: float = 1.0) -> None:
        """Draw the weights anew (Glorot's uniform, biases 0), with `gain` on W_q and W_k: logits grow by its square."""
        for linear in (self.query, self.key, self.value, self.out):
            heated = linear is self.query or linear is self.key
            nn.init.xavier_uniform_(linear.weight, gain if heated else 1.0)
            nn.init.zeros_(linear.bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x [B, T, W] looks at memory [B, S, W], or at itself; returns [B, T, W].

        `mask` is bool, True where a key is visible, [B, heads, T, S] with 1 for any of them. `causal`: the last query sees
        every key, the one before all but the last, and so on.
        """
        q = self._split(self.query(x))
        k, v = self._keys_and_values(x, memory, cache)
        seen = self._attend(q, k, v, causal, mask)
        return self.out(seen.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, heads·D] as [B, heads, T, D]."""
        return x.view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)

    def _keys_and_values(self, x: Tensor, memory: Tensor | None, cache: Cache | None) -> tuple[Tensor, ...]:
        """Keys and values of the memory, computed once; or of x, after those of the tokens before it."""
        before = None if cache is None else cache.kept.get(self)
        if before is not None and memory is not None:
            return before
        source = x if memory is None else memory
        both: tuple[Tensor, ...] = (self._split(self.key(source)), self._split(self.value(source)))
        if before is not None:
            both = tuple(torch.cat(pair, 2) for pair in zip(before, both, strict=True))
        if cache is not None:
            cache.kept[self] = both
        return both

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
        """The rule, then the kernel: [B, heads, T, D]."""
        scale, rule = self.rule.number, self.rule.now()
        if rule is not None:
            resolved = rule.resolve(self._site(q, k, causal, mask))
            if any(part is not None for part in (resolved.softcap, resolved.sink, resolved.sigmoid_bias)):
                whole = rule * Fixed(scale)
                return attention(q, k, v, scale=whole, causal=causal, mask=mask, impl="reference").output
            if resolved.normalise is not None or isinstance(resolved.multiplier, Tensor):
                q, k = resolved.apply(q, k)
        return fused(q, k, v, scale=scale, causal=causal, mask=mask)

    @property
    def declares(self) -> Rule:
        """The rule this layer is built with, for whoever wants to compare it with the scale in force."""
        return self.rule.whole()

    def _site(self, q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Site:
        """What a rule may want to know: where each query stands, and how many keys it sees."""
        keys = k.shape[2]
        positions = torch.arange(keys - q.shape[2], keys, device=q.device)
        return Site(self.head_dim, self.heads, positions, Visibility(positions, keys, causal, None, mask).counts)


def fused(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, mask: Tensor | None) -> Tensor:
    """PyTorch's kernel. It takes a mask or `is_causal`, not both, and lines queries up with the first keys, not the last."""
    queries, keys = q.shape[2], k.shape[2]
    if queries <= 1:  # not `causal and queries > 1`: where a graph leaves sizes open, that is a symbol and no bool
        causal = False
    if causal and (mask is not None or queries != keys):
        lower = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        mask, causal = lower if mask is None else lower & mask, False
    with kernels():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


def kernels() -> AbstractContextManager[None]:
    """PyTorch's choice of kernel; under vmap the one written in plain operations, for the others run one model at a time."""
    return sdpa_kernel(SDPBackend.MATH) if torch._C._are_functorch_transforms_active() else nullcontext()
