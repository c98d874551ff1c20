"""The story of √d_k: `en.md` and `zh.md` hold every sentence of the lesson, `reader.py` describes their format. Every number in
them was measured by `python -m isotherm.lab.story` and is kept in `lab/recorded`. Reading it all needs no torch.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from isotherm.lab import recorded
from isotherm.lab.numerals import numeral, percent
from isotherm.lab.story.reader import Told, read_page
from isotherm.language import LANGUAGES
from isotherm.record import CheckRecord, from_plain
from isotherm.record.files import checked, parse_json
from isotherm.record.plain import Record
from isotherm.record.story import STORY_SCHEMA, Story, StoryMeasured, StoryWords
from isotherm.record.watch import WatchRecord, record_of

MEASURED, MODEL, RUN = "story.json", "minilm-check.json", "hot-run.json"
"""In `lab/recorded`: the numbers of the story with the finding; the check-up of MiniLM cut down to its curves; and the run of
seed 0 of `isotherm watch --demo` that is driven too hot, written by `isotherm export --json`."""


class Number(float):
    """A measured number that formats itself as a person writes it."""

    def __format__(self, form: str) -> str:
        if form.endswith("%"):
            return percent(self, int(form[:-1] or 0))
        if form.endswith("f"):
            return super().__format__(form).replace("-", "−")
        value, digits = float(self), int(form or 2)
        if abs(value) < 10**digits and abs(value) < 1000:
            return numeral(value, digits)
        return f"{float(f'{value:.{digits - 1}e}'):,.0f}".replace("-", "−")


def measured() -> StoryMeasured:
    """The numbers on record."""
    return _recorded(StoryMeasured, MEASURED)


def story() -> Story:
    """The story with every field filled in."""
    found = measured()
    numbers = {name: Number(value) for name, value in found.fields.items()}
    en, zh = (read_page((Path(__file__).parent / f"{it}.md").read_text(encoding="utf-8")) for it in LANGUAGES)
    words = from_plain(StoryWords, merged(en, zh, numbers), "story")
    return Story(STORY_SCHEMA, words, found.finding, _recorded(CheckRecord, MODEL), watched())


def watched() -> WatchRecord:
    """The recorded training run."""
    return record_of(RUN, parse_json(RUN, (files(recorded) / RUN).read_bytes()))


def merged(en: Any, zh: Any, numbers: dict[str, Number], where: str = "") -> Any:
    """Two languages' pages as one: each sentence a pair with its fields filled. Everything else has to be the same in both."""
    if isinstance(en, Told) and isinstance(zh, Told):
        return {"en": str(en.format(**numbers)), "zh": str(zh.format(**numbers))}
    if isinstance(en, dict) and isinstance(zh, dict) and list(en) == list(zh):
        return {name: merged(en[name], zh[name], numbers, f"{where}.{name}") for name in en}
    if isinstance(en, list) and isinstance(zh, list) and len(en) == len(zh):
        return [merged(a, b, numbers, f"{where}[{place}]") for place, (a, b) in enumerate(zip(en, zh, strict=True))]
    if en != zh:
        raise ValueError(f"the languages differ at {where}: {en!r}, {zh!r}")
    return en


def _recorded(kind: type[Record], name: str) -> Record:
    return checked(kind, name, parse_json(name, (files(recorded) / name).read_bytes()))
