"""`isotherm.check(model, batch)`: the check-up, and the report a person reads."""

import html
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from isotherm.health import Batch, Examination, Options, Progress, complete, examine
from isotherm.language import Language, Text, current
from isotherm.record import CheckRecord, Finding, Layer, WhatIf, to_plain

__all__ = ["Options", "Report", "check"]


class Report:
    """What a check-up found. `record` is all of it as plain data; a notebook shows it as a page.

    `rows` are the statistics of every single softmax row, a `RowStats` [B, Hq, T] for each layer.
    """

    def __init__(self, examination: Examination) -> None:
        self._measured, self.rows = examination.record, examination.rows

    @cached_property
    def record(self) -> CheckRecord:
        """Everything, with theory's prediction beside each head's measurement."""
        return complete(self._measured, self.rows)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a person should act on, the gravest first."""
        return self._measured.findings

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Each attention layer, in the order they ran."""
        return self.record.layers

    @property
    def what_if(self) -> tuple[WhatIf, ...]:
        """The layers replayed under other rules."""
        return self._measured.what_if

    @property
    def healthy(self) -> bool:
        """No error and no warning."""
        return all(finding.severity == "note" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As JSON's types."""
        plain: dict[str, Any] = to_plain(self.record)
        return plain

    def to_json(self, path: str | Path | None = None) -> str:
        """As a JSON document; written to `path` too, if given, whole or not at all."""
        from isotherm.report.files import write_atomically

        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1)
        if path is not None:
            write_atomically(Path(path), text + "\n")
        return text

    def to_html(self, path: str | Path, language: Language | None = None) -> Path:
        """One self-contained page."""
        from isotherm.report.html import write_html

        write_html(self.record, Path(path), language or current())
        return Path(path)

    def to_markdown(self, language: Language | None = None) -> str:
        """A summary for a pull request."""
        from isotherm.report.markdown import to_markdown

        return to_markdown(self.record, language or current())

    def _repr_html_(self) -> str:
        from isotherm.report.html import to_html

        page = html.escape(to_html(self.record, current()), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:720px;border:0" sandbox="allow-scripts"></iframe>'

    def __repr__(self) -> str:
        record, words = self._measured, Text("{heads} heads, {findings} findings", "{heads} 个头，{findings} 项发现")
        heads = sum(layer.heads for layer in record.layers)
        return f"<Report {record.model.name}: {words.format(heads=heads, findings=len(record.findings))}>"


def check(
    model: nn.Module,
    batch: Batch,
    *,
    options: Options | None = None,
    name: str | None = None,
    origin: str = "python",
    progress: Progress = lambda _what, _done: None,
) -> Report:
    """Look into every attention layer of `model` while it runs on `batch`, and say what temperature it is at.

    `batch` is a dict of keyword arguments, a sequence of positional ones, or one tensor. The model runs as it is
    (train or eval), and is left bit for bit as it was found.

    >>> report = check(model, {"input_ids": ids})          # doctest: +SKIP
    >>> report.findings, report.layers[0].head_stats[3].jacobian_trace.p50       # doctest: +SKIP
    """
    made = name or type(model).__name__
    return Report(examine(model, batch, options or Options(), name=made, origin=origin, progress=progress))
