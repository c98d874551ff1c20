"""Changes to a model: which rows of a parameter, in what words, and how to make them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isotherm.language import Text
from isotherm.probe.frames import plain_name
from isotherm.record import ModelChange

RUNS_NAMED = 4
"""A set of indices that is more runs than this is not named run by run."""
WORDS = {
    "multiply": Text("multiply {what} by {number:.4g}", "将 {what}乘以 {number:.4g}"),
    "add": Text("add {number:.4g} to {what}", "将 {what}加上 {number:.4g}"),
    "set": Text("set {what} to {number:.4g}", "将 {what}设为 {number:.4g}"),
}
CONFIGURATION = Text(
    "set {what} = {number:.4g} in the configuration (every layer that reads it changes)",
    "在配置中设 {what}= {number:.4g}（所有读取它的层都随之改变）",
)
NOUNS = (
    (Text("entry", "个元素"), Text("entries", "个元素")),
    (Text("row", "行"), Text("rows", "行")),
    (Text("column", "列"), Text("columns", "列")),
    (Text("index", "个下标"), Text("indices", "个下标")),
)
"""One and several of what a parameter has: entries (of a vector), rows, columns, indices of any other dimension."""


class Slice(NamedTuple):
    """Indices `start` to `stop` (not included), `step` apart; with `block`, these of every `block` indices."""

    start: int
    stop: int
    step: int = 1
    block: int | None = None


def slices(indices: Sequence[int], width: int) -> list[Slice]:
    """Rising indices below `width` as few slices. None at all if they are more than a sentence can name."""
    first, last = indices[0], indices[-1]
    steps = {b - a for a, b in pairwise(indices)}
    if len(steps) <= 1:
        return [Slice(first, last + 1, *steps)]
    runs = list(_runs(indices))
    block = runs[1].start - first
    repeated = [Slice(run.start + i * block, run.stop + i * block) for run in runs[:1] for i in range(len(runs))]
    if runs == repeated and block * len(runs) == width and runs[0].stop <= block:
        return [Slice(first, runs[0].stop, 1, block)]
    return runs if len(runs) <= RUNS_NAMED else []


def _runs(indices: Sequence[int]) -> Iterator[Slice]:
    for _, group in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        run = [index for _, index in group]
        yield Slice(run[0], run[-1] + 1)


def indices_of(change: ModelChange, size: int) -> Tensor:
    """The indices that a change with an axis means, in a dimension of this size."""
    places = torch.arange(size)
    within = places if change.block is None else places % change.block
    return places[(within >= change.start) & (within < change.stop) & ((within - change.start) % change.step == 0)]


def said(changes: Iterable[ModelChange], dimensions: Callable[[str], int]) -> Text:
    """The changes as one sentence without its full stop. `dimensions` tells how many a parameter has."""
    sentence = None
    for (operation, number, kind), group in groupby(changes, key=lambda one: (one.operation, one.number, one.kind)):
        whats = [_what(change, dimensions) for change in group]
        what = whats[0]
        for i, other in enumerate(whats[1:], 2):
            between = Text("{a} and {b}", "{a}与 {b}") if i == len(whats) else Text("{a}, {b}", "{a}、{b}")
            what = between.format(a=_spaced(what) if i == len(whats) else what, b=other)
        words = CONFIGURATION if kind == "configuration" else WORDS[operation]
        part = words.format(what=_spaced(what), number=number)
        sentence = part if sentence is None else Text("{a}, then {b}", "{a}，再{b}").format(a=sentence, b=part)
    return sentence or Text("", "")


def _spaced(what: Text) -> Text:
    """Chinese has a space after a name and none after a noun."""
    return Text(what.en, f"{what.zh} " if what.zh[-1:].isascii() else what.zh)


def _what(change: ModelChange, dimensions: Callable[[str], int]) -> Text:
    if change.axis is None:
        return Text(change.target, change.target)
    count = dimensions(change.target)
    one, several = NOUNS[0 if count == 1 else 1 + change.axis if count == 2 else 3]
    last = change.stop - 1
    if count > 2:
        inside = Text("dimension {axis} of {name}", "{name} 第 {axis} 维").format(axis=change.axis, name=change.target)
    else:
        inside = Text(change.target, change.target)
    words = {"name": inside, "start": change.start, "last": last, "step": change.step, "block": change.block}
    if change.block is not None and last > change.start:
        text = Text(
            "{noun} {start}–{last} of every {block} of {name}", "{name} 中每 {block} 个里的第 {start}–{last} {noun}"
        )
    elif change.block is not None:
        text = Text("{noun} {start} of every {block} of {name}", "{name} 中每 {block} 个里的第 {start} {noun}")
    elif change.step > 1:
        text = Text(
            "{noun} {start}–{last} of {name} in steps of {step}", "{name} 的第 {start}–{last} {noun}（间隔 {step}）"
        )
    elif last > change.start:
        text = Text("{noun} {start}–{last} of {name}", "{name} 的第 {start}–{last} {noun}")
    else:
        text = Text("{noun} {start} of {name}", "{name} 的第 {start} {noun}")
    return text.format(noun=several if last > change.start else one, **words)


class Members:
    """A model's modules and parameters by name. A shared parameter has several names."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {plain_name(name): module for name, module in model.named_modules()}
        named = model.named_parameters(remove_duplicate=False)
        self.parameters: dict[str, Tensor] = {plain_name(name): tensor for name, tensor in named}


def make(model: nn.Module, changes: Iterable[ModelChange]) -> None:
    """Make changes to a model that nobody else uses. Its parameters are replaced, not written to: another model may share
    them. A shared parameter is replaced everywhere."""
    for change in changes:
        members, (owner, _, leaf) = Members(model), change.target.rpartition(".")
        modules = members.modules
        if change.kind == "configuration":
            for module in modules.values():
                if hasattr(config := getattr(module, "config", None), change.target):
                    setattr(config, change.target, change.number)
        elif change.kind == "attribute":
            vars(modules[owner])[leaf] = change.number
        else:
            old = members.parameters[change.target]
            new = nn.Parameter(_changed(old.detach().clone(), change), requires_grad=old.requires_grad)
            for module in modules.values():
                for name, tensor in module._parameters.items():
                    if tensor is old:
                        module._parameters[name] = new


def _changed(tensor: Tensor, change: ModelChange) -> Tensor:
    part = tensor if change.axis is None else tensor.movedim(change.axis, 0)
    where = ... if change.axis is None else indices_of(change, part.shape[0]).to(tensor.device)
    if change.operation == "multiply":
        part[where] = part[where] * change.number
    elif change.operation == "add":
        part[where] = part[where] + change.number
    else:
        part[where] = change.number
    return tensor
