"""`isotherm.write`: a model's folder with a rule written into it, so that whoever loads it needs no Isotherm."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from isotherm.checkup import check
from isotherm.checkup.changes import Members
from isotherm.checkup.examine import without_gradients
from isotherm.checkup.given import prepare
from isotherm.checkup.implementations import taking_turns
from isotherm.checkup.load import Loaded, Loading, load
from isotherm.checkup.loading.formats import kind_of, path_of, read_object, transformer_part
from isotherm.checkup.measure import Batch, call
from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.record import Finding
from isotherm.setting.applied import batch_for, put
from isotherm.setting.checkpoint import Stored, find, stored
from isotherm.setting.configuration import NewValue, expressed, write_values
from isotherm.setting.fold import Edit, edits
from isotherm.setting.new_folder import check_place, copied
from isotherm.setting.plan import Plan, plan, ran
from isotherm.setting.repair import repairs
from isotherm.setting.wanted import Request, Wanted, Where, read

NEAR = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far the written model's output may be from that of `apply`, as a part of its largest number; 5 % in half precision, where
folded weights are rounded."""
A_FOLDER = Text("a model's folder or a name of the hub", "模型文件夹或模型库名称")
ADAPTER = Text(
    "an adapter, whose base holds the weights: merge it first (merge_and_unload, then save_pretrained)",
    "这是适配器，权重在其基础模型中：请先合并（merge_and_unload，再 save_pretrained）",
)
QUANTISED = Text(
    "its weights are quantised, and a factor cannot be folded into them; write the rule into the weights that it was made from,"
    " then quantise",
    "其权重已量化，无法折入倍数；请先把规则写入量化前的权重，再行量化",
)
APART = Text(
    "the model loaded from the written folder is {gap:.3g} away from what isotherm.apply gives (its largest output is"
    " {size:.3g}), so nothing was written",
    "从写出的文件夹加载的模型与 isotherm.apply 的结果相差 {gap:.3g}（最大输出为 {size:.3g}），因此没有写出任何内容",
)


@dataclass(frozen=True)
class Written:
    """What was written. `folder` is None if there was nothing to do. `weights` are the tensors that were changed, `values` the
    values of the configuration, `difference` the largest distance between an output of the written model and of the original
    under `apply`, `findings` what a check-up finds in the written model. `drawn` says that no text was read: the folder has no
    tokenizer, and the tokens were drawn at random."""

    folder: Path | None
    weights: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    difference: float = 0.0
    findings: tuple[Finding, ...] = ()
    drawn: bool = False

    @property
    def healthy(self) -> bool:
        """True if a check-up finds no error and no warning."""
        return all(finding.severity == "note" for finding in self.findings)


def write(
    model: str | os.PathLike[str],
    rule: Wanted | None = None,
    *,
    out: str | os.PathLike[str],
    layers: Where = None,
    heads: int | Sequence[int] | None = None,
    batch: Any = None,
    force: bool = False,
    loading: Loading = Loading(),  # noqa: B008, it is frozen
) -> Written:
    """Write the folder `out`: `model` with `rule` in its weights or in its configuration.

    `rule`, `layers`, `heads` and `batch` are those of `isotherm.apply`. A rule that sets the scale is written into the
    configuration where the architecture has a key for it; a factor is folded into the weights that make the queries. Without a
    rule, a check-up's findings are repaired: a scale that is not the declared one, logits above 100.

    The folder is loaded afresh and compared with what `apply` gives before it is put in its place. Everything else in the
    model's folder is copied as it is, except the same weights in other formats. `force` replaces a folder that exists.

    >>> isotherm.write("my-model", "x0.5", out="my-cooler-model")      # doctest: +SKIP
    """
    requests = None if rule is None else read(rule, layers, heads)
    spec, target = os.fspath(model), Path(os.fspath(out)).expanduser()
    if (path := path_of(spec)).is_dir():
        check_place(target, path, force=force)
        _part(path, spec)  # both before anything is loaded
    loaded = load(spec, loading)
    copy = Copy(*_source(loaded, spec), target)
    check_place(target, copy.source, force=force)
    prepared, drawn = _batch(loaded, batch)
    if requests is None:
        requests = _repairs(loaded.model, prepared)
    with taking_turns(loaded.model):
        job = _job(loaded.model, prepared, requests, copy.part) if requests else None
        if job is None:
            return Written(None, drawn=drawn)
        if job.values:
            with suppress(InputError):  # the class may not take the value, or not do what it should with it
                return replace(_write(copy, job, loading), drawn=drawn)
            job = replace(job, values=(), changed=_to_write(loaded.model, prepared, job.planned, copy.part))
    del loaded  # the new one may need its memory
    return replace(_write(copy, job, loading), drawn=drawn)


