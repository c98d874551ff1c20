"""Numbers on their way from a device, so that training waits for none of them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


class Arriving:
    """A tensor that is copied from its device while the program goes on."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: Any = None
        self._tensor = tensor
        if tensor.device.type == "cuda":
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            with torch.cuda.device(tensor.device):
                self._event = torch.cuda.Event()
                self._event.record()

    @property
    def waits(self) -> bool:
        """Whether the numbers come from a device that works on its own."""
        return self._event is not None

    @property
    def is_here(self) -> bool:
        """Whether the numbers can be read without waiting."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> np.ndarray[Any, Any]:
        """The numbers, once they are here."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.cpu().numpy()
