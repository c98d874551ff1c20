"""What a model is trained on, and how fast: the loss and the learning rate of Vaswani et al. 2017, §5.3 and §5.4."""

import torch.nn.functional as F
from torch import Tensor


def smoothed_cross_entropy(logits: Tensor, target: Tensor, *, smoothing: float = 0.1, pad: int | None = 0) -> Tensor:
    """Mean over target tokens [B, T] of −Σ q·ln p, p = softmax(logits [B, T, V]); padding is left out.

    q is 1 − ε on the right token plus ε/V on every token: a model is never asked to be certain, which would take logits of
    infinite size. A batch of padding alone gives 0.
    """
    skipped = -100 if pad is None else pad
    losses = F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=skipped, label_smoothing=smoothing, reduction="sum"
    )
    return losses / (target != skipped).sum().clamp(min=1)


def warm_up(step: int, *, width: int, warmup: int = 4000, factor: float = 1.0) -> float:
    """factor·width^-½·min(step^-½, step·warmup^-3/2): up in a line for `warmup` steps, then down like 1/√step.

    Steps count from 1; step 0 is taken as 1, so that `torch.optim.lr_scheduler.LambdaLR` can call it.
    """
    step = max(step, 1)
    return factor * width**-0.5 * min(step**-0.5, step * warmup**-1.5)
