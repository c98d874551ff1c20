"""Losses on held-out text, one number for each document, so that two scales are compared on the same documents.

- **next**: a causal model predicts each next token; nats a token.
- **masked**: a masked model fills in tokens that were replaced, always the same ones; nats a masked token.
- **pairs**: a sentence encoder finds the passage that follows, or the translation beside it, among the others of its group:
  the cross-entropy of cosines at sentence-transformers' temperature, in both directions; nats a pair.

A group of documents runs together, and its losses keep their graph if gradients are on.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.checkup.batch import parameters, place, refuses
from isotherm.checkup.loading.formats import read_object
from isotherm.checkup.loading.loaded import Loaded
from isotherm.checkup.measure import Batch, call
from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.tuning.documents import LEAST, Material

TaskName = Literal["auto", "next", "masked", "pairs"]
TOGETHER, TOGETHER_ON_GPU = 2**12, 2**15
"""Tokens that run together."""
GROUPS = 8
"""At least so many groups, if there are documents for them: a gradient's noise is told from its groups."""
MASKED = 0.15
SHARPNESS = 20.0
"""What cosines are multiplied by (sentence-transformers' MultipleNegativesRankingLoss)."""
CANDIDATES = 64
NO_TASK = Text(
    "one of next, masked, pairs (what {kind} predicts is not known)", "next、masked、pairs 之一（不知 {kind} 预测什么）"
)
TWO_PARTS = Text(
    "an encoder and a decoder together; causal and masked models and encoders can be tuned",
    "编码器与解码器的组合；可调的是因果模型、掩码模型与编码器",
)
NO_MASK = Text("a tokenizer with a mask token", "带掩码词元的分词器")
NO_LOGITS = Text("a model that returns logits of its tokens", "返回各词元 logits 的模型")
NO_STATES = Text("a model that returns one vector for each token", "为每个词元返回一个向量的模型")
POOLING = Text("mean or first-token pooling", "均值或首词元汇聚")


class Task(Protocol):
    """What is predicted. `count` documents of `length` tokens in groups, of which `batch` is an example for the model."""

    name: TaskName
    length: int
    count: int
    scored: int

    @property
    def groups(self) -> Sequence[Any]:
        """The documents, in groups that run together."""

    def batch(self, model: nn.Module) -> Batch:
        """A document as the model reads it."""

    def losses(self, model: nn.Module, group: Any) -> Tensor:
        """The loss of each document of a group."""


def task_of(model: nn.Module, wanted: TaskName) -> TaskName:
    """What the model predicts, told by its class unless it was said."""
    if wanted != "auto":
        return wanted
    kind, config = type(model).__name__, getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(kind, TWO_PARTS)
    if any(word in kind for word in ("CausalLM", "LMHead", "Decoder", "ForConditionalGeneration")):
        return "next"
    if any(word in kind for word in ("MaskedLM", "ForPreTraining", "FillsGaps")):
        return "masked"
    if getattr(model, "main_input_name", None) == "input_ids":
        return "pairs"
    raise ArgumentError("task", NO_TASK.format(kind=kind), got="auto")


def make_task(loaded: Loaded, material: Material, name: TaskName, length: int, most: int, last: int | None) -> Task:
    """The task on documents of this length. Only the `last` tokens of each count, if that is given."""
    model = loaded.model
    if name == "pairs":
        return PairedPassages(loaded, material, length, most)
    if name == "masked":
        return MaskedToken(model, material, length, most, last)
    return NextToken(model, material, length, most, last)


class NextToken:
    """Predict each next token."""

    name: TaskName = "next"

    def __init__(self, model: nn.Module, material: Material, length: int, most: int, last: int | None) -> None:
        documents = material.documents(length, most)
        self.length, self.count = length, len(documents)
        self.scored = min(length - 1, last or length)
        self.groups: Sequence[Tensor] = _grouped(documents.to(place(model)[0]))
        self._keeps = "logits_to_keep" in parameters(model)

    def batch(self, model: nn.Module) -> Batch:
        return _batch(model, self.groups[0][:1])

    def losses(self, model: nn.Module, group: Tensor) -> Tensor:
        keep = {"logits_to_keep": self.scored + 1} if self._keeps else {}
        logits = logits_of(_called(model, group, **keep))[:, -self.scored - 1 : -1]
        return F.cross_entropy(_precise(logits.transpose(1, 2)), group[:, -self.scored :], reduction="none").mean(1)


