"""The story of √d_k as plain data: what the lesson says in both languages, and what was measured for it.

Sentences may hold four marks, which views turn into what they can show: `**bold**`, code in backticks, `[words](#claim)` for
the claim that supports the words, and `[words](#term-gate)` for a word of the glossary. `plain` takes them out.
"""

import re
from dataclasses import dataclass

from isotherm.language import Text
from isotherm.record.check import CheckRecord
from isotherm.record.claim import Step
from isotherm.record.watch import WatchRecord

STORY_SCHEMA = "isotherm.story/1"
MEASURED_SCHEMA = "isotherm.story-measured/1"
TERM = "term-"
"""How the target of a link to the glossary begins; any other target is a claim."""
LINK = re.compile(r"\[([^\[\]]+)\]\(#([a-z0-9-]+)\)")


@dataclass(frozen=True)
class FindingPoint:
    """The model run anew with q·k multiplied by `factor`: the share of pairs it finds, and how much more that is than at factor
    1, each with its 95 % interval over pairs; and the mean gate and entropy (as a share of ln n) of all its rows."""

    factor: float
    share: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float
    gate: float
    entropy: float


@dataclass(frozen=True)
class PairFinding:
    """A trained model finds the sentence that each of `pairs` rewordings belongs to, among `candidates`, under several scales.

    `d` is its head dimension: at factor 1 the scale is 1/√d, at √d it is 1, at 1/√d it is 1/d. `tokens` is the mean length of a
    sentence, which is also the number of keys of a row.
    """

    model: str
    d: int
    layers: int
    heads: int
    pairs: int
    candidates: int
    tokens: float
    points: tuple[FindingPoint, ...]


@dataclass(frozen=True)
class StoryMeasured:
    """What `python -m isotherm.lab.story` measured: every number that the story names, and the finding.

    `weights` is the SHA-256 of the model's weights.
    """

    schema: str
    created: str
    versions: dict[str, str]
    weights: str
    finding: PairFinding
    fields: dict[str, float]


@dataclass(frozen=True)
class WordTable:
    """A small table of words and numbers; the first column names the row."""

    heads: tuple[Text, ...]
    rows: tuple[tuple[Text, ...], ...]


@dataclass(frozen=True)
class Worked:
    """An example worked out: what is done, the numbers, and what they show."""

    lead: Text
    table: WordTable
    shows: Text


@dataclass(frozen=True)
class Predict:
    """A question to answer before looking; `answer` is the place of the right choice, from 0."""

    question: Text
    choices: tuple[Text, ...]
    answer: int
    why: Text


@dataclass(frozen=True)
class StoryStep:
    """One step of the lesson. `id` is also the name of its picture, `seen` says what the picture shows, and each of `points`
    is linked to the claims that support it."""

    id: str
    title: Text
    lead: Text
    seen: Text
    derivation: tuple[Step, ...]
    points: tuple[Text, ...]
    predict: Predict


@dataclass(frozen=True)
class SideChapter:
    """Something beside the main path."""

    id: str
    title: Text
    paragraphs: tuple[Text, ...]


@dataclass(frozen=True)
class Term:
    """A word of the glossary."""

    id: str
    name: Text
    meaning: Text


@dataclass(frozen=True)
class StoryWords:
    """What the lesson says. `answer` has three sentences: why √d_k, why not d_k, and what happens without it. The first of
    `before_after` says what the picture of the finding shows."""

    title: Text
    question: Text
    formula: Step
    answer: tuple[Text, ...]
    before_after: tuple[Text, ...]
    row: Worked
    steps: tuple[StoryStep, ...]
    sides: tuple[SideChapter, ...]
    glossary: tuple[Term, ...]


@dataclass(frozen=True)
class Story:
    """The lesson, and the data of three pictures: `finding`; `model`, a check-up cut down to its temperature curves; and `run`,
    a training run that was driven too hot."""

    schema: str
    words: StoryWords
    finding: PairFinding
    model: CheckRecord
    run: WatchRecord


def plain(sentence: str) -> str:
    """The sentence without its marks.

    >>> plain("**Yes:** the [gate](#term-gate) [closes](#freezing).")
    'Yes: the gate closes.'
    """
    return LINK.sub(r"\1", sentence).replace("**", "").replace("`", "")
