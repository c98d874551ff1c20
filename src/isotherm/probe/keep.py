"""Keeping what a model made without copying it: a copy is made only when the model is about to write over it.

Models do write over their tensors: `q *= scale` right after the projection, a static cache that fills up in place. A
plain reference would then show the probe what came later.
"""

import weakref
from typing import Protocol

from torch import Tensor


class Holder(Protocol):
    """Something that holds a tensor of the model's."""

    def take_copy(self, storage: int) -> None:
        """The memory at `storage` is about to be written to."""


def storage_of(tensor: Tensor) -> int:
    """One number for all tensors that share memory."""
    return tensor.untyped_storage()._cdata


class Keeper:
    """Who holds which memory. Holders are held weakly: forgetting one is enough to let go of it."""

    def __init__(self) -> None:
        self._holders: dict[int, list[weakref.ref[Holder]]] = {}

    def protect(self, tensor: Tensor, holder: Holder) -> None:
        """Tell `holder` before this tensor's memory is written to."""
        holders = self._holders.setdefault(storage_of(tensor), [])
        if len(holders) > 32:
            holders[:] = [reference for reference in holders if reference() is not None]
        holders.append(weakref.ref(holder))

    def before_write(self, tensor: Tensor) -> None:
        """This tensor is about to be changed in place."""
        storage = storage_of(tensor)
        for reference in self._holders.pop(storage, ()):
            holder = reference()
            if holder is not None:
                holder.take_copy(storage)
