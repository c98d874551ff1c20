"""The data of a run: parallel text, plain text or a task, as one batch for each step and some held-out batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from isotherm.errors import InputError, named
from isotherm.language import Text
from isotherm.train import tasks
from isotherm.train.batches import Batch, BatchOrder, Ragged, generator
from isotherm.train.config import PARALLEL, TASKS, Config, DataSettings
from isotherm.train.gettext_corpus import gather
from isotherm.train.parallel_text import Pair, digest, from_files, from_jsonl, from_tsv, share, split
from isotherm.train.text_files import lines
from isotherm.train.tokens import END, FIRST, PAD, START, UNKNOWN
from isotherm.train.vocabulary import Vocabulary

MASKED = 0.15  # of BERT's tokens (Devlin et al. 2019): of these 80 % hidden, 10 % another word, 10 % as they are
PIECE = 2000  # characters; a piece of text is held out as a whole or not at all


class Feed(Protocol):
    """Batches to learn from, one for each step, and batches held out. Both are the same however often they are asked for."""

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""
        ...

    def held_out(self, most: int) -> Iterator[Batch]:
        """The first held-out batches, at most this many."""
        ...


@dataclass(frozen=True)
class TrainingData:
    """A feed, its vocabulary (None for a task) and its size, the sentences held out, and a hash of the data.

    `about` is a sentence for the user: how much data there is.
    """

    feed: Feed
    vocabulary: Vocabulary | None
    size: int
    held_out: tuple[Pair, ...]
    digest: str
    about: Text


def load_training_data(config: Config, vocabulary: Vocabulary | None = None) -> TrainingData:
    """The data of a run. A vocabulary is learned from the part that is not held out, unless one is given."""
    data, run = config.data, config.run
    if data.kind in TASKS:
        made = TaskFeed(
            data, run.seed, max(1, run.batch_tokens // data.length), one_stream=config.model.kind == "decoder"
        )
        with named(vocabulary="data.vocabulary"):
            next(made.held_out(1))
        about = Text("{task}: examples made on the fly", "{task}：样本随训练生成").format(task=data.kind)
        return TrainingData(made, None, data.vocabulary, (), f"{data.kind}/{data.length}/{data.vocabulary}", about)
    if data.kind in PARALLEL:
        return _parallel(data, run.batch_tokens, run.seed, vocabulary)
    return _text(data, run.batch_tokens, run.seed, vocabulary, masked=config.model.kind == "bert")


def read_pairs(data: DataSettings) -> list[Pair]:
    """The parallel text a configuration names."""
    if data.kind == "files":
        return from_files(data.source, data.target)
    if data.kind == "gettext":
        return list(gather(data.packages, data.lang, where=Path(data.where) if data.where else None).pairs)
    return (from_tsv if data.kind == "tsv" else from_jsonl)(data.path, data.columns)


def _parallel(data: DataSettings, budget: int, seed: int, vocabulary: Vocabulary | None) -> TrainingData:
    pairs = read_pairs(data)
    learn, held_out = split(pairs, data.held_out)
    _enough(data, len(learn), len(held_out))
    words = vocabulary or _learn((text for pair in learn for text in (pair.source, pair.target)), data.vocabulary)
    learned, kept = (_encode(part, words, data.length) for part in (learn, held_out))
    _enough(data, len(learned[0]), len(kept[0]))
    whole = digest([text for pair in pairs for text in (pair.source, pair.target)])
    about = Text(
        "{learned:,} pairs to learn from, {kept:,} held out, {left:,} left out (longer than {length} tokens)",
        "学习 {learned:,} 对，留出 {kept:,} 对，舍去 {left:,} 对（超过 {length} 个词元）",
    ).format(
        learned=len(learned[0]),
        kept=len(kept[0]),
        left=len(pairs) - len(learned[0]) - len(kept[0]),
        length=data.length,
    )
    return TrainingData(PairFeed(learned, kept, budget, seed), words, len(words), tuple(held_out), whole, about)


def _learn(texts: Iterable[str], size: int) -> Vocabulary:
    with named(vocabulary="data.vocabulary"):
        return Vocabulary.learn(texts, size)


def _encode(pairs: Sequence[Pair], words: Vocabulary, longest: int) -> tuple[Ragged, Ragged]:
    """Sources with their end, targets with start and end, of pairs that are short enough."""
    sources, targets = (words.encode([getattr(pair, side) for pair in pairs]) for side in ("source", "target"))
    short = [(a, b) for a, b in zip(sources, targets, strict=True) if max(len(a), len(b)) <= longest]
    return Ragged([[*a, END] for a, _ in short]), Ragged([[START, *b, END] for _, b in short])


class PairFeed:
    """Sentences and their translations."""

    def __init__(self, learn: tuple[Ragged, Ragged], held_out: tuple[Ragged, Ragged], budget: int, seed: int) -> None:
        self._learn, self._held_out = learn, held_out
        self._order = BatchOrder(torch.maximum(*(side.lengths for side in learn)), budget, seed)
        self._check = BatchOrder(torch.maximum(*(side.lengths for side in held_out)), budget, seed)

    def batch(self, step: int) -> Batch:
        """Source, target, and the target one step on."""
        return _translation(self._learn, self._order.at(step))

    def held_out(self, most: int) -> Iterator[Batch]:
        """Held-out sentences of all lengths."""
        return (_translation(self._held_out, self._check.at(step)) for step in range(min(most, len(self._check))))


def _translation(side: tuple[Ragged, Ragged], indices: Tensor) -> Batch:
    source, target = (ragged.rows(indices) for ragged in side)
    return tasks.teach(source, target, one_stream=False)


def _text(data: DataSettings, budget: int, seed: int, vocabulary: Vocabulary | None, *, masked: bool) -> TrainingData:
    text = "\n".join(lines(data.path))
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    learn = [piece for piece in pieces if share(piece) >= data.held_out]
    held_out = [piece for piece in pieces if share(piece) < data.held_out]
    _enough(data, len(learn), len(held_out))
    words = vocabulary or _learn(learn, data.vocabulary)
    learned, kept = (_blocks(words.encode(part), data.length) for part in (learn, held_out))
    _enough(data, len(learned), len(kept))
    feed = BlockFeed(learned, kept, max(1, budget // data.length), seed, masked=masked, vocabulary=len(words))
    about = Text(
        "{learned:,} tokens to learn from, {kept:,} held out", "学习 {learned:,} 个词元，留出 {kept:,} 个"
    ).format(learned=learned.numel(), kept=kept.numel())
    return TrainingData(feed, words, len(words), (), digest(pieces), about)


def _blocks(pieces: list[list[int]], length: int) -> Tensor:
    """All tokens end to end, cut into rows of length + 1. The rest at the end is not used."""
    flat = torch.tensor([token for piece in pieces for token in piece], dtype=torch.long)
    rows = len(flat) // (length + 1)
    return flat[: rows * (length + 1)].view(rows, length + 1)


class BlockFeed:
    """Blocks of text [length + 1]. Asked for is the next token or, if `masked`, the tokens that were hidden."""

    def __init__(self, learn: Tensor, held_out: Tensor, rows: int, seed: int, *, masked: bool, vocabulary: int) -> None:
        self._learn, self._held_out, self._rows, self._seed = learn, held_out, rows, seed
        self._masked, self._vocabulary = masked, vocabulary
        self._order = BatchOrder(torch.ones(len(learn), dtype=torch.long), rows, seed)

    def batch(self, step: int) -> Batch:
        """Blocks in the order of the epoch."""
        return self._make(self._learn[self._order.at(step)], generator(self._seed, 1, step))

    def held_out(self, most: int) -> Iterator[Batch]:
        """The held-out blocks from the start."""
        for step, rows in enumerate(self._held_out.split(self._rows)[:most]):
            yield self._make(rows, generator(self._seed, 2, step))

    def _make(self, blocks: Tensor, drawn: torch.Generator) -> Batch:
        if not self._masked:
            return Batch((blocks[:, :-1],), blocks[:, 1:])
        tokens = blocks[:, :-1]
        asked = torch.rand(tokens.shape, generator=drawn) < MASKED
        fate = torch.rand(tokens.shape, generator=drawn)
        other = torch.randint(FIRST, self._vocabulary, tokens.shape, generator=drawn)
        shown = tokens.where(~asked | (fate >= 0.8), UNKNOWN).where(~asked | (fate < 0.8) | (fate >= 0.9), other)
        return Batch((shown,), tokens.where(asked, PAD))


class TaskFeed:
    """A task made on the fly. Held-out batches come from another stream of random numbers."""

    def __init__(self, data: DataSettings, seed: int, rows: int, *, one_stream: bool) -> None:
        self._data, self._seed, self._rows, self._one_stream = data, seed, rows, one_stream
        self._kept = cache(lambda place: self._make(2, place))

    def batch(self, step: int) -> Batch:
        """New examples at every step."""
        return self._make(1, step)

    def held_out(self, most: int) -> Iterator[Batch]:
        """Four batches that training never sees."""
        return (self._kept(place) for place in range(min(most, 4)))

    def _make(self, stream: int, place: int) -> Batch:
        data, drawn = self._data, generator(self._seed, stream, place)
        return tasks.make(data.kind, drawn, self._rows, data.length, data.vocabulary, one_stream=self._one_stream)


def _enough(data: DataSettings, learn: int, held_out: int) -> None:
    if learn and held_out:
        return
    why = Text(
        "too little text: {learn} examples to learn from and {held_out} held out"
        " (data.held_out = {share}, data.length = {length})",
        "文本太少：{learn} 个样本可学，{held_out} 个留出（data.held_out = {share}，data.length = {length}）",
    )
    what = data.path or data.source or ", ".join(data.packages)
    raise InputError(what, why.format(learn=learn, held_out=held_out, share=data.held_out, length=data.length))
