"""A trained model finds paired sentences while its scale is multiplied. The whole model runs anew at each factor, so what a
wrong scale does to one layer travels through all that follow.

`pairs.txt` holds our own sentences in threes: a sentence, the same in other words (its pair), and a look-alike that shares its
words but means something else. For each rewording the model has to find the sentence among all sentences and look-alikes: the
nearest by the cosine of mean-pooled embeddings, as its makers compare sentences.
"""

from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.checkup.batch import make_batch
from isotherm.checkup.load import Loaded
from isotherm.lab.interval import interval
from isotherm.probe import probe
from isotherm.record.story import FindingPoint, PairFinding
from isotherm.stats import RowStats

THREES = tuple(
    tuple(block.split("\n"))
    for block in (files(__package__) / "pairs.txt").read_text(encoding="utf-8").strip().split("\n\n")
)
SENTENCES = tuple(sentence for three in THREES for sentence in three)
PARTS = (-8, *range(-6, 7), 8)
"""Factors are d to the power of a twelfth of these: from 1/√d, where the scale becomes 1/d, to √d, where it is gone, and one
step beyond either."""
TOKENS = 64


def factors(d: int) -> tuple[float, ...]:
    """What the scale 1/√d is multiplied by."""
    return tuple(float(d) ** (part / 12) for part in PARTS)


def with_factor(model: nn.Module, factor: float) -> nn.Module:
    """A copy with every layer's q·k multiplied: logits are linear in q, so its projection is."""
    copy = deepcopy(model)
    with torch.no_grad():
        for name, module in copy.named_modules():
            if name.endswith("attention.self.query") and isinstance(module, nn.Linear):
                module.weight.mul_(factor)
                module.bias.mul_(factor)
    return copy


@dataclass(frozen=True)
class SentenceReading:
    """Embeddings [sentences, width], and the mean gate and entropy/ln n of all rows of all heads."""

    embeddings: Tensor
    gate: float
    entropy: float


class Reader:
    """All sentences, tokenised once; those of one length are read together, so none is padded."""

    def __init__(self, loaded: Loaded) -> None:
        by_length: dict[int, list[tuple[int, Tensor]]] = {}
        for place, sentence in enumerate(SENTENCES):
            ids = make_batch(loaded, sentence, TOKENS)["input_ids"]
            by_length.setdefault(ids.shape[1], []).append((place, ids))
        self.groups = [
            ([place for place, _ in group], torch.cat([ids for _, ids in group])) for group in by_length.values()
        ]

    @property
    def tokens(self) -> float:
        """The mean number of tokens of a sentence."""
        return sum(ids.numel() for _, ids in self.groups) / len(SENTENCES)

    def read(self, model: nn.Module) -> SentenceReading:
        """Run the model over all sentences."""
        found: dict[int, Tensor] = {}
        gates, entropies = [], []
        for places, ids in self.groups:
            with torch.no_grad(), probe(model) as seen:
                hidden = model(input_ids=ids).last_hidden_state
            found |= dict(zip(places, hidden.mean(1).double(), strict=True))
            for problem in (capture.problem for capture in seen.captures):
                stats = RowStats.from_logits(problem.scale * problem.q.double() @ problem.k.double().mT)
                gates.append(stats.jacobian_trace.flatten())
                entropies.append(stats.entropy.flatten() / log(ids.shape[1]))
        embeddings = torch.stack([found[place] for place in range(len(SENTENCES))])
        return SentenceReading(embeddings, float(torch.cat(gates).mean()), float(torch.cat(entropies).mean()))


def found_pairs(embeddings: Tensor) -> list[float]:
    """For each pair 1 if the sentence is the candidate nearest to its rewording, else 0."""
    unit = torch.nn.functional.normalize(embeddings, dim=-1).unflatten(0, (-1, 3))
    sentences, reworded, alike = unit.unbind(1)
    nearest = (reworded @ torch.cat([sentences, alike]).mT).argmax(-1)
    return (nearest == torch.arange(len(reworded))).double().tolist()


def measure(loaded: Loaded, at: tuple[float, ...] | None = None) -> PairFinding:
    """The curve over all factors, or over some of them."""
    config: Any = loaded.model.config
    heads, layers = int(config.num_attention_heads), int(config.num_hidden_layers)
    d = int(config.hidden_size) // heads
    reader = Reader(loaded)
    as_is = found_pairs(reader.read(loaded.model).embeddings)
    points = []
    for factor in at or factors(d):
        reading = reader.read(with_factor(loaded.model, factor))
        found = found_pairs(reading.embeddings)
        share, change = interval(found), interval([a - b for a, b in zip(found, as_is, strict=True)])
        least, most = max(share.low, 0.0), min(share.high, 1.0)
        points.append(
            FindingPoint(
                factor, share.mean, least, most, change.mean, change.low, change.high, reading.gate, reading.entropy
            )
        )
    return PairFinding(loaded.name, d, layers, heads, len(THREES), 2 * len(THREES), reader.tokens, tuple(points))
