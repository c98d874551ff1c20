"""Save q and k of one layer at one step, as a file that `isotherm check` opens."""

import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotherm.checkup.loading.snapshot import SCHEMA
from isotherm.ops import Problem
from isotherm.report.files import write_atomically


@dataclass(frozen=True)
class Snapshot:
    """One attention call, on the host, for the sequence of its batch that is worst."""

    q: Tensor
    k: Tensor
    mask: Tensor | None
    bias: Tensor | None
    scale: float
    softcap: float | None

    @classmethod
    def of(cls, problem: Problem) -> "Snapshot":
        """Of a call: the first sequence with NaN or Inf, else that with the largest logit."""
        q, k = problem.q.detach().float(), problem.k.detach().float()
        repeated = k.repeat_interleave(problem.groups, 1)
        sizes = [(one @ keys.transpose(-1, -2)).abs().max() for one, keys in zip(q, repeated, strict=True)]
        place = int(torch.stack(sizes).nan_to_num(torch.inf, torch.inf).argmax())

        def one(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[place if tensor.shape[0] > 1 else 0].detach().cpu()[None]

        plain = problem.visibility.mask is None and not problem.visibility.causal and problem.visibility.window is None
        mask = None if plain else one(problem.visibility.matrix())
        bias = None if problem.bias is None else one(problem.bias.float())
        return cls(q[place, None].cpu(), k[place, None].cpu(), mask, bias, float(problem.scale), problem.softcap)

    def save(self, path: Path, *, model: str, module: str, step: int) -> None:
        """Write it as a file."""
        tensors = {"q": self.q, "k": self.k, "mask": self.mask, "bias": self.bias}
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}
        about = {
            "schema": SCHEMA, "model": model, "module": module, "step": step, "scale": self.scale, "softcap": self.softcap,
        }  # fmt: skip
        file = BytesIO()
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)
        write_atomically(path, file.getvalue())
