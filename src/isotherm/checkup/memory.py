"""What a check-up does when memory runs out: it takes a smaller sample, and says so."""

from collections.abc import Callable
from typing import TypeVar

import torch

from isotherm.language import Text

Result = TypeVar("Result")
FEWER = 8
"""How many times fewer rows are taken after memory ran out."""
RAN_OUT = Text(
    "Memory ran out while {what}; {rows} of {total} rows of each head were taken instead.",
    "{what}时内存不足，每个头改取 {total} 行中的 {rows} 行。",
)


class Remarks:
    """Sentences about what was seen of less than everything, each once."""

    def __init__(self) -> None:
        self._said: dict[str, Text] = {}

    def add(self, remark: Text) -> None:
        """Say this, too."""
        self._said.setdefault(remark.en, remark)

    def all(self) -> tuple[Text, ...]:
        """What was said."""
        return tuple(self._said.values())

    def within_memory(self, what: Text, work: Callable[[int | None], Result], rows: int | None, total: int) -> Result:
        """Do `work` on `rows` rows (None: on all of `total`), and on fewer whenever memory runs out, down to one."""
        while True:
            try:
                return work(rows)
            except torch.OutOfMemoryError:
                left = min(total, total if rows is None else rows) // FEWER
                if not left:
                    raise
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            rows = left
            self.add(RAN_OUT.format(what=what, rows=f"{rows:,}", total=f"{total:,}"))
