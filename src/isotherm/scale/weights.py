"""Means to keep the temperature that act outside attention: on its weights, or through the loss."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.rule import finite, positive, vector


@torch.no_grad()
def qk_clip(
    w_q: Tensor, w_k: Tensor, max_logit: Tensor, *, tau: float = 100.0, alpha: float = 0.5
) -> tuple[Tensor, Tensor]:
    """New W_q [Hq·d, ...] and W_k [Hkv·d, ...] that bring every head's largest logit down to `tau`, after a step.

    γ_h = min(1, τ/max_logit_h) is split as γ^α on W_q and γ^(1−α) on W_k, head by head. Where query heads share a key
    head, a factor on W_k would cool their neighbours too, so all of γ_h goes on W_q and W_k is left alone, as Kimi K2
    does with its shared rotary key. (Megatron-LM instead clips the whole group by its hottest head.)

    Biases are clipped by the same call: they are weights of shape [H·d]. Under QK-norm these weights have no effect on
    the logits; give the norm's gain, if it has one for each head, in their place.

    Kimi K2, arXiv:2507.20534, §2.1.
    """
    positive("tau", tau)
    if not 0 <= finite("alpha", alpha) <= 1:
        raise ArgumentError("alpha", Text("a number from 0 to 1", "0 到 1 之间的数"), got=alpha)
    if not bool((vector("max_logit", max_logit) < float("inf")).all()):
        raise ArgumentError("max_logit", Text("no NaN or infinity", "不含 NaN 或无穷的张量"), got=max_logit.tolist())
    heads = max_logit.shape[0]
    head_dim = _divide("w_q", w_q.shape[0], heads)
    key_heads = _divide("w_k", w_k.shape[0], head_dim)
    _divide("max_logit", heads, key_heads)

    gamma = tau / max_logit.clamp(min=tau)  # not min(1, τ/S), which is negative where S is
    if key_heads < heads:
        return _by_head(w_q, gamma), w_k.clone()
    return _by_head(w_q, gamma**alpha), _by_head(w_k, gamma ** (1 - alpha))


def _by_head(weight: Tensor, factor: Tensor) -> Tensor:
    working = torch.promote_types(weight.dtype, torch.float32)
    rows = weight.reshape(factor.shape[0], -1).to(working) * factor.to(weight.device, working).unsqueeze(1)
    return rows.view(weight.shape).to(weight.dtype)


def _divide(argument: str, rows: int, parts: int) -> int:
    if rows == 0 or rows % parts:
        expected = Text("a first dimension divisible by {parts}", "首维可被 {parts} 整除").format(parts=parts)
        raise ArgumentError(argument, expected, got=rows)
    return rows // parts


class SigmaReparam(nn.Module):
    """Ŵ = γ/σ(W)·W: the spectral norm of a weight becomes one learned number γ, so that it grows only if γ does.

    >>> linear = nn.Linear(7, 5)
    >>> _ = nn.utils.parametrize.register_parametrization(linear, "weight", SigmaReparam(linear.weight))

    σ(W) = uᵀWv is followed by one power iteration each time the weight is read in training mode, and stands still in
    evaluation. Where a step reads the weight twice, read it under `parametrize.cached()`.

    Zhai et al. 2023, arXiv:2303.06296.
    """

    gamma: nn.Parameter
    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor, *, gamma: float = 1.0, start_iterations: int = 20) -> None:
        super().__init__()
        if weight.ndim < 2 or not bool(weight.any()):
            expected = Text("a matrix [out, in] that is not all 0", "不全为 0 的矩阵 [out, in]")
            raise ArgumentError("weight", expected, got=list(weight.shape))
        self.gamma = nn.Parameter(weight.new_tensor(positive("gamma", gamma)))
        matrix = weight.detach().flatten(1)
        # The longest column is a start that needs no random numbers and cannot be orthogonal to everything.
        self.register_buffer("u", normalize(matrix[:, matrix.norm(dim=0).argmax()], dim=0))
        self.register_buffer("v", normalize(matrix.T @ self.u, dim=0))
        for _ in range(start_iterations):
            self._iterate(matrix)

    @torch.no_grad()
    def _iterate(self, matrix: Tensor) -> None:
        self.u.copy_(normalize(matrix @ self.v, dim=0))
        self.v.copy_(normalize(matrix.T @ self.u, dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        """The reparametrised weight."""
        matrix = weight.flatten(1)
        if self.training:
            self._iterate(matrix)
        # Clones, so that a second read in one step does not change what the first one's backward pass needs.
        sigma = self.u.clone() @ matrix @ self.v.clone()
        return self.gamma / sigma * weight


def z_loss(lse: Tensor | Sequence[Tensor], *, weight: float = 1e-4, mask: Tensor | None = None) -> Tensor:
    """weight·mean over batch and positions of Σ_heads (Σ_layers lse)²: pulls the softmax's normaliser towards 1.

    `lse` [B, H, T] of one layer, or a sequence of them; `mask` [B, T] keeps the positions where it is true. Positions
    that see no key (lse = −∞) are left out. As in x-transformers, layers are summed before squaring, so that two layers
    may cancel; call it layer by layer to forbid that.

    Zoph et al. 2022, arXiv:2202.08906; x-transformers attn_z_loss_weight.
    """
    positive("weight", weight)
    layers = [lse] if isinstance(lse, Tensor) else list(lse)
    if not layers or any(layer.ndim != 3 or layer.shape != layers[0].shape for layer in layers):
        got = [list(layer.shape) for layer in layers]
        raise ArgumentError("lse", Text("tensors of one shape [B, H, T]", "同一形状 [B, H, T] 的张量"), got=got)
    total = torch.stack(layers).sum(0)
    kept = ~total.isneginf().any(1)
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != kept.shape:
            expected = Text("a bool tensor of shape {shape}", "形状为 {shape} 的布尔张量").format(
                shape=list(kept.shape)
            )
            raise ArgumentError("mask", expected, got=f"{mask.dtype} {list(mask.shape)}")
        kept = kept & mask
    squares = total.masked_fill(~kept.unsqueeze(1), 0).square().sum()
    return weight * squares / kept.sum().clamp(min=1)
