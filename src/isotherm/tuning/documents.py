"""Text as documents of one length: what a loss is measured on.

A text is read into tokens once, and cut at each length anew: into windows that follow one another, or into its lines. Special
tokens that the model's tokenizer puts around a text are put around each document, and count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from isotherm.checkup.batch import tokenizer_of
from isotherm.checkup.loading.loaded import Loaded
from isotherm.errors import InputError
from isotherm.language import Text

Cut = Literal["windows", "lines"]
LEAST = 4
"""Fewer documents than this give no interval worth the name."""
PROBE = "a"
TOO_SHORT = Text(
    "{tokens} tokens, which is {found} documents of {length} tokens; at least {least} are needed",
    "共 {tokens} 个词元，即 {found} 篇 {length} 词元的文档；至少需要 {least} 篇",
)
TOO_SHORT_LINES = Text(
    "{found} of its {lines} lines have {length} tokens; at least {least} are needed",
    "{lines} 行中有 {found} 行达到 {length} 个词元；至少需要 {least} 行",
)


@dataclass(frozen=True)
class TextReader:
    """A tokenizer: text to ids without special tokens, the special ids around each document, and the mask's id."""

    encode: Callable[[str], list[int]]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    mask: int | None = None


def reading_of(loaded: Loaded, tokenizer: Any) -> TextReader:
    """The reading by this tokenizer, one of transformers' or any function from text to ids; by the model's own if None."""
    found = tokenizer_of(loaded) if tokenizer is None else tokenizer
    if not hasattr(found, "model_max_length"):
        return TextReader(lambda text: _ids(found(text)))

    def plain(text: str) -> list[int]:
        return _ids(found(text, add_special_tokens=False, verbose=False))

    inner, whole = plain(PROBE), _ids(found(PROBE))
    starts = range(len(whole) - len(inner) + 1)
    place = next((at for at in starts if whole[at : at + len(inner)] == inner), 0)
    after = () if not inner else whole[place + len(inner) :]
    return TextReader(plain, tuple(whole[:place]), tuple(after), found.mask_token_id)


def _ids(encoded: Any) -> list[int]:
    found = encoded["input_ids"] if isinstance(encoded, Mapping) or hasattr(encoded, "keys") else encoded
    found = getattr(found, "ids", found)
    return [int(one) for one in (found.flatten() if isinstance(found, Tensor) else found)]


class Material:
    """A text, read once. `name` is what errors call it."""

    def __init__(self, name: str, text: str, reading: TextReader, cut: Cut = "windows") -> None:
        self.name, self.text, self.reading, self.cut = name, text, reading, cut

    @cached_property
    def _rows(self) -> list[list[int]]:
        parts = [line for line in self.text.split("\n") if line.strip()] if self.cut == "lines" else [self.text]
        return [self.reading.encode(part) for part in parts]

    @cached_property
    def columns(self) -> list[list[str]]:
        """The pairs of a text whose every line is a text, a tab and another text; none of any other."""
        lines = [line.split("\t") for line in self.text.split("\n") if line.strip()]
        whole = all(len(line) >= 2 and line[0].strip() and line[1].strip() for line in lines)
        return [line[:2] for line in lines] if whole else []

    def documents(self, length: int, most: int) -> Tensor:
        """Up to `most` documents [documents, length], spread evenly over the text."""
        framed = len(self.reading.before) + len(self.reading.after)
        body = length - framed
        if self.cut == "lines":
            found = [row[:body] for row in self._rows if len(row) >= body > 0]
        else:
            ids = self._rows[0]
            found = [ids[at : at + body] for at in range(0, len(ids) - body + 1, body)] if body > 0 else []
        if len(found) < LEAST:
            why = TOO_SHORT_LINES if self.cut == "lines" else TOO_SHORT
            words = {"tokens": f"{sum(map(len, self._rows)):,}", "lines": f"{len(self._rows):,}", "found": len(found)}
            raise InputError(self.name, why.format(length=f"{length:,}", least=LEAST, **words))
        chosen = torch.linspace(0, len(found) - 1, min(most, len(found)), dtype=torch.float64).round().long().tolist()
        before, after = self.reading.before, self.reading.after
        return torch.tensor([[*before, *found[at], *after] for at in chosen])
