"""Open a snapshot: q and k of one attention call, saved while a model trained, as a model that makes this call again."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.checkup.loading.loaded import Loaded
from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.printable import printable

SCHEMA = "isotherm.snapshot/1"
NOT_A_SNAPSHOT = Text("not a snapshot of schema {schema}", "不是 {schema} 格式的快照").format(schema=SCHEMA)
MOST_BYTES = 2**31


class _Again(nn.Module):
    """Attention with the scale, mask, bias and cap of the call."""

    def __init__(self, about: dict[str, Any], mask: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.about, self.mask, self.bias = about, mask, bias

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scale, cap = float(self.about["scale"]), self.about["softcap"]
        added = self.bias
        if self.mask is not None:
            hidden = torch.zeros(self.mask.shape, dtype=q.dtype).masked_fill(~self.mask, -torch.inf)
            added = hidden if added is None else added + hidden
        if cap is None:
            return F.scaled_dot_product_attention(q, k, k, attn_mask=added, scale=scale)
        scores = cap * torch.tanh(q @ k.transpose(-1, -2) * scale / cap)
        return (scores if added is None else scores + added).softmax(-1) @ k


class _Model(nn.Module):
    """A model in which the module is where it was."""

    def __init__(self, name: str, again: _Again) -> None:
        super().__init__()
        *path, last = [part for part in name.split(".") if part] or ["attention"]
        place: nn.Module = self
        for part in path:
            inner = nn.Module()
            place.add_module(part, inner)
            place = inner
        place.add_module(last, again)
        self._again = [again]  # no second name for it

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self._again[0](q, k)


def open_snapshot(path: Path, origin: str) -> Loaded:
    """The model and its batch. An `InputError` if the file is no snapshot."""
    try:
        with zipfile.ZipFile(path) as listed:
            if sum(entry.file_size for entry in listed.infolist()) > MOST_BYTES:
                raise InputError(path, NOT_A_SNAPSHOT)
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            arrays = {name: torch.from_numpy(file[name]) for name in ("q", "k", "mask", "bias") if name in file}
        q, k = arrays["q"], arrays["k"]
        fits = q.dim() == k.dim() == 4 and q.shape[0] == k.shape[0] == 1 and q.shape[3] == k.shape[3]
        if about["schema"] != SCHEMA or not fits or q.shape[1] % k.shape[1]:
            raise InputError(path, NOT_A_SNAPSHOT)
        model = _Model(str(about["module"]), _Again(about, arrays.get("mask"), arrays.get("bias")))
        name = f"{printable(str(about['model']), 60)} · {printable(str(about['module']), 60)} · {int(about['step'])}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(path, NOT_A_SNAPSHOT) from error
    return Loaded(model.eval(), name, origin, None, (q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)))
