"""What several of these files ask for and check."""

import torch

from isotherm.ops import Problem, Visibility
from isotherm.ops.triton import dense
from isotherm.stats import STATISTICS


def problem(q, k, v, *, scale, causal=False, window=None, mask=None, bias=None):
    positions = torch.arange(q.shape[2], device=q.device) + k.shape[2] - q.shape[2]
    return Problem(q, k, v, Visibility(positions, k.shape[2], causal, window, mask), scale, bias)


def close(got, want, names=STATISTICS, budget=1e-5):
    for name in names:
        torch.testing.assert_close(
            getattr(got, name).double().cpu(),
            getattr(want, name).double().cpu(),
            rtol=budget,
            atol=budget,
            equal_nan=True,
            msg=lambda message, name=name: f"{name}: {message}",
        )


def sums_pay(device, monkeypatch):
    """A number of keys and a precision for which sums of the keys are used."""
    for name, value in (("LONG", 0), ("LONGER", 0), ("LEAST_CHUNKS", 2)):
        monkeypatch.setattr(dense, name, value)
    if device != "cpu":
        return 2230, torch.bfloat16
    monkeypatch.setattr(dense, "LEAST_KEYS", 16)
    monkeypatch.setattr(dense, "SUMMED", (torch.float16,))  # the interpreter multiplies bfloat16 as whole numbers
    return 143, torch.float16
