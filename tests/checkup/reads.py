"""Count how often our code reads numbers from the device that a model is on: each time it waits until a GPU has finished.

What came to the host through `Tensor.cpu` may be read freely, and is of a class of its own. Left out are the search for
projections, which works on such numbers with that class switched off, and what runs on a CPU only.
"""

import sys
from collections import Counter

import pytest
import torch

import isotherm

SOURCE = isotherm.__path__[0]
READS = ("tolist", "item", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")
LEFT_OUT = ("probe/lengths.py", "probe/factors.py", "ops/tiles.py", "ops/problem.py", "stats.py")


class OnHost(torch.Tensor):
    """A tensor on the host."""


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """A counter of the places in our code that read, from now on."""
    found = Counter[str]()

    def reading(name, original):
        def read(tensor, *args, **kwargs):
            caller = sys._getframe(1)
            file = caller.f_code.co_filename
            if file.startswith(SOURCE) and not file.endswith(LEFT_OUT) and not isinstance(tensor, OnHost):
                found[f"{file[len(SOURCE) + 1 :]}:{caller.f_code.co_name}"] += 1
            result = original(tensor, *args, **kwargs)
            return result.as_subclass(OnHost) if name == "cpu" else result

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, reading(name, getattr(torch.Tensor, name)))
    return found
