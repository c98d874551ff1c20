"""Nested tensors, of both layouts, as padded ones."""

import torch
from torch import Tensor


def padded(sequences: Tensor) -> tuple[Tensor, Tensor]:
    """A nested tensor of sequences [.., length, D] as one padded with zeros, and a mask [B, T] that is True where there is
    padding."""
    parts = [part.detach() for part in sequences.unbind()]
    lengths = torch.tensor([part.shape[-2] for part in parts], device=sequences.device)
    longest = max((part.shape[-2] for part in parts), default=0)
    whole = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, longest - part.shape[-2])) for part in parts])
    return whole, torch.arange(longest, device=sequences.device) >= lengths.unsqueeze(-1)
