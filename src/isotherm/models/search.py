"""Writing a translation: at each step the likeliest token, or several hypotheses side by side.

The model is taken as it is: one with dropout should be in evaluation mode.
"""

from typing import Protocol

import torch
from torch import Tensor

from isotherm.models.cache import Cache
from isotherm.models.shape import Shape


class Translator(Protocol):
    """What can be searched: `Transformer`, `RecurrentTranslator`, and anything that reads and writes as they do."""

    shape: Shape

    def encode(self, source: Tensor) -> Tensor:
        """The memory of a source [B, S]."""

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits [B, T, V] of what follows each target token."""


@torch.no_grad()
def greedy(model: Translator, source: Tensor, *, start: int, end: int, longest: int) -> Tensor:
    """The likeliest token each time: ids [B, ≤ longest], without `start`, up to and with `end`, padding after it."""
    memory, cache = model.encode(source), Cache()
    token = source.new_full((len(source), 1), start)
    done = torch.zeros_like(token, dtype=torch.bool)
    written = [token[:, :0]]
    while len(written) <= longest and not done.all():
        token = model.decode(token, memory, source, cache)[:, -1:].argmax(-1).masked_fill(done, model.shape.pad)
        written.append(token)
        done = done | (token == end)
    return torch.cat(written, 1)


@torch.no_grad()
def beam(
    model: Translator,
    source: Tensor,
    *,
    start: int,
    end: int,
    longest: int,
    width: int = 4,
    length_penalty: float = 0.6,
) -> Tensor:
    """The best of `width` hypotheses by ln p/((5 + length)/6)^α, α = `length_penalty`; ids as `greedy` gives them.

    A sum of log-probabilities falls with every token, so without the penalty (Wu et al. 2016, arXiv:1609.08144) the search
    would favour short translations. Finished hypotheses stay in the beam and compete by the same number.
    """
    pad, sources = model.shape.pad, len(source)
    memory, cache = model.encode(source).repeat_interleave(width, 0), Cache()
    source = source.repeat_interleave(width, 0)
    first_rows = torch.arange(sources, device=source.device).view(-1, 1) * width
    token = source.new_full((sources * width, 1), start)
    ids = token[:, :0]
    total = memory.new_full((sources, width), -torch.inf, dtype=torch.float32)
    total[:, 0] = 0  # all hypotheses begin alike: only one of them may go on
    length, done = torch.zeros_like(total), torch.zeros_like(total, dtype=torch.bool)
    while ids.shape[1] < longest and not done.all():
        steps = model.decode(token, memory, source, cache)[:, -1].float().log_softmax(-1).view(sources, width, -1)
        only_pad = torch.full_like(steps, -torch.inf)
        only_pad[..., pad] = 0
        sums = total.unsqueeze(-1) + torch.where(done.unsqueeze(-1), only_pad, steps)
        lengths = length + (~done).float()
        scores = sums / penalty(lengths, length_penalty).unsqueeze(-1)
        best = scores.flatten(1).topk(width).indices
        parent, word = best // steps.shape[-1], best % steps.shape[-1]
        total, length = sums.flatten(1).gather(1, best), lengths.gather(1, parent)
        done = done.gather(1, parent) | (word == end)
        rows = (first_rows + parent).flatten()
        cache.select(rows)
        token = word.view(-1, 1)
        ids = torch.cat([ids[rows], token], 1)
    chosen = (total / penalty(length, length_penalty)).argmax(1, keepdim=True)
    return ids[(first_rows + chosen).flatten()]


def penalty(length: Tensor, alpha: float) -> Tensor:
    """((5 + length)/6)^α."""
    return ((5 + length) / 6) ** alpha
