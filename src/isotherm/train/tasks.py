"""Tasks made on the fly: endless, exactly known, and answerable only by attending to the right place.

`make` draws a batch of one task. Every example also says where its answers are (`alignment`), so a trained model's
attention can be compared with the truth.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.train.tokens import END, FIRST, PAD, START


@dataclass(frozen=True)
class Examples:
    """A batch without padding: source [B, S], target [B, T + 2] (start, T words, end), alignment [B, T].

    `alignment[b, t]` is the place in the source that decides the t-th word of the target.
    """

    source: Tensor
    target: Tensor
    alignment: Tensor

    def teacher(self) -> tuple[Tensor, Tensor]:
        """What a decoder reads [B, T + 1] and what it should say [B, T + 1]: the target, and the target one step on."""
        return self.target[:, :-1], self.target[:, 1:]

    def sequence(self) -> tuple[Tensor, Tensor]:
        """The same for a model with one stream: tokens and labels [B, S + T + 1], with padding where nothing is asked."""
        tokens = torch.cat([self.source, self.target], dim=1)
        labels = torch.cat([torch.full_like(self.source, PAD), self.target], dim=1)
        labels[:, self.source.shape[1]] = PAD  # the start of the answer is given, not guessed
        return tokens[:, :-1], labels[:, 1:]


def copy(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> Examples:
    """The source again, word by word: S = T = length."""
    words = _words(generator, (batch, length), FIRST, vocabulary)
    places = torch.arange(length, device=words.device).expand(batch, length)
    return _examples(words, words, places)


def reverse(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> Examples:
    """The source from its end: S = T = length."""
    words = _words(generator, (batch, length), FIRST, vocabulary)
    places = torch.arange(length - 1, -1, -1, device=words.device).expand(batch, length)
    return _examples(words, words.flip(1), places)


def recall(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> Examples:
    """Associative recall with many queries (Arora et al. 2023, arXiv:2312.04927): S = 3·length, T = length.

    The source is `length` pairs of a key and its value, then the keys again in another order; the target is their
    values. Keys are the lower half of the words, no two alike in one example; values are the upper half.
    """
    keys = (vocabulary - FIRST) // 2
    if keys < length:
        expected = Text("at least {least} for {length} pairs", "至少 {least}（{length} 对）")
        raise ArgumentError("vocabulary", expected.format(least=FIRST + 2 * length, length=length), got=vocabulary)
    asked = FIRST + _order(generator, batch, keys)[:, :length]
    values = _words(generator, (batch, length), FIRST + keys, vocabulary)
    order = _order(generator, batch, length)
    pairs = torch.stack([asked, values], dim=2).flatten(1)
    return _examples(torch.cat([pairs, asked.gather(1, order)], dim=1), values.gather(1, order), 2 * order + 1)


def align(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> Examples:
    """A toy translation, by a dictionary and local word order: S = T = length.

    The words stand in pairs. Where the first of a pair is the larger id the two change places, as adjective and noun
    do between languages; then each word becomes its own other word, the last for the first and so on.
    """
    words = _words(generator, (batch, length), FIRST, vocabulary)
    places = torch.arange(length, device=words.device).expand(batch, length).clone()
    even = length - length % 2
    swap = words[:, 0:even:2] > words[:, 1:even:2]
    first, second = places[:, 0:even:2].clone(), places[:, 1:even:2].clone()
    places[:, 0:even:2] = torch.where(swap, second, first)
    places[:, 1:even:2] = torch.where(swap, first, second)
    return _examples(words, FIRST + vocabulary - 1 - words.gather(1, places), places)


TASKS: dict[str, Callable[[torch.Generator, int, int, int], Examples]] = {
    "copy": copy,
    "reverse": reverse,
    "recall": recall,
    "align": align,
}


def make(task: str, generator: torch.Generator, batch: int, length: int, vocabulary: int) -> Examples:
    """A batch of one task, on the generator's device; the same generator state gives the same batch.

    `vocabulary` counts the special ids too, so words are FIRST … vocabulary − 1.

    >>> examples = make("reverse", torch.Generator().manual_seed(0), batch=2, length=5, vocabulary=11)
    >>> examples.source.shape, examples.target.shape, examples.alignment[0].tolist()
    (torch.Size([2, 5]), torch.Size([2, 7]), [4, 3, 2, 1, 0])
    """
    if task not in TASKS:
        raise ArgumentError("task", Text(*(" | ".join(TASKS),) * 2), got=repr(task))
    for name, value, least in (("batch", batch, 1), ("length", length, 1), ("vocabulary", vocabulary, FIRST + 2)):
        if value < least:
            expected = Text("a whole number, {least} or more", "不小于 {least} 的整数").format(least=least)
            raise ArgumentError(name, expected, got=value)
    return TASKS[task](generator, batch, length, vocabulary)


def _words(generator: torch.Generator, shape: tuple[int, int], low: int, high: int) -> Tensor:
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def _order(generator: torch.Generator, batch: int, n: int) -> Tensor:
    """A random order of 0 … n − 1 for each example [batch, n]."""
    return torch.rand(batch, n, generator=generator, device=generator.device, dtype=torch.float64).argsort(1)


def _examples(source: Tensor, words: Tensor, alignment: Tensor) -> Examples:
    start, end = (torch.full_like(words[:, :1], token) for token in (START, END))
    return Examples(source, torch.cat([start, words, end], dim=1), alignment)
