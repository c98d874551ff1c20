"""Small models with sizes that are all different primes where they may be, and batches for them."""

from dataclasses import replace

import torch

from isotherm.models import Shape

SHAPE = Shape(vocabulary=13, width=12, heads=3, layers=2, hidden=17, head_dim=5, longest=23)
POST = replace(SHAPE, norm="post")
KINDS = ("transformer", "decoder", "bert", "recurrent")


def ids(rows: int, length: int, seed: int = 0, padded: int = 0) -> torch.Tensor:
    """Random words (never 0); the last row ends with `padded` zeros."""
    made = torch.randint(1, SHAPE.vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))
    if padded:
        made[-1, length - padded :] = 0
    return made


def batch(kind: str) -> tuple[torch.Tensor, ...]:
    """What a model of this kind is called with."""
    source, target = ids(2, 7, seed=1, padded=3), ids(2, 5, seed=2)
    return (source, target) if kind in ("transformer", "recurrent") else (source,)