class MaskedToken:
    """Fill in masked tokens. Which ones is drawn once, from a fixed seed."""

    name: TaskName = "masked"

    def __init__(self, model: nn.Module, material: Material, length: int, most: int, last: int | None) -> None:
        mask = material.reading.mask
        if mask is None:
            raise ArgumentError("tokenizer", NO_MASK, got=None)
        documents = material.documents(length, most)
        first, end = len(material.reading.before), length - len(material.reading.after)
        first = max(first, end - (last or length))
        chance = torch.Generator().manual_seed(0)
        drawn = torch.rand(len(documents), end - first, generator=chance).argsort(1)
        self.length, self.count = length, len(documents)
        self.scored = max(round(MASKED * (end - first)), 1)
        chosen = drawn[:, : self.scored] + first
        answers = documents.gather(1, chosen)
        shown = documents.scatter(1, chosen, mask)
        device = place(model)[0]
        parts = zip(*(_grouped(tensor.to(device), length) for tensor in (shown, chosen, answers)), strict=True)
        self.groups: Sequence[tuple[Tensor, ...]] = list(parts)

    def batch(self, model: nn.Module) -> Batch:
        return _batch(model, self.groups[0][0][:1])

    def losses(self, model: nn.Module, group: tuple[Tensor, ...]) -> Tensor:
        shown, chosen, answers = group
        logits = logits_of(_called(model, shown))
        picked = logits.gather(1, chosen.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        return F.cross_entropy(_precise(picked.transpose(1, 2)), answers, reduction="none").mean(1)


class PairedPassages:
    """Find what belongs to each passage: the second column of the text, or else the passage that follows it."""

    name: TaskName = "pairs"

    def __init__(self, loaded: Loaded, material: Material, length: int, most: int) -> None:
        self.length, device = length, place(loaded.model)[0]
        self._first_token = takes_first_token(loaded)
        first, second = (
            _columns(material, length, most) if material.columns else _passages(material.documents(length, 2 * most))
        )
        self.count = self.scored = len(first)
        size = min(CANDIDATES, max(self.count // 4, 2))
        self.groups: list[tuple[tuple[Tensor, Tensor], ...]] = []
        for start in range(0, self.count - size + 1, size):
            end = start + size if self.count - start >= 2 * size else self.count
            self.groups.append(tuple(_padded(side[start:end], device) for side in (first, second)))
            if end == self.count:
                break

    def batch(self, model: nn.Module) -> Batch:
        ids, seen = self.groups[0][0]
        return _batch(model, ids[:1, : int(seen[0].sum())])

    def losses(self, model: nn.Module, group: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        one, two = (self._embedded(model, *side) for side in group)
        alike = SHARPNESS * one @ two.mT
        answers = torch.arange(len(alike), device=alike.device)
        both = [F.cross_entropy(table, answers, reduction="none") for table in (alike, alike.mT)]
        return (both[0] + both[1]) / 2

    def _embedded(self, model: nn.Module, ids: Tensor, seen: Tensor) -> Tensor:
        """The pooled token vectors, of length 1: [passages, width]."""
        at_once = max(_room(ids) // ids.shape[1], 1)
        found = []
        for part, shown in zip(ids.split(at_once), seen.split(at_once), strict=True):
            states = _called(model, part, attention_mask=shown)
            hidden = states if isinstance(states, Tensor) else getattr(states, "last_hidden_state", None)
            if hidden is None or hidden.dim() != 3:
                raise ArgumentError("task", NO_STATES, got="pairs")
            weights = shown.unsqueeze(-1).to(hidden.dtype)
            pooled = hidden[:, 0] if self._first_token else (hidden * weights).sum(1) / weights.sum(1)
            found.append(F.normalize(_precise(pooled), dim=-1))
        return torch.cat(found)


def logits_of(output: Any) -> Tensor:
    """The logits [B, T, V] in what a model returns."""
    found = (
        output if isinstance(output, Tensor) else getattr(output, "logits", getattr(output, "prediction_logits", None))
    )
    if not isinstance(found, Tensor) or found.dim() != 3:
        raise ArgumentError("task", NO_LOGITS, got=type(output).__name__)
    return found


def takes_first_token(loaded: Loaded) -> bool:
    """Whether the folder of a sentence encoder says that a sentence's vector is its first token's, not the mean."""
    path = Path(loaded.folder or "") / "1_Pooling" / "config.json"
    if loaded.folder is None or not path.is_file():
        return False
    modes = {name for name, on in read_object(path).items() if name.startswith("pooling_mode_") and on is True}
    if modes not in ({"pooling_mode_mean_tokens"}, {"pooling_mode_cls_token"}):
        raise InputError(path, POOLING)
    return modes == {"pooling_mode_cls_token"}


def _batch(model: nn.Module, ids: Tensor) -> Batch:
    return {"input_ids": ids} if "input_ids" in parameters(model) else ids


def _called(model: nn.Module, ids: Tensor, **more: Any) -> Any:
    given = {name: value for name, value in more.items() if not refuses(model, name)}
    if "input_ids" not in parameters(model):
        return call(model, ids)
    if not refuses(model, "use_cache"):
        given["use_cache"] = False
    return call(model, {"input_ids": ids, **given})


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _room(ids: Tensor) -> int:
    return TOGETHER_ON_GPU if ids.is_cuda else TOGETHER


def _grouped(documents: Tensor, length: int | None = None) -> list[Tensor]:
    """Documents in groups of as many as run together, `length` tokens each."""
    together = max(_room(documents) // (length or documents.shape[1]), 1)
    most = max(len(documents) // GROUPS, 1)
    return list(documents.split(min(together, most)))


def _passages(documents: Tensor) -> tuple[list[list[int]], list[list[int]]]:
    """Each second passage follows its first."""
    rows = documents.tolist()
    return rows[0 : len(rows) - 1 : 2], rows[1::2]


def _columns(material: Material, length: int, most: int) -> tuple[list[list[int]], list[list[int]]]:
    """PairedPassages of a text in two columns, cut to a length."""
    reading = material.reading
    sides: tuple[list[list[int]], list[list[int]]] = ([], [])
    room = length - len(reading.before) - len(reading.after)
    for columns in material.columns[:most]:
        for side, text in zip(sides, columns, strict=True):
            side.append([*reading.before, *reading.encode(text)[:room], *reading.after])
    if len(sides[0]) < LEAST:
        raise InputError(material.name, Text("fewer than {n} pairs", "不足 {n} 对").format(n=LEAST))
    return sides


def _padded(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [rows, longest] and which of them are there."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    seen = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
    return ids, seen
