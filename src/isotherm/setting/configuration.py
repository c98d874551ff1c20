"""Rules that a model's own configuration can express: then they are written there, and the weights stay as they are."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from isotherm.checkup.loading.formats import read_object
from isotherm.checkup.ways import POWERS
from isotherm.scale import Llama4Temperature, LongRoPE, Ministral3Temperature, Rule, YaRN
from isotherm.setting.wanted import Request

ROPE = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class NewValue:
    """A value of config.json: the keys that lead to it, and what it becomes."""

    keys: tuple[str, ...]
    value: float | bool

    def __str__(self) -> str:
        return f"{'.'.join(self.keys)} = {json.dumps(self.value)}"


def expressed(
    model: nn.Module, folder: Path, requests: Sequence[Request], factors: Mapping[int, float | Tensor], layers: int
) -> tuple[NewValue, ...]:
    """What to write into the configuration for one rule for every layer; nothing if it has no key for it. Whether the model
    does then what it should is for a forward to show."""
    if len(requests) != 1 or requests[0].pattern != "*" or requests[0].heads is not None:
        return ()
    rule = requests[0].what
    numbers = {factor for factor in factors.values() if not isinstance(factor, Tensor)}
    if isinstance(rule, Tensor) or len(factors) != layers or len(numbers) != 1:
        return ()
    (factor,) = numbers
    described = read_object(folder / "config.json")
    by_query = [part for part in rule.factors if part.per_query]
    if by_query:
        return _temperature(described, by_query[0]) if len(by_query) == 1 and factor == 1 else ()
    if any(isinstance(part, YaRN | LongRoPE) for part in rule.factors) and not rule.sets_scale:
        return _stretched(described, factor)
    return next(_scales(getattr(model, "config", None), described, factor), ()) if rule.sets_scale else ()


def _scales(config: Any, described: dict[str, Any], factor: float) -> Iterator[tuple[NewValue, ...]]:
    """The key that sets the scale, in the configuration or in one inside it. The file may lack it: a class has defaults."""
    inner = [((name,), getattr(config, name, None)) for name, value in described.items() if isinstance(value, dict)]
    for keys, one in [((), config), *inner]:
        for key, power in POWERS.items():
            value = getattr(one, key, None)
            if type(value) in (int, float) and value:
                yield (NewValue((*keys, key), _whole(value * factor**power)),)


def _whole(number: float) -> float:
    """A whole number as such: some classes take no other."""
    return round(number) if abs(number - round(number)) < 1e-6 * abs(number) else number


def _stretched(described: dict[str, Any], factor: float) -> tuple[NewValue, ...]:
    """The attention factor of a stretched rotary embedding, which multiplies q and k: the logits by its square."""
    for key in ROPE:
        rope = described.get(key)
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
        if isinstance(rope, dict) and kind == "yarn" and rope.get("factor"):
            present = rope.get("attention_factor") or 0.1 * log(rope["factor"]) + 1
            return (NewValue((key, "attention_factor"), present * factor**0.5),)
    return ()


def _temperature(described: dict[str, Any], rule: Rule) -> tuple[NewValue, ...]:
    """A temperature that grows with the position, in the architectures that have one."""
    if isinstance(rule, Llama4Temperature) and "attn_temperature_tuning" in described:
        values = {"attn_temperature_tuning": True, "floor_scale": rule.floor_scale, "attn_scale": rule.attn_scale}
        return tuple(NewValue((key,), value) for key, value in values.items())
    for key in ROPE:
        rope = described.get(key)
        if isinstance(rule, Ministral3Temperature) and isinstance(rope, dict) and "llama_4_scaling_beta" in rope:
            length = rope.get("original_max_position_embeddings")
            if length == rule.original_length:
                return (NewValue((key, "llama_4_scaling_beta"), rule.beta),)
    return ()


def write_values(folder: Path, values: Sequence[NewValue]) -> None:
    """Write values into a folder's config.json."""
    path = folder / "config.json"
    described = read_object(path)
    for one in values:
        place = described
        for key in one.keys[:-1]:
            place = place.setdefault(key, {})
        place[one.keys[-1]] = one.value
    path.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
