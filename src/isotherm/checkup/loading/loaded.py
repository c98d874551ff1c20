"""What loading is told, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args

from torch import nn

from isotherm.checkup.weights import Weights
from isotherm.errors import ArgumentError, InputError, shown
from isotherm.language import Text

Precision = Literal["auto", "float32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Progress = Callable[[Text, float], object]
"""Receives what is being done, and the fraction of it that is done."""
EXTRA = Text("install it with: pip install 'isotherm[{extra}]'", "请安装：pip install 'isotherm[{extra}]'")
NEEDED = Text("{package} is needed for this; {how}", "这需要 {package}；{how}")


def nobody(_what: Text, _done: float) -> None:
    """Listen to progress and show nothing."""


def listener(progress: object) -> Progress:
    """Who listens to progress; None means nobody."""
    if progress is not None and not callable(progress):
        raise ArgumentError("progress", Text("a function or None", "一个函数或 None"), got=shown(progress))
    return progress or nobody


@dataclass(frozen=True)
class Loaded:
    """A model and where it came from. `folder` holds its tokenizer, `batch` is what its function returned, `weights` says what
    did not fit when its checkpoint was loaded; each may be None."""

    model: nn.Module
    name: str
    origin: str
    folder: str | None = None
    batch: Any = None
    weights: Weights | None = None


@dataclass(frozen=True)
class Loading:
    """How to load a model.

    `device` "auto" takes the first of CUDA, MPS and CPU that can compute the statistics. `dtype` "auto" keeps the precision of
    the checkpoint. `device_map` "auto" spreads the model over all devices, through accelerate.
    """

    from_config: bool = False
    trust_remote_code: bool = False
    device: str = "cpu"
    dtype: Precision = "auto"
    device_map: str | None = None


def needed(package: str, what: object) -> Any:
    """Import a package that loading `what` needs; if it is not installed, say how to install it."""
    try:
        return import_module(package)
    except ImportError:
        how = Text("install it with: pip install {package}", "请安装：pip install {package}").format(package=package)
        raise InputError(what, NEEDED.format(package=package, how=how)) from None
