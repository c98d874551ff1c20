"""A folder's safetensors files: which tensor is which parameter, and how to change some numbers in place.

Only the bytes of the changed tensors are written. Everything else in a file stays as it is: the other tensors, their order, the
metadata. Dtype and shape of a changed tensor stay too.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isotherm.checkup.loading.formats import read_object
from isotherm.errors import InputError
from isotherm.language import Text

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
INDEX = "model.safetensors.index.json"
NO_FILES = Text(
    "no weights in safetensors here; load the model and save it with save_pretrained first",
    "这里没有 safetensors 格式的权重；请先加载模型并用 save_pretrained 保存",
)
NOT_STORED = Text(
    "{parameter} is not stored as one tensor of floating-point numbers (weights that are quantised, or made of others when they"
    " are loaded, cannot be changed)",
    "{parameter} 未存为一个浮点张量（量化的权重，或加载时由其他张量合成的权重，无法修改）",
)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: where its bytes are."""

    name: str
    file: Path
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    start: int
    stop: int

    def read(self) -> Tensor:
        """The tensor."""
        assert self.dtype is not None
        with self.file.open("rb") as file:
            file.seek(self.start)
            data = bytearray(file.read(self.stop - self.start))
        return torch.frombuffer(data, dtype=self.dtype).view(self.shape)

    def write(self, tensor: Tensor, folder: Path) -> None:
        """Write other numbers to the file of this name in another folder."""
        data = tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
        with (folder / self.file.name).open("r+b") as file:
            file.seek(self.start)
            file.write(data)


def stored(folder: Path) -> list[Stored]:
    """Every tensor of a folder's safetensors files, as its index lists them."""
    if (folder / INDEX).is_file():
        names = sorted(set(read_object(folder / INDEX)["weight_map"].values()))
    else:
        names = ["model.safetensors"] if (folder / "model.safetensors").is_file() else []
    if not names:
        raise InputError(folder, NO_FILES)
    return [one for name in names for one in _in_file(folder / name)]


def _in_file(path: Path) -> Iterator[Stored]:
    """Read the header, which safetensors has checked already."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = (8 + size + offset for offset in entry["data_offsets"])
            yield Stored(name, path, DTYPES.get(entry["dtype"]), tuple(entry["shape"]), start, stop)


def find(parameter: str, value: Tensor, tensors: Iterable[Stored]) -> Stored:
    """The stored tensor that a parameter was loaded from: the same numbers, and the name that is most alike."""
    alike = [one for one in tensors if one.dtype is not None and one.shape == tuple(value.shape)]
    for one in sorted(alike, key=lambda one: -_likeness(one.name, parameter)):
        if torch.equal(one.read().to(value.dtype), value.detach().cpu()):
            return one
    raise InputError(parameter, NOT_STORED.format(parameter=parameter))


def _likeness(one: str, other: str) -> int:
    """How many parts two names have in common, counted from their ends."""
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    count = 0
    for a, b in pairs:
        if a != b:
            break
        count += 1
    return count
