"""Which device to compute on, and how much memory there is."""

import os

import torch

from isotherm.checkup.loading.loaded import Loading
from isotherm.errors import ArgumentError
from isotherm.language import Text

CANDIDATES = ("cuda", "mps", "cpu")
"""What `--device auto` tries, in this order."""


def check_device(name: str, argument: str = "--device") -> None:
    """Refuse a device that is not there, or cannot compute the statistics, before a model is loaded for it."""
    if _works(name, torch.float64):
        return
    there = ", ".join(device for device in CANDIDATES if _works(device, torch.float64))
    expected = Text("a device that PyTorch finds here ({there})", "本机上 PyTorch 能用的设备（{there}）").format(
        there=there
    )
    if _works(name, torch.float32):
        expected = Text(
            "a device with float64, which the statistics need, such as cpu", "支持 float64 的设备（统计量需要），如 cpu"
        )
    raise ArgumentError(argument, expected, got=repr(name))


def choose_device(name: str) -> str:
    """The device of that name, or for "auto" the first one that can compute the statistics. Other names are refused."""
    if name == "auto":
        return next(candidate for candidate in CANDIDATES if _works(candidate, torch.float64))
    check_device(name)
    return name


def _works(name: str, dtype: torch.dtype) -> bool:
    try:
        return torch.zeros(1, device=name, dtype=dtype).add(1).device.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, TypeError):
        return False


def check_device_map(loading: Loading) -> None:
    """Refuse a device map that is not "auto", or stands beside an option that it excludes."""
    if loading.device_map is None:
        return
    if loading.device_map != "auto":
        raise ArgumentError("--device-map", Text("'auto'", "'auto'"), got=repr(loading.device_map))
    for option, used in (("--device", loading.device != "auto"), ("--from-config", loading.from_config)):
        if used:
            expected = Text("no {option} beside it", "不与 {option} 同用").format(option=option)
            raise ArgumentError("--device-map", expected, got=loading.device_map)


def memory(device: str, *, spread: bool) -> tuple[int, Text]:
    """The bytes that weights may take, and what has them: this machine, or one GPU. `spread` adds up machine and GPUs."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    here = Text("this machine", "本机")
    if spread:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return machine + sum(_of_gpu(index) for index in range(count)), here
    if torch.device(device).type == "cuda":
        gpu = _of_gpu(torch.device(device).index or 0)
        if gpu < machine:  # weights pass through the machine's memory on their way
            return gpu, Text("{device}", "{device}").format(device=device)
    return machine, here


def _of_gpu(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).total_memory)
