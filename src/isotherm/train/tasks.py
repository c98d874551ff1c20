"""Tasks made on the fly: endless, exactly known, and answerable only by attending to the right place.

Each task draws its source [B, S] and the words of its target [B, T] from a generator, on the generator's device. `make` draws
a batch that a model can be trained on. A vocabulary counts the special ids, so words are FIRST … vocabulary − 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.train.batches import Batch
from isotherm.train.tokens import END, FIRST, PAD, START

VALUES = 8
"""Values an item of `lookup` may have; guessing is right once in this many."""
QUESTIONS = 8
"""Questions that `lookup` asks about each list of items."""


def copy(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """The source again, word by word: S = T = length."""
    words = _words(generator, (batch, length), FIRST, vocabulary)
    return words, words


def reverse(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """The source from its end: S = T = length."""
    words = _words(generator, (batch, length), FIRST, vocabulary)
    return words, words.flip(1)


def recall(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
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
    return torch.cat([pairs, asked.gather(1, order)], dim=1), values.gather(1, order)


def align(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """A toy translation, by a dictionary and local word order: S = T = length.

    The words stand in pairs. Where the first of a pair is the larger id the two change places, as adjective and noun
    do between languages; then each word becomes its own other word, the last for the first and so on.
    """
    words = _words(generator, (batch, length), FIRST, vocabulary)
    even = length - length % 2
    pairs = words[:, :even].view(batch, even // 2, 2).sort(2).values
    return words, FIRST + vocabulary - 1 - torch.cat([pairs.flatten(1), words[:, even:]], 1)


TASKS: dict[str, Callable[[torch.Generator, int, int, int], tuple[Tensor, Tensor]]] = {
    "copy": copy,
    "reverse": reverse,
    "recall": recall,
    "align": align,
}


def make(
    task: str, generator: torch.Generator, batch: int, length: int, vocabulary: int, *, one_stream: bool = False
) -> Batch:
    """A batch of one task; the same generator state gives the same batch. `lookup` always has one stream.

    >>> batch = make("reverse", torch.Generator().manual_seed(0), batch=2, length=5, vocabulary=11)
    >>> [tokens.shape for tokens in batch.inputs], batch.labels.shape
    ([torch.Size([2, 5]), torch.Size([2, 6])], torch.Size([2, 6]))
    """
    if task == "lookup":
        return lookup(generator, batch, length, vocabulary)
    source, words = TASKS[task](generator, batch, length, vocabulary)
    start, end = (torch.full_like(words[:, :1], token) for token in (START, END))
    return teach(source, torch.cat([start, words, end], dim=1), one_stream=one_stream)


def teach(source: Tensor, target: Tensor, *, one_stream: bool) -> Batch:
    """Source [B, S] and target [B, T + 2] as a model is taught: from each target token the next one is asked.

    With one stream, source and target are one sequence [B, S + T + 1], and only the target is asked for.
    """
    if not one_stream:
        return Batch((source, target[:, :-1]), target[:, 1:])
    tokens = torch.cat([source, target], dim=1)
    labels = torch.cat([torch.full_like(source, PAD), target], dim=1)
    labels[:, source.shape[1]] = PAD  # the start of the answer is given, not guessed
    return Batch((tokens[:, :-1],), labels[:, 1:])


def lookup(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> Batch:
    """Find the item that a question names among `length` items, and say its value: tokens and labels [B, length + QUESTIONS].

    Ids: FIRST + key·VALUES + value for an item, then one for each key as a question, then one for each value as an answer.
    The place of an item says nothing, so a model may be tested among many more items than it was trained with. What fails
    then is its softmax, not its sense of position: the same logits spread over more keys (Veličković et al. 2024,
    arXiv:2410.01104).
    """
    keys = (vocabulary - FIRST - VALUES) // (VALUES + 1)
    if keys < length:
        least = FIRST + VALUES + (VALUES + 1) * length
        expected = Text("at least {least} for {length} items", "至少 {least}（{length} 个条目）")
        raise ArgumentError("vocabulary", expected.format(least=least, length=length), got=vocabulary)
    chosen = torch.rand(batch, keys, generator=generator).argsort(1)[:, :length]
    values = torch.randint(0, VALUES, (batch, length), generator=generator)
    asked = torch.randint(0, length, (batch, QUESTIONS), generator=generator)
    items = FIRST + chosen * VALUES + values
    questions = FIRST + keys * VALUES + chosen.gather(1, asked)
    answers = FIRST + keys * (VALUES + 1) + values.gather(1, asked)
    labels = torch.cat([torch.full_like(items, PAD), answers], 1)
    return Batch((torch.cat([items, questions], 1),), labels)


def _words(generator: torch.Generator, shape: tuple[int, int], low: int, high: int) -> Tensor:
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def _order(generator: torch.Generator, batch: int, n: int) -> Tensor:
    """A random order of 0 … n − 1 for each example [batch, n]."""
    return torch.rand(batch, n, generator=generator, device=generator.device, dtype=torch.float64).argsort(1)
