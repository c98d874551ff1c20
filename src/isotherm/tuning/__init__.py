"""Find the temperature a model does best at: over the scale of all layers, over the length, and by layer or head.

>>> import isotherm
>>> tuned = isotherm.tune(model, text, tokenizer=tokenizer, lengths=[512, 2048])              # doctest: +SKIP
>>> tuned.record.lengths[0].best.factor, tuned.record.lengths[0].best.worth                    # doctest: +SKIP
"""

import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.checkup.examine import without_gradients
from isotherm.checkup.given import prepare
from isotherm.checkup.implementations import taking_turns
from isotherm.checkup.loading.hub import folder_of
from isotherm.checkup.loading.loaded import Loaded, Progress, listener
from isotherm.checkup.measure import call, look
from isotherm.checkup.wrappers import called
from isotherm.errors import ArgumentError, as_path
from isotherm.language import Language, Text, current
from isotherm.record import to_plain
from isotherm.record.tune import TuneRecord
from isotherm.tuning.documents import Material, reading_of
from isotherm.tuning.knobs import Knobs
from isotherm.tuning.tune import TuneSettings, tuned

__all__ = ["TuneReport", "TuneSettings", "temperature_gradient", "tune"]

MODEL = Text("a torch.nn.Module, a folder or a name on the hub", "torch.nn.Module、文件夹或模型库名称")
ONE_NUMBER = Text("a function that makes one number of the model's output", "由模型输出得到一个数的函数")
LENGTHS = Text("whole numbers from 2 on", "不小于 2 的整数")


class TuneReport:
    """What `tune` found: `record` is all of it as plain data."""

    def __init__(self, record: TuneRecord) -> None:
        self.record = record

    def to_json(self, path: str | Path | None = None) -> str:
        """The record as a JSON document. With `path`, also write it there, whole or not at all."""
        from isotherm.report.files import write_atomically

        text = json.dumps(to_plain(self.record), ensure_ascii=False, indent=1)
        if path is not None:
            write_atomically(as_path(path), text + "\n")
        return text

    def to_html(self, path: str | Path, language: Language | None = None) -> Path:
        """Write one self-contained page."""
        from isotherm.report.tune.page import write_html

        write_html(self.record, as_path(path), language)
        return Path(path)

    def __str__(self) -> str:
        """What the terminal shows, in the current language."""
        from rich.console import Console

        from isotherm.report.tune import terminal

        text = io.StringIO()
        terminal.show(self.record, Console(file=text, color_system=None, force_jupyter=False), current())
        return text.getvalue().rstrip("\n")


def tune(
    model: nn.Module | str | os.PathLike[str],
    text: str,
    *,
    lengths: Sequence[int] = (256,),
    settings: TuneSettings | None = None,
    tokenizer: Any = None,
    by_line: bool = False,
    progress: Progress | None = None,
) -> TuneReport:
    """Find the factor on the scale in force with which `model` predicts held-out text best, at each of `lengths` tokens.

    - `settings` (`isotherm.tuning.TuneSettings`): the task, how many documents, which layers, and whether each layer or head
      gets a factor of its own.
    - `tokenizer`: reads the text: one of transformers, or a function that returns ids. The default is the model's own.
    - `by_line`: each line is a document, cut to the length; else documents are windows of the whole text.
    - `progress`: called with a sentence and the fraction done.

    The model is left bit for bit as it was. `isotherm.apply` and `isotherm.write` put a factor to use.
    """
    if not lengths or not all(type(length) is int and length >= 2 for length in lengths):
        raise ArgumentError("lengths", LENGTHS, got=repr(lengths)[:60])
    told = listener(progress)
    loaded = _loaded(model, told)
    material = Material("text", text, reading_of(loaded, tokenizer), "lines" if by_line else "windows")
    return TuneReport(tuned(loaded, material, tuple(lengths), settings or TuneSettings(), told))


def temperature_gradient(model: nn.Module, batch: Any, loss: Callable[[Any], Tensor]) -> dict[str, Tensor]:
    """∂loss/∂ln scale of each attention layer's heads, by the layer's name: one forward and one backward pass.

    `batch` is as `isotherm.check` takes it; `loss` makes one number of the model's output. Below 0 the loss falls if a head
    gets sharper, above 0 if it gets softer. Weights get no gradient.

    >>> isotherm.temperature_gradient(model, batch, lambda output: output.loss)          # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", Text("a torch.nn.Module", "一个 torch.nn.Module"), got=type(model).__name__)
    prepared = prepare(Loaded(model, called(model), "python", folder_of(model)), batch)
    with taking_turns(model):
        captures = without_gradients(lambda: look(model, prepared)).captures
        with Knobs(model, captures, prepared, ()) as knobs:
            leaves = knobs.leaves()
            with torch.enable_grad():
                number = loss(call(model, prepared))
            if not isinstance(number, Tensor) or number.numel() != 1:
                raise ArgumentError("loss", ONE_NUMBER, got=type(number).__name__)
            gradients = torch.autograd.grad(number.sum(), leaves, allow_unused=True)
    found = (torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, gradients, strict=True))
    return dict(zip(knobs.names, (one.detach() for one in found), strict=True))


def _loaded(model: nn.Module | str | os.PathLike[str], progress: Progress) -> Loaded:
    from isotherm.checkup.load import Loading, load

    if isinstance(model, str | os.PathLike):
        return load(str(os.fspath(model)), Loading(), progress)
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", MODEL, got=type(model).__name__)
    return Loaded(model, called(model), "python", folder_of(model))
