"""The atlas of scale rules as plain data."""

from dataclasses import dataclass

from isotherm.language import Text


@dataclass(frozen=True)
class RuleLine:
    """One rule of the atlas. `fold` is a letter, `acts` its meaning; `example` is the rule as typed."""

    name: str
    formula: str
    fold: str
    acts: Text
    sentence: Text
    citation: str
    config_keys: tuple[str, ...]
    where: tuple[str, ...]
    example: str
    multiplier_at_d64_n1024: float | None


@dataclass(frozen=True)
class RulePage:
    """A rule or a product of rules: its factors, and its multiplier over d (rows) and n where that is one number."""

    name: str
    rules: tuple[RuleLine, ...]
    dimensions: tuple[int, ...]
    lengths: tuple[int, ...]
    multiplier: tuple[tuple[float | None, ...], ...]
