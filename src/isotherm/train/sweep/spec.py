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
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from isotherm.errors import InputError, IsothermError
from isotherm.language import Text
from isotherm.record.sweep import Axes, Trial
from isotherm.train.sweep.analysis import SWEEP
from isotherm.train.sweep.prepared import fingerprint
from isotherm.train.text import lines
from isotherm.train.trial import check

TOP = ("title", "report", "base", "grid", "quick", "sweep")
BLOCK = ("name", "base", "grid", "quick")
REPORT = {"x": str, "y": str, "series": list, "best": str}
MATCH = "match"
"""As `init`: the gain at which unscaled logits start as spread as under 1/√d, which is d^-¼ on W_q and on W_k."""
FIELDS = {field.name: hint for field, hint in zip(fields(Trial), typing.get_type_hints(Trial).values(), strict=True)}
NUMBERS = [name for name, hint in FIELDS.items() if {int, float} & {hint, *get_args(hint)} and name != "test_lengths"]
"""What can be drawn along."""
TUNED = [name for name in FIELDS if name != "seed"]
"""What can be chosen by its loss; of seeds, that would be luck."""
MEASURES = ("loss", "accuracy")


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


def read_spec(path: str | Path, *, quick: bool = False) -> Spec:
    """Read and understand a specification; every mistake is named with its place and, for a name, the nearest right one."""
    path = Path(path)
    text = "\n".join(lines(path)) + "\n"
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(path, Text("not TOML ({why})", "不是 TOML（{why}）").format(why=error)) from None
    try:
        return _understand(table, text, path, quick=quick)
    except InputError:
        raise
    except IsothermError as error:
        raise InputError(path, error.text) from error


def _understand(table: dict[str, Any], text: str, path: Path, *, quick: bool) -> Spec:
    _known(path, "", table, TOP)
    blocks = table.get("sweep", [{}])
    if not blocks or not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise InputError(path, Text("sweep: expected [[sweep]] tables", "sweep：应为 [[sweep]] 表"))
    common, quicker = _part(path, "", table)
    found = []
    for index, block in enumerate(blocks):
        place = f"sweep[{index}]" if "sweep" in table else ""
        _known(path, place, block, BLOCK)
        own, own_quicker = _part(path, place, block) if place else ({}, {})
        values = {**common, **own, **(quicker if quick else {}), **(own_quicker if quick else {})}
        found.append((str(block.get("name", "")), tuple(_expand(path, place, values))))
    axes = _axes(
        path, _table(path, "report", table.get("report", {})), [trial for _, trials in found for trial in trials]
    )
    return Spec(str(table.get("title", path.stem)), axes, tuple(found), text, path.parent, quick)


def _part(path: Path, place: str, table: Mapping[str, Any]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Each field's values, from base (one) and grid (several); and those quick puts in their place (one or several)."""
    values: dict[str, dict[str, list[Any]]] = {}
    for name in ("base", "grid", "quick"):
        where = f"{place}.{name}".lstrip(".")
        part = _table(path, where, table.get(name, {}))
        _known(path, where, part, FIELDS)
        values[name] = {}
        for field, given in part.items():
            several = name != "base" and _is_list(field, given)
            if name == "grid" and not several:
                expected = Text("{where}.{field}: expected a list, not empty", "{where}.{field}：应为非空列表")
                raise InputError(path, expected.format(where=where, field=field))
            checked = [_value(path, f"{where}.{field}", field, one) for one in (given if several else [given])]
            values[name][field] = checked
    if twice := sorted(values["base"].keys() & values["grid"].keys()):
        both = Text("{name} is in both base and grid", "{name} 同时出现在 base 与 grid 中").format(name=twice[0])
        raise InputError(path, both)
    return {**values["base"], **values["grid"]}, values["quick"]


def _table(path: Path, where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(path, Text("{where}: expected a table", "{where}：应为表").format(where=where))
    return given


def _is_list(field: str, given: Any) -> bool:
    """Whether this is several values of the field: for lengths to test, a list of lists."""
    if not isinstance(given, list) or not given:
        return False
    return field != "test_lengths" or isinstance(given[0], list)


def _value(path: Path, where: str, field: str, given: Any) -> Any:
    """One value, of the field's type."""
    hint = FIELDS[field]
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if field == "init" and given == MATCH:
        return MATCH
    if field == "test_lengths" and isinstance(given, list) and all(type(one) is int for one in given):
        return tuple(given)
    if float in kinds and type(given) in (int, float):
        return float(given)
    if type(given) in kinds:
        return given
    names = " | ".join(kind.__name__ for kind in kinds if kind is not types.NoneType)
    expected = Text("{where}: expected {kind}, got {got}", "{where}：应为 {kind}，实为 {got}")
    raise InputError(path, expected.format(where=where, kind=names, got=repr(given)))


def _expand(path: Path, place: str, values: Mapping[str, list[Any]]) -> Iterable[Trial]:
    """Every combination, in the order written; a corpus gets its fingerprint, so that a changed text is another trial."""
    for combination in itertools.product(*values.values()):
        given = dict(zip(values, combination, strict=True))
        matched = given.get("init") == MATCH
        if given.get("corpus") is not None:
            given["corpus"] = f"{given['corpus']}@{fingerprint(path.parent / given['corpus'])}"
        try:
            trial = Trial(**{**given, "init": 1.0} if matched else given)
            yield check(Trial(**{**given, "init": trial.d**-0.25}) if matched else trial)
        except IsothermError as error:
            where = (
                Text("{place}: {why}", "{place}：{why}").format(place=place, why=error.text) if place else error.text
            )
            raise InputError(path, where) from error


def _axes(path: Path, report: dict[str, Any], trials: list[Trial]) -> Axes:
    _known(path, "report", report, REPORT)
    for name, given in report.items():
        if not isinstance(given, REPORT[name]):
            expected = Text("report.{name}: expected {kind}", "report.{name}：应为 {kind}")
            raise InputError(path, expected.format(name=name, kind=REPORT[name].__name__))
    varying = [name for name in FIELDS if len({getattr(trial, name) for trial in trials}) > 1 and name != "seed"]
    numeric = [name for name in ("lr", "head_dim", "width", "init", "layers") if name in varying]
    longer = any(trial.test_lengths for trial in trials)
    x = report.get("x", "length" if longer else numeric[0] if numeric else "step")
    y, best = report.get("y", "loss"), report.get("best")
    apart = [name for name in varying if name not in ("task", "corpus", x, best)]
    series = report.get("series", apart or ["rule"])
    _known(path, "report.x", [x], ("step", *NUMBERS))
    _known(path, "report.y", [y], MEASURES)
    _known(path, "report.series", series, FIELDS if series != [SWEEP] else [SWEEP])
    _known(path, "report.best", [] if best is None else [best], TUNED)
    return Axes(x, y, tuple(series), best)


def _known(path: Path, where: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that is not known, and suggest the nearest."""
    known = list(known)
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = (
                Text(" (did you mean {near}?)", "（是否要写 {near}？）").format(near=near[0])
                if near
                else Text(" (known: {names})", "（可用：{names}）").format(names=", ".join(known))
            )
            what = f"{where}: {name}" if where else name
            raise InputError(
                path, Text("{what} is not known{hint}", "不认识 {what}{hint}").format(what=what, hint=hint)
            )
