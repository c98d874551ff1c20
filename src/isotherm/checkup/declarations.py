"""What you say the scale is meant to be: one rule for every layer, or rules for layers by pattern."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from isotherm.errors import ArgumentError, named
from isotherm.language import Text
from isotherm.scale import Rule, parse
from isotherm.scale import value as value_of

Given = str | Rule | Mapping[str, str | Rule] | None
"""A rule as an object or as `isotherm rules` writes it, or a mapping from layer patterns to rules."""
EVERY = "*"
NAMES = 3
"""How many layers an error names."""


@dataclass(frozen=True)
class Declarations:
    """Rules by layer pattern. Of several patterns that match a layer, the last decides."""

    rules: tuple[tuple[str, Rule], ...] = ()

    def at(self, index: int, name: str) -> Rule | None:
        """The rule declared for a layer; None if no pattern matches its name or its index."""
        place = self._decides(index, name)
        return None if place is None else self.rules[place][1]

    def check(self, layers: Sequence[str]) -> None:
        """Refuse a pattern that decides about none of these layers: it is misspelt, or a later one takes all its layers. A rule
        for every layer is fine in a model in which no layer was seen."""
        used = {self._decides(index, name) for index, name in enumerate(layers)}
        for place, (pattern, _) in enumerate(self.rules):
            if place not in used and (layers or pattern != EVERY):
                shown = ", ".join(layers[:NAMES]) + (" …" if len(layers) > NAMES else "")
                expected = Text(
                    "a pattern that decides about a layer (layers: {layers}; of several patterns the last decides)",
                    "能决定某一层的模式（各层：{layers}；多个模式都匹配时以最后一个为准）",
                )
                raise ArgumentError("declared", expected.format(layers=shown or "-"), got=repr(pattern))

    def _decides(self, index: int, name: str) -> int | None:
        matching = [
            place
            for place, (pattern, _) in enumerate(self.rules)
            if fnmatchcase(name, pattern) or pattern == str(index)
        ]
        return matching[-1] if matching else None


def read_declared(given: Given) -> Declarations:
    """Read declarations. Refuses a misspelt rule, one that leaves no softmax rows to measure, and one that says nothing about
    the multiplier of q·k."""
    if given is None:
        return Declarations()
    rules = given if isinstance(given, Mapping) else {EVERY: given}
    return Declarations(tuple((str(pattern), _rule(rule)) for pattern, rule in rules.items()))


def from_words(words: Sequence[str]) -> Mapping[str, str] | None:
    """Read declarations as typed: RULE, or PATTERN=RULE."""
    found: dict[str, str] = {}
    for word in words:
        pattern, equals, rule = word.rpartition("=")
        pattern = pattern.strip() if equals else EVERY
        if not pattern or pattern in found:
            expected = Text("RULE or PATTERN=RULE, each pattern once", "RULE 或 PATTERN=RULE，每个模式一次")
            raise ArgumentError("declared", expected, got=repr(word))
        found[pattern] = rule.strip()
    return found or None


def _rule(given: object) -> Rule:
    with named(scale="declared"):
        rule = parse(given) if isinstance(given, str) else given
    if not isinstance(rule, Rule):
        expected = Text("a rule, or a mapping from layer patterns to rules", "一条规则，或从层名模式到规则的映射")
        raise ArgumentError("declared", expected, got=type(given).__name__)
    if not rule.has_softmax:
        raise ArgumentError("declared", Text("a rule with a softmax", "含有 softmax 的规则"), got=repr(str(rule)))
    if all(part.per_query or value_of(part, 64, 1024) is None for part in rule.factors):  # nothing would be compared
        expected = Text("a rule that multiplies q·k by one number", "把 q·k 乘以一个数的规则")
        raise ArgumentError("declared", expected, got=repr(str(rule)))
    return rule
