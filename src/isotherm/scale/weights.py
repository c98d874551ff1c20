"""Methods that keep the temperature from outside attention: on its weights, or through the loss."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.rule import finite, positive, vector

__all__ = ["SigmaReparam", "qk_clip", "z_loss"]


@torch.no_grad()
def qk_clip(
    w_q: Tensor, w_k: Tensor, max_logit: Tensor, *, tau: float = 100.0, alpha: float = 0.5
) -> tuple[Tensor, Tensor]:
    """New W_q [Hq·d, ...] and W_k [Hkv·d, ...] that bring every head's largest logit down to `tau`, after a step.

    γ_h = min(1, τ/max_logit_h) is split as γ^α on W_q and γ^(1−α) on W_k, head by head. Where query heads share a key
    head, a factor on W_k would change the other heads too, so all of γ_h goes on W_q and W_k stays as it is, as Kimi K2
    does with its shared rotary key. (Megatron-LM instead clips the whole group by its largest head.)

    Clip biases with the same call: they are weights of shape [H·d]. Under QK-norm these weights have no effect on the
    logits; pass the norm's gain instead, if it has one for each head.

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

    gamma = tau / max_logit.clamp(min=tau)  # min(1, τ/S) would be negative where S is negative
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
    """Ŵ = γ/σ(W)·W: the spectral norm of a weight becomes one learned number γ.

    >>> linear = nn.Linear(7, 5)
    >>> _ = nn.utils.parametrize.register_parametrization(linear, "weight", SigmaReparam(linear.weight))

    In training mode each read of the weight updates σ(W) = uᵀWv by one power iteration; in evaluation σ(W) stays as it is.
    If a step reads the weight twice, read it under `parametrize.cached()`.

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
        # Starting from the longest column needs no random numbers, and that column is not orthogonal to every other.
        self.register_buffer("u", normalize(matrix[:, matrix.norm(dim=0).argmax()], dim=0))
        self.register_buffer("v", normalize(matrix.T @ self.u, dim=0))
        for _ in range(start_iterations):
            self._iterate(matrix)

    @torch.no_grad()
    def _iterate(self, matrix: Tensor) -> None:
        self.u.copy_(normalize(matrix @ self.v, dim=0))
        self.v.copy_(normalize(matrix.T @ self.u, dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        matrix = weight.flatten(1)
        if self.training:
            self._iterate(matrix)
        # Clone u and v: a second read in the same step must not change what the first read's backward pass uses.
        sigma = self.u.clone() @ matrix @ self.v.clone()
        return self.gamma / sigma * weight


def z_loss(lse: Tensor | Sequence[Tensor], *, weight: float = 1e-4, mask: Tensor | None = None) -> Tensor:
    """weight·mean over batch and positions of Σ_heads (Σ_layers lse)²: pulls the softmax's normaliser towards 1.

    `lse` is [B, H, T] of one layer, or a sequence of these; `mask` [B, T] keeps the positions where it is true. Positions
    that see no key (lse = −∞) are left out. As in x-transformers, layers are summed before squaring, so two layers can
    cancel; call the function once per layer to prevent that.

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
