"""Where a model is, or should be loaded to, and in what precision, as Python's `check` is told."""

from typing import cast

import torch
from torch import nn

from isotherm.checkup.loading.device import check_device
from isotherm.checkup.loading.loaded import PRECISIONS, Loading, Precision
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.record.plain import one_of

Device = str | torch.device | None
Dtype = str | torch.dtype | None
ELSEWHERE = Text(
    "that of the module ({here}), since check leaves a module as it is; change it first: model.to({wanted})",
    "与模块一致（{here}），因为 check 不改动模块；请先自行更改：model.to({wanted})",
)


def loading_of(device: Device, dtype: Dtype) -> Loading:
    """How to load a model for these. Without them: on the first device that can, in the checkpoint's precision."""
    if device is not None and str(device) != "auto":
        check_device(str(device), "device")
    precision = "auto" if dtype is None else str(dtype).removeprefix("torch.")
    one_of("dtype", precision, PRECISIONS)
    return Loading(device="auto" if device is None else str(device), dtype=cast("Precision", precision))


def check_placement(model: nn.Module, device: Device, dtype: Dtype) -> None:
    """Refuse a device or precision that a module's floating point parameters do not have."""
    if device is dtype is None:
        return
    parameters = [one for one in model.parameters() if one.is_floating_point()]
    if device is not None and str(device) != "auto":
        check_device(str(device), "device")
        wanted = torch.device(device)
        here = sorted({str(one.device) for one in parameters if not _is_at(one.device, wanted)})
        if here:
            raise _elsewhere("device", here, repr(str(wanted)))
    if dtype is not None and str(dtype) != "auto":
        one_of("dtype", name := str(dtype).removeprefix("torch."), PRECISIONS)
        here = sorted({str(one.dtype) for one in parameters if str(one.dtype) != f"torch.{name}"})
        if here:
            raise _elsewhere("dtype", here, f"torch.{name}")


def _is_at(device: torch.device, wanted: torch.device) -> bool:
    return device.type == wanted.type and wanted.index in (None, device.index)


def _elsewhere(argument: str, here: list[str], wanted: str) -> ArgumentError:
    return ArgumentError(argument, ELSEWHERE.format(here=", ".join(here), wanted=wanted), got=wanted.strip("'"))
