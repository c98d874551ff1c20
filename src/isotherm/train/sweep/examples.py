"""Where a trial's examples come from: made by a task, or drawn from a corpus.

A stream of data belongs to a seed, not to a model: two trials that differ in rule or learning rate read the same
examples in the same order, so that the data cannot explain a difference. The held-out examples are the same for all.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.record.sweep import Trial
from isotherm.train import tasks
from isotherm.train.batches import Batch
from isotherm.train.sweep.model_stack import CHUNK
from isotherm.train.sweep.prepared_corpus import HELD_OUT as HELD_OUT_SHARE
from isotherm.train.sweep.prepared_corpus import PreparedCorpus, Side, read_corpus
from isotherm.train.tokens import END, PAD, START

Corpora = Mapping[tuple[str, str, int], PreparedCorpus]
"""Prepared corpora by name, task and size of vocabulary."""
AT_ONCE = 32
"""Examples tested at once, where training takes fewer."""
HELD_OUT = 512
"""Examples a trained model is tested on, at its own length."""
TOO_FEW = Text(
    "too few pairs: of {pairs}, {learned} to learn from and the others, one in twenty, held out",
    "句对太少：共 {pairs} 对，{learned} 对可学，其余（约二十分之一）留出",
)


class ExampleSource(ABC):
    """Examples of one task, for models with one stream (decoder) or two."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.trial, self.device = trial, device
        self.one_stream = trial.model == "decoder"

    @abstractmethod
    def draw(self, generator: torch.Generator, count: int, length: int, *, held_out: bool) -> Batch:
        """Draw `count` examples to the device; they depend on the generator alone."""

    def chunks(self, seed: int) -> Iterator[Batch]:
        """The endless stream of one seed, CHUNK steps at a time: [CHUNK, B, L]."""
        generator = torch.Generator().manual_seed(number("data", seed))
        batch = self.trial.batch
        while True:
            drawn = self.draw(generator, CHUNK * batch, self.trial.length, held_out=False)
            yield drawn.map(lambda tokens: tokens.view(CHUNK, batch, -1))

    def held_out(self, length: int, count: int = HELD_OUT) -> list[Batch]:
        """The examples every trial of this task is tested on, in batches about as large as in training."""
        shorter = min(1.0, self.trial.length / length)
        batch = min(count, max(1, int(max(self.trial.batch, AT_ONCE) * shorter)))
        generator = torch.Generator().manual_seed(number("held out", length))
        return [self.draw(generator, batch, length, held_out=True) for _ in range(max(1, count // batch))]


class Made(ExampleSource):
    """A task that makes its examples as it goes."""

    def draw(self, generator: torch.Generator, count: int, length: int, *, held_out: bool) -> Batch:  # noqa: ARG002
        """Draw on the CPU, so that every device sees the same examples."""
        size = self.trial.vocabulary
        return tasks.make(self.trial.task, generator, count, length, size, one_stream=self.one_stream).to(self.device)


class Running(ExampleSource):
    """Windows of a running text, whose end is held out."""

    def __init__(self, trial: Trial, device: torch.device, corpus: PreparedCorpus) -> None:
        super().__init__(trial, device)
        ids = torch.from_numpy(corpus.sides[0].ids.astype(np.int64))
        border = len(ids) - int(len(ids) * HELD_OUT_SHARE)
        self.parts = (ids[:border].to(device), ids[border:].to(device))

    def draw(self, generator: torch.Generator, count: int, length: int, *, held_out: bool) -> Batch:
        """Windows of length + 1: all but the last token, and all but the first."""
        ids = self.parts[held_out]
        if len(ids) <= length:
            expected = Text("less than the {n} tokens there are", "小于现有的 {n} 个词元").format(n=len(ids))
            raise ArgumentError("length", expected, got=length)
        starts = torch.randint(0, len(ids) - length, (count, 1), generator=generator)
        window = ids[(starts + torch.arange(length + 1)).to(self.device)]
        return Batch((window[:, :-1],), window[:, 1:])


class Pairs(ExampleSource):
    """Sentences and their translations, none longer than the trial's length."""

    def __init__(self, trial: Trial, device: torch.device, corpus: PreparedCorpus) -> None:
        super().__init__(trial, device)
        if not 0 < corpus.learned < len(corpus.sides[0].ends):
            raise InputError(trial.corpus, TOO_FEW.format(pairs=len(corpus.sides[0].ends), learned=corpus.learned))
        lengths = np.stack([np.diff(side.ends, prepend=0) for side in corpus.sides])
        fits = np.flatnonzero(((lengths > 0) & (lengths <= trial.length)).all(0))
        learned = int((fits < corpus.learned).sum())
        if not 0 < learned < len(fits):
            raise ArgumentError("length", Text("longer: few sentences fit", "更大：几乎没有句子够短"), got=trial.length)
        source, words = (padded(side, fits, trial.length) for side in corpus.sides)
        target = np.pad(words, ((0, 0), (1, 1)), constant_values=PAD)
        target[:, 0] = START
        target[np.arange(len(fits)), lengths[1][fits] + 1] = END
        both = [torch.from_numpy(side).to(device) for side in (source, target)]
        self.parts = ([side[:learned] for side in both], [side[learned:] for side in both])

    def draw(self, generator: torch.Generator, count: int, length: int, *, held_out: bool) -> Batch:  # noqa: ARG002
        """Pairs drawn by their number."""
        source, target = self.parts[held_out]
        rows = torch.randint(0, len(source), (count,), generator=generator).to(self.device)
        return tasks.teach(source[rows], target[rows], one_stream=self.one_stream)


def padded(side: Side, rows: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Some sentences as a matrix [rows, length], 0 beyond each one's end."""
    starts = np.concatenate([[0], side.ends[:-1]])
    place = starts[rows, None] + np.arange(length)
    return np.where(place < side.ends[rows, None], side.ids[np.minimum(place, len(side.ids) - 1)], PAD).astype(np.int64)


def source_of(trial: Trial, device: torch.device, corpora: Corpora) -> ExampleSource:
    """The source a trial asks for."""
    if trial.corpus is None:
        return Made(trial, device)
    corpus = corpora[_name(trial)]
    return Running(trial, device, corpus) if trial.task == "text" else Pairs(trial, device, corpus)


def corpora_of(trials: Iterable[Trial], root: Path) -> Corpora:
    """Every corpus these trials read, from the folder `root`."""
    wanted = {_name(trial) for trial in trials if trial.corpus is not None}
    return {(name, task, size): read_corpus(name, task, size, root) for name, task, size in sorted(wanted)}


def _name(trial: Trial) -> tuple[str, str, int]:
    return trial.corpus or "", trial.task, trial.vocabulary


def number(purpose: str, seed: int) -> int:
    """A seed for one purpose, so that data and parameters of one trial are not correlated."""
    return int.from_bytes(sha256(f"{purpose} {seed}".encode()).digest()[:7], "big")
