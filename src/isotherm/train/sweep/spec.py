"""A sweep as a person writes it: values in `[base]`, lists in `[grid]`, every combination of the lists is one trial.

```toml
title = "Which rule takes which learning rate?"
[report]
x = "lr"                      # what is drawn along
series = ["rule"]             # one line for each
[base]
task = "copy"
[grid]
rule = ["none", "1/sqrt(d)"]
lr = [1e-3, 1e-2]
seed = [0, 1, 2]
[quick]                       # what --quick puts in their place
steps = 50
seed = [0]
[[sweep]]                     # several parts, each with a base, grid and quick of its own beside the common ones
name = "wide"
base = { width = 256 }
```
"""

import itertools
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, get_args

from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.language import Text
from isotherm.record.files import checked
from isotherm.record.plain import from_plain, known, one_of, short
from isotherm.record.sweep import Axes, Trial
from isotherm.train.sweep.analysis import SWEEP
from isotherm.train.sweep.prepared_corpus import fingerprint
from isotherm.train.sweep.trials import check
from isotherm.train.text_files import read_toml

MATCH = "match"
"""As `init`: the gain at which unscaled logits start as spread as under 1/√d, which is d^-¼ on W_q and on W_k."""
FIELDS = typing.get_type_hints(Trial)
NUMBERS = [name for name, hint in FIELDS.items() if {int, float} & {hint, *get_args(hint)} and name != "test_lengths"]
"""What can be drawn along."""
TUNED = [name for name in FIELDS if name != "seed"]
"""What can be chosen by its loss; of seeds, that would be luck."""
MEASURES = ("loss", "accuracy")
MOST_TRIALS = 100_000
Values = dict[str, list[Any]]
"""Each field's values."""


@dataclass(frozen=True)
class Spec:
    """A sweep, understood: its trials by block, what to draw, and the text it came from."""

    title: str
    axes: Axes
    blocks: tuple[tuple[str, tuple[Trial, ...]], ...]
    text: str
    root: Path
    quick: bool

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial once."""
        return tuple(dict.fromkeys(trial for _, trials in self.blocks for trial in trials))


@dataclass(frozen=True)
class _Report:
    x: str | None = None
    y: str = "loss"
    series: tuple[str, ...] | None = None
    best: str | None = None


@dataclass(frozen=True)
class _Part:
    base: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Block(_Part):
    name: str = ""


@dataclass(frozen=True)
class _Written(_Part):
    title: str | None = None
    report: _Report = field(default_factory=_Report)
    sweep: tuple[_Block, ...] = (_Block(),)


def read_spec(path: str | Path, *, quick: bool = False) -> Spec:
    """Read and understand a specification; every mistake is named with its place and, for a name, the nearest right one."""
    path = Path(path)
    table, text = read_toml(path)
    try:
        return _understand(checked(_Written, path, table, strict=True), text, path, quick=quick)
    except InputError:
        raise
    except IsothermError as error:
        raise InputError(path, error.text) from error


def _understand(written: _Written, text: str, path: Path, *, quick: bool) -> Spec:
    if not written.sweep:
        raise ArgumentError("sweep", Text("[[sweep]] tables", "[[sweep]] 表"), got="[]")
    common, quicker = _values(written, "")
    blocks = []
    for index, block in enumerate(written.sweep):
        own, own_quicker = _values(block, f"sweep[{index}].")
        values = {**common, **own, **(quicker if quick else {}), **(own_quicker if quick else {})}
        try:
            blocks.append((block.name, tuple(_expand(values, path.parent))))
        except ArgumentError as error:
            if block == _Block():
                raise
            raise ArgumentError(f"sweep[{index}].{error.argument}", error.expected, got=error.got) from error
    axes = _axes(written.report, [trial for _, trials in blocks for trial in trials])
    title = path.stem if written.title is None else written.title
    return Spec(title, axes, tuple(blocks), text, path.parent, quick)


def _values(block: _Part, place: str) -> tuple[Values, Values]:
    """Each field's values, from base (one) and grid (several); and those quick puts in their place (one or several)."""
    found: dict[str, Values] = {}
    for name, part in (("base", block.base), ("grid", block.grid), ("quick", block.quick)):
        known(part, FIELDS, f"{place}{name}")
        found[name] = {}
        for key, given in part.items():
            several = name != "base" and _is_list(key, given)
            if name == "grid" and not several:
                raise ArgumentError(f"{place}{name}.{key}", Text("a list, not empty", "非空列表"), got=short(given))
            found[name][key] = [_value(place + name, key, one) for one in (given if several else [given])]
    if twice := sorted(found["base"].keys() & found["grid"].keys()):
        raise IsothermError(
            Text("{name} is in both base and grid", "{name} 同时出现在 base 与 grid 中").format(name=twice[0])
        )
    return {**found["base"], **found["grid"]}, found["quick"]


def _is_list(key: str, given: Any) -> bool:
    """Whether this is several values of the field: for lengths to test, a list of lists."""
    if not isinstance(given, list) or not given:
        return False
    return key != "test_lengths" or isinstance(given[0], list)


def _value(where: str, key: str, given: Any) -> Any:
    return MATCH if key == "init" and given == MATCH else getattr(from_plain(Trial, {key: given}, where), key)


def _expand(values: Mapping[str, list[Any]], root: Path) -> Iterable[Trial]:
    """Every combination, in the order written; a corpus gets its fingerprint, so that a changed text is another trial."""
    if prod(map(len, values.values())) > MOST_TRIALS:
        most = Text("lists with at most {n} combinations", "组合数不超过 {n} 的列表").format(n=MOST_TRIALS)
        raise ArgumentError("grid", most, got=prod(map(len, values.values())))
    for combination in itertools.product(*values.values()):
        given = dict(zip(values, combination, strict=True))
        matched = given.get("init") == MATCH
        if given.get("corpus") is not None:
            given["corpus"] = f"{given['corpus']}@{fingerprint(root / given['corpus'])}"
        trial = check(Trial(**{**given, "init": 1.0} if matched else given))
        yield check(Trial(**{**given, "init": trial.d**-0.25})) if matched else trial


def _axes(report: _Report, trials: list[Trial]) -> Axes:
    varying = [name for name in FIELDS if len({getattr(trial, name) for trial in trials}) > 1 and name != "seed"]
    numeric = [name for name in ("lr", "head_dim", "width", "init", "layers") if name in varying]
    longer = any(trial.test_lengths for trial in trials)
    x = report.x or ("length" if longer else numeric[0] if numeric else "step")
    apart = [name for name in varying if name not in ("task", "corpus", x, report.best)]
    series = tuple(apart or ["rule"]) if report.series is None else report.series
    one_of("report.x", x, ("step", *NUMBERS))
    one_of("report.y", report.y, MEASURES)
    for name in series if series != (SWEEP,) else ():
        one_of("report.series", name, FIELDS)
    if report.best is not None:
        one_of("report.best", report.best, TUNED)
    return Axes(x, report.y, series, report.best)
