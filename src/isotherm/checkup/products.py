"""How much of a layer's logit spread q·k makes, and how much a bias that is added, such as ALiBi's or T5's for positions.

A scale multiplies q·k alone, so only q·k can be too hot. A bias may be as steep as its author likes.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from isotherm.checkup.heads import heads_of_layers
from isotherm.checkup.looking import MEASURING
from isotherm.checkup.memory import Remarks
from isotherm.checkup.rows import measure
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import Finding

BY_BIAS = Text(
    "{message} The bias that is added makes this; q·k alone spreads by {own:.3g}.",
    "{message}这是由加上的偏置造成的；仅 q·k 的标准差为 {own:.3g}。",
)
IF_MEANT = Text("Nothing, if the bias is meant to be this steep.", "若偏置本应如此陡峭，则无需处理。")
UNKNOWN = Text("{message} How much of this q·k makes is not known: {why}", "{message}其中多少来自 q·k 无从得知：{why}")
NOT_FOLLOWED = Text("these logits could not be described as a multiple of it.", "这些 logits 无法写成它的倍数。")


class Products:
    """The spread that q·k alone gives the logits of each head. It is measured when it is asked for."""

    def __init__(self, captures: Sequence[Capture], rows: int | None, remarks: Remarks) -> None:
        self._captures, self._rows, self._remarks = captures, rows, remarks
        self._known: dict[int, tuple[float, ...] | None] = {}

    def spreads(self, layer: int) -> tuple[float, ...] | None:
        """One number for each head. None if nothing is added to q·k, or if the logits are no multiple of it."""
        if layer not in self._known:
            self._known[layer] = self._spreads(layer)
        return self._known[layer]

    def _spreads(self, layer: int) -> tuple[float, ...] | None:
        capture = self._captures[layer]
        if capture.problem.bias is None or not capture.affine:
            return None
        alone = replace(capture, problem=replace(capture.problem, bias=None))
        doing, total = MEASURING.format(name=capture.name), capture.problem.q.shape[2]
        stats = self._remarks.within_memory(doing, partial(measure, alone), self._rows, total)
        return tuple(head.logit_std or 0.0 for head in heads_of_layers([stats])[0])

    def judged(self, finding: Finding) -> Finding:
        """A finding about a frozen head: a note if a bias alone makes it, a warning if it is not known what does."""
        if finding.code != "frozen-at-init" or finding.layer is None or finding.head is None:
            return finding
        if not self._captures[finding.layer].affine:
            message = UNKNOWN.format(message=finding.message, why=NOT_FOLLOWED)
            return replace(finding, severity="warning", message=message)
        spreads, edge = self.spreads(finding.layer), finding.evidence["freezing"]
        if spreads is None or not isinstance(edge, float):
            return finding
        own = spreads[finding.head]
        evidence = finding.evidence | {"spread_of_products": own}
        if own > edge:
            return replace(finding, evidence=evidence)
        message = BY_BIAS.format(message=finding.message, own=own)
        return replace(finding, severity="note", message=message, advice=IF_MEANT, evidence=evidence)
