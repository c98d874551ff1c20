"""The atlas as plain records, for the terminal and for JSON."""

from isotherm.errors import ArgumentError
from isotherm.record import RuleLine, RulePage
from isotherm.scale.registry import ATLAS, Entry, find, parse
from isotherm.scale.rule import value

DIMENSIONS = (32, 64, 128, 256)
LENGTHS = (128, 1024, 8192, 65536)


def atlas() -> tuple[RuleLine, ...]:
    """Every rule, in the order of the atlas."""
    return tuple(_line(entry) for entry in ATLAS.values())


def explain(name: str) -> RulePage:
    """A rule given by name or in the form `parse` reads. An unknown name raises an `ArgumentError` with the nearest ones."""
    entry = _named(name)
    if entry is not None and entry.example is None:
        return RulePage(entry.name, (_line(entry),), DIMENSIONS, LENGTHS, ())
    rule = entry.example if entry is not None and entry.example is not None else parse(name)
    grid = tuple(tuple(value(rule, d, n) for n in LENGTHS) for d in DIMENSIONS)
    lines = tuple(_line(ATLAS[factor.name]) for factor in rule.factors if factor.name in ATLAS)
    return RulePage(str(rule), lines, DIMENSIONS, LENGTHS, grid)


def _named(text: str) -> Entry | None:
    """The entry of that name; None for everything else, which `parse` reads or refuses."""
    try:
        return find(text)
    except ArgumentError:
        return None


def _line(entry: Entry) -> RuleLine:
    return RuleLine(
        name=entry.name,
        formula=entry.formula,
        fold=entry.fold.name,
        acts=entry.fold.value,
        sentence=entry.sentence,
        citation=entry.citation,
        config_keys=entry.config_keys,
        where=entry.where,
        example=entry.name if entry.example is None else str(entry.example),
        multiplier_at_d64_n1024=None if entry.example is None else value(entry.example, 64, 1024),
    )
