"""Mean and spread of q·k over many keys from the moments of the keys alone: O(d²) a row instead of O(n·d).

Σ_j (q·k_j) = q·Σk and Σ_j (q·k_j)² = qᵀ(Σ k kᵀ)q. Kept in float64 and shifted near the keys' mean, so the result has
more digits than logits of the inputs' own precision would give.
"""

import torch
from torch import Tensor

from isotherm.stats import Moments


class KeyMoments:
    """Running sums over blocks of keys; any range of whole blocks is a difference of two of them."""

    def __init__(self, k: Tensor, block: int) -> None:
        """`k` [P, S, D]; keys with NaN or Inf count as 0 here, since their rows are marked invalid elsewhere."""
        self.block, self.keys = block, k.shape[1]
        clean = torch.Tensor.double if bool(k.sum().isfinite()) else _clean
        self.shift = clean(k[:, :block]).mean(1)
        first, second = [torch.zeros_like(self.shift)], [self.shift.new_zeros(*self.shift.shape, k.shape[2])]
        for start in range(0, self.keys, block):
            centred = clean(k[:, start : start + block]) - self.shift.unsqueeze(1)
            first.append(first[-1] + centred.sum(1))
            second.append(second[-1] + centred.mT @ centred)
        self.first, self.second = torch.stack(first), torch.stack(second)

    def over(self, q: Tensor, blocks: range) -> Moments:
        """Moments of q·k, q [P, R, D], over a range of blocks: [P, R]."""
        q = q.double()
        count = min(blocks.stop * self.block, self.keys) - blocks.start * self.block
        first, second = (sums[blocks.stop] - sums[blocks.start] for sums in (self.first, self.second))
        # One product for qᵀ(Σ(k−shift)(k−shift)ᵀ), q·Σ(k−shift) and q·shift.
        product = q @ torch.cat([second, first.unsqueeze(-1), self.shift.unsqueeze(-1)], -1)
        square, along = (product[..., :-2] * q).sum(-1), product[..., -2]
        mean = product[..., -1] + along / count
        return Moments(torch.full_like(mean, count), mean, (square - along.square() / count).clamp(min=0))


def _clean(k: Tensor) -> Tensor:
    return k.double().nan_to_num(0.0, 0.0, 0.0)
