"""Autocast has its say once, when q, k and v are converted: products then have the precision that we give them."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

NOT_ON = nullcontext()
CONVERTED = (torch.float16, torch.bfloat16, torch.float32)
"""Types that autocast converts."""


def under_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert q, k and v to autocast's type where it is on, as `scaled_dot_product_attention` does."""
    kind = q.device.type if isinstance(q, Tensor) else "meta"
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    q, k, v = (x.to(dtype) if isinstance(x, Tensor) and x.dtype in CONVERTED else x for x in (q, k, v))
    return q, k, v


def autocast_off(kind: str) -> AbstractContextManager[None]:
    """A context without autocast on devices of this kind."""
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return NOT_ON
    off: AbstractContextManager[None] = torch.autocast(kind, enabled=False)
    return off