def _batch(loaded: Loaded, batch: Any) -> tuple[Batch, bool]:
    """What to run the model on: the text that `isotherm.check` reads, so that both find the same. And whether it was drawn."""
    try:
        return prepare(loaded, batch), False
    except ArgumentError:
        ids = batch_for(loaded.model) if batch is None else None
        if ids is None:
            raise
        return prepare(loaded, ids), True


def _repairs(model: nn.Module, batch: Batch) -> tuple[Request, ...]:
    return repairs(ran(lambda: check(model, batch, compare=False, detail=False, what_if=())))


@dataclass(frozen=True)
class _Job:
    """What to write: values of the configuration, or tensors with their edits; and what the model must then give on a batch."""

    batch: Batch
    planned: Plan
    asked: list[Tensor]
    values: tuple[NewValue, ...]
    changed: tuple[tuple[Stored, Edit], ...]


def _job(model: nn.Module, batch: Batch, requests: Sequence[Request], part: Path) -> _Job | None:
    """What to write for the requests; None if there is nothing to do."""
    planned = plan(model, batch, requests)
    if not planned.held:
        return None
    values = expressed(model, part, requests, planned.factors, planned.layers)
    asked = _outputs_under(model, batch, planned)
    return _Job(batch, planned, asked, values, () if values else _to_write(model, batch, planned, part))


@dataclass(frozen=True)
class Copy:
    """Folders: what is copied, the part of it that holds the transformer, and where to."""

    source: Path
    part: Path
    target: Path


class _Apart(InputError):
    """The written model does not do what was asked."""


def _source(loaded: Loaded, spec: str) -> tuple[Path, Path]:
    """The model's folder, and the part of it that holds the transformer."""
    path = path_of(spec)
    root = path if path.is_dir() else None if loaded.folder is None else Path(loaded.folder)
    if root is None or path.is_file() or not root.is_dir():
        raise ArgumentError("model", A_FOLDER, got=spec)
    return root, _part(root, spec)


def _part(folder: Path, spec: str) -> Path:
    """The part of a folder that holds the transformer. Refused if its weights cannot be changed."""
    kind = kind_of(folder)
    if kind == "adapter":
        raise InputError(spec, ADAPTER)
    part = folder / transformer_part(folder) if kind == "sentence" else folder
    if (part / "config.json").is_file() and read_object(part / "config.json").get("quantization_config"):
        raise InputError(spec, QUANTISED)
    return part


def _outputs_under(model: nn.Module, batch: Batch, planned: Plan) -> list[Tensor]:
    with put(model, batch, planned):
        return _outputs(model, batch)


def _outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The floating-point tensors that the model returns, without those of a cache."""
    with torch.random.fork_rng():
        result = without_gradients(lambda: call(model, batch))
    plain = {name: result[name] for name in result if name != "past_key_values"} if isinstance(result, dict) else result
    leaves = tree_flatten(plain)[0]
    return [one.detach().cpu() for one in leaves if isinstance(one, Tensor) and one.is_floating_point()]


def _to_write(model: nn.Module, batch: Batch, planned: Plan, part: Path) -> tuple[tuple[Stored, Edit], ...]:
    """Each stored tensor to change, with its edit."""
    asked, values, tensors = edits(model, batch, planned.held), Members(model).parameters, stored(part)
    return tuple((find(one.parameter, values[one.parameter], tensors), one) for one in asked)


def _write(copy: Copy, job: _Job, loading: Loading) -> Written:
    """Write the folder, load it, compare, check, and only then let it take its place."""
    with copied(copy.source, copy.part, copy.target) as folder:
        part = folder / copy.part.relative_to(copy.source)
        for one, edit in job.changed:
            one.write(edit.of(one.read()), part)
        if job.values:
            write_values(part, job.values)
        fresh = load(str(folder), loading)
        difference = _compared(_outputs(fresh.model, job.batch), job.asked, copy.target)
        report = check(fresh.model, job.batch, compare=False, detail=False, what_if=())
    names = tuple(one.name for one, _ in job.changed)
    return Written(copy.target, names, tuple(map(str, job.values)), difference, report.findings)


def _compared(got: Sequence[Tensor], asked: Sequence[Tensor], target: Path) -> float:
    """The largest difference between two models' outputs. Refused if it is more than rounding."""
    largest = 0.0
    for one, other in zip(got, asked, strict=True):
        gap, size = float((one.double() - other.double()).abs().max()), float(other.abs().max())
        if not gap <= NEAR.get(one.dtype, 5e-2) * size:
            raise _Apart(target, APART.format(gap=gap, size=size))
        largest = max(largest, gap)
    return largest
