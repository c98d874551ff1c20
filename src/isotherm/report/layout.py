"""What the views for a terminal share: headings, indented lines, bare tables, «… and 3 more»."""

from collections.abc import Collection, Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Styled

from isotherm.language import Language, Text

MORE = Text("… and {n} more", "…… 另有 {n} 条")


def heading(console: Console, title: Text, language: Language, note: Text | None = None) -> None:
    """A blank line, the title of a section and, where there is one, a note below it."""
    console.print()
    console.print(Styled(title.to(language), style="bold underline"))
    if note is not None:
        console.print(Styled(note.to(language), style="dim"))


def indented(console: Console, line: Styled, by: int = 2, width: int | None = None) -> None:
    """A paragraph that starts `by` columns from the left."""
    console.print(Padding(line, (0, 0, 0, by), expand=False), width=width)


def rest(console: Console, left: int, language: Language, by: int = 2) -> None:
    """Say how many more there are, if any."""
    if left > 0:
        indented(console, Styled(MORE.format(n=left).to(language), style="dim"), by)


def table(heads: Iterable[Text], language: Language, *, gap: int = 2, left: Collection[int] = (0,)) -> Table:
    """A table without rules. Columns are aligned right and do not wrap, except those listed in `left`."""
    made = Table(box=None, padding=(0, gap, 0, 0))
    for number, head in enumerate(heads):
        made.add_column(head.to(language), header_style="dim", no_wrap=number not in left)
        made.columns[-1].justify = "left" if number in left else "right"
    return made
