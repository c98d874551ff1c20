"""Keep the model's tensors without copying them: each is copied only when the model is about to overwrite it.

Models do overwrite tensors: `q *= scale` right after the projection, or a static cache that fills up in place. A plain
reference would then show the later values.
"""

import weakref
from typing import Protocol

from torch import Tensor


class Holder(Protocol):
    """Something that refers to a tensor of the model."""

    def take_copy(self, storage: int) -> None:
        """Copy what refers to the memory `storage`: the model is about to write there."""


def storage_of(tensor: Tensor) -> int:
    """A number that identifies the tensor's memory: tensors that share memory have the same one. A tensor without memory of
    its own, such as a sparse one, shares with none."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        return -id(tensor)


class Keeper:
    """Knows which holders refer to which memory. It refers to holders weakly, so a holder can be dropped without notice."""

    def __init__(self) -> None:
        self._holders: dict[int, list[weakref.ref[Holder]]] = {}

    def protect(self, tensor: Tensor, holder: Holder) -> None:
        """Have `holder` take a copy before this tensor's memory is written to."""
        holders = self._holders.setdefault(storage_of(tensor), [])
        if len(holders) > 32:
            holders[:] = [reference for reference in holders if reference() is not None]
        holders.append(weakref.ref(holder))

    def before_write(self, tensor: Tensor) -> None:
        """Have everyone who refers to this tensor's memory take a copy."""
        storage = storage_of(tensor)
        for reference in self._holders.pop(storage, ()):
            holder = reference()
            if holder is not None:
                holder.take_copy(storage)
