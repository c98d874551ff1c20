"""A task that needs nothing but attention, at any length: find the one item a question names among n, and say its value.

Each item is one token that stands for a key and a value, each question one token that names a key. Where an item stands
says nothing, so a model may be tested among many more items than it was trained with, and what fails then is not its sense of
position but its softmax: the same logits spread over more keys (Veličković et al. 2024, arXiv:2410.01104).
"""

import torch

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.train.stacked import NOTHING, Batch
from isotherm.train.tokens import FIRST

VALUES = 8
"""Values an item may have; chance is one in this many."""
QUESTIONS = 8
"""Questions asked of each list of items."""


def lookup(generator: torch.Generator, batch: int, length: int, vocabulary: int) -> Batch:
    """`length` items with different keys, then the questions: tokens and labels [batch, length + QUESTIONS].

    Ids: FIRST + key·VALUES + value for an item, then one for each key as a question, then one for each value as an answer.
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
    labels = torch.cat([torch.full_like(items, NOTHING), answers], 1)
    return Batch((torch.cat([items, questions], 1),), labels)
