"""`isotherm.check(model, batch)`: the check-up, and the report a person reads."""

import html
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from isotherm.checkup.declarations import Given, read_declared
from isotherm.checkup.examine import examine
from isotherm.checkup.given import prepare
from isotherm.checkup.implementations import taking_turns
from isotherm.checkup.loading.hub import folder_of
from isotherm.checkup.loading.loaded import Loaded, Progress, listener
from isotherm.checkup.placement import Device, Dtype, check_placement, loading_of
from isotherm.checkup.subject import ModelSource
from isotherm.checkup.what_if import check_rules
from isotherm.checkup.wrappers import called
from isotherm.errors import ArgumentError, as_language, as_path
from isotherm.language import Language, Text, current
from isotherm.printable import printable
from isotherm.probe.members import parameters_of
from isotherm.record import CheckRecord, Finding, Layer, WhatIf, to_plain
from isotherm.scale import Rule
from isotherm.stats import RowStats

__all__ = ["Report", "check"]

WHAT_IF = ("none", "1/d", "x0.5", "x2")
"""The rules that a check-up replays unless told otherwise."""


class Report:
    """What a check-up found. A notebook shows it as a page.

    `record` is all of it as plain data. `rows` holds the statistics of every softmax row: one `RowStats` [B, Hq, T] for
    each layer. Of long inputs on a GPU it holds a sample of the rows, labelled so; the record's numbers are from all.
    """

    def __init__(self, record: CheckRecord, rows: tuple[RowStats, ...]) -> None:
        self.record, self.rows = record, rows

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a person should act on, gravest first."""
        return self.record.findings

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Each attention layer, in the order they ran.

        `layers[3].curve.gate` is the layer's median gate at each of `layers[3].curve.factors`, and
        `layers[3].curve.heads[7]` the curve of one head.
        """
        return self.record.layers

    @property
    def what_if(self) -> tuple[WhatIf, ...]:
        """The layers replayed under other rules."""
        return self.record.what_if

    @property
    def healthy(self) -> bool:
        """True if there is no error and no warning."""
        return all(finding.severity == "note" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The record in JSON's types."""
        plain: dict[str, Any] = to_plain(self.record)
        return plain

    def to_json(self, path: str | Path | None = None) -> str:
        """The record as a JSON document. With `path`, also write it there, whole or not at all."""
        from isotherm.report.files import write_atomically

        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1)
        if path is not None:
            write_atomically(as_path(path), text + "\n")
        return text

    def to_html(self, path: str | Path, language: Language | None = None) -> Path:
        """Write one self-contained page."""
        from isotherm.report.html import write_html

        write_html(self.record, as_path(path), language)
        return Path(path)

    def to_markdown(self, language: Language | None = None) -> str:
        """A summary for a pull request."""
        from isotherm.report.markdown import to_markdown

        return to_markdown(self.record, as_language(language))

    def _repr_html_(self) -> str:
        from isotherm.report.html import to_html

        page = html.escape(to_html(self.record, current()), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:720px;border:0" sandbox="allow-scripts"></iframe>'

    def __str__(self) -> str:
        """What the terminal shows, in the current language."""
        from rich.console import Console

        from isotherm.report import terminal

        text = io.StringIO()
        terminal.show(self.record, Console(file=text, color_system=None, force_jupyter=False), current())
        return text.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        heads, found = sum(layer.heads for layer in self.layers), len(self.findings)
        of_heads = Text("1 head", "1 个头") if heads == 1 else Text("{n} heads", "{n} 个头").format(n=heads)
        of_findings = (
            Text("1 finding", "1 项发现") if found == 1 else Text("{n} findings", "{n} 项发现").format(n=found)
        )
        words = Text("{heads}, {findings}", "{heads}，{findings}").format(heads=of_heads, findings=of_findings)
        return f"<Report {printable(self.record.model.name, 120)}: {words}>"


def check(
    model: nn.Module | str | os.PathLike[str],
    batch: Any = None,
    *,
    tokenizer: Any = None,
    device: Device = None,
    dtype: Dtype = None,
    declared: Given = None,
    what_if: Sequence[str | Rule] = WHAT_IF,
    compare: bool = True,
    rows: int | None = None,
    context: int | None = None,
    detail: bool = True,
    name: str | None = None,
    origin: str = "python",
    progress: Progress | None = None,
) -> Report:
    """Look into every attention layer of `model` while it runs on `batch`, and say what temperature it is at.

    `model` is a module, or what `isotherm check` takes: a folder, a file, or a name on the hub, with `@revision` or without.
    `batch` is a dict of keyword arguments, a sequence of positional ones, one tensor, ids as lists or an array, or a text.
    Without it, a model of transformers or diffusers reads our own passage, picture or sound. The model runs as it is (train or
    eval, in the caller's grad mode), and is left bit for bit as it was found. Several threads may check models at the same
    time; check-ups of one model take turns.

    - `tokenizer`: reads the text: a tokenizer of transformers or tokenizers, or a function that returns ids. The default is
      the model's own, from its folder or the local cache.
    - `device`, `dtype`: where to load a model of that name, and in what precision, as `isotherm check` takes them. A module is
      never moved: they are refused if it is elsewhere.
    - `declared`: what the scale is meant to be: a rule, or a mapping from layer patterns (of names, or an index as text) to
      rules, of which the last match decides. It overrides what the model declares; a departure from it is an error.
    - `what_if`: rules to replay the layers under, as objects or as `isotherm rules` writes them. `()` replays none.
    - `compare`: run the model under its other attention implementations too, and compare.
    - `rows`: measure this many rows of each head instead of all.
    - `context`: predict what a context of this many keys would do to the entropy.
    - `detail`: add each head's histograms, profiles, predicted values and temperature curve to the record.
    - `name`, `origin`: how the report names the model and where its weights came from.
    - `progress`: called with a sentence and the fraction done.

    >>> report = check(model, {"input_ids": ids}, what_if=["none"])          # doctest: +SKIP
    >>> report.findings, report.layers[0].head_stats[3].jacobian_trace.p50       # doctest: +SKIP
    """
    told = listener(progress)
    check_rules(what_if), read_declared(declared)  # before a model is fetched
    _check_counts(rows=(rows, 1), context=(context, 2))
    loaded = _loaded(model, name, origin, told, (device, dtype))
    prepared = prepare(loaded, loaded.batch if batch is None else batch, tokenizer)
    with taking_turns(loaded.model):
        record, measured = examine(
            loaded.model,
            prepared,
            ModelSource(str(name or loaded.name), loaded.origin, loaded.weights),
            declared=declared,
            what_if=what_if,
            compare=compare,
            rows=rows,
            context=context,
            detail=detail,
            progress=told,
        )
    return Report(record, measured)


def _loaded(
    model: nn.Module | str | os.PathLike[str],
    name: str | None,
    origin: str,
    progress: Progress,
    placement: tuple[Device, Dtype],
) -> Loaded:
    """The model as it is, or the one of this name."""
    from isotherm.checkup.load import load  # here, because as a name of this package it would hide the module

    if isinstance(model, str | os.PathLike):
        return load(str(os.fspath(model)), loading_of(*placement), progress)
    if not isinstance(model, nn.Module):
        expected = Text("a torch.nn.Module, a folder or a name on the hub", "torch.nn.Module、文件夹或模型库名称")
        raise ArgumentError("model", expected, got=type(model).__name__)
    # accelerate's hooks bring weights in as they are used
    offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())
    if not offloaded and any(parameter.is_meta for parameter in parameters_of(model)):
        expected = Text("a model with weights", "带有权重的模型")
        raise ArgumentError("model", expected, got=Text("one on the meta device", "meta 设备上的模型"))
    check_placement(model, *placement)
    return Loaded(model, name or called(model), origin, folder_of(model))


def _check_counts(**given: tuple[int | None, int]) -> None:
    """Refuse what is no whole number from the least one on; None is fine."""
    for argument, (number, least) in given.items():
        if number is not None and (type(number) is not int or number < least):
            expected = Text(f"a whole number from {least} on", f"不小于 {least} 的整数")
            raise ArgumentError(argument, expected, got=repr(number))
