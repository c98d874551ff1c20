"""The atlas of scale rules as sentences and numbers."""

from dataclasses import dataclass

from isotherm.language import Text


@dataclass(frozen=True)
class RuleLine:
    """One rule of the atlas. `fold` is a letter, `acts` says what it means; `example` is the rule as it is typed."""

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
    """One rule, or a product of rules: its factors and, where it is one number, its multiplier over d (rows) and n."""

    name: str
    rules: tuple[RuleLine, ...]
    dimensions: tuple[int, ...]
    lengths: tuple[int, ...]
    multiplier: tuple[tuple[float | None, ...], ...]
