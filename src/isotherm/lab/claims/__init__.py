"""Every claim in the order a reader meets it, by topic; each is one folder here, loaded when it is run.

A folder has `experiment.py`, what is measured, and `en.md` and `zh.md`, what is said (`lab/content.py` describes them). An
experiment needs torch; titles and recorded verdicts are read without running it, so that listing them is quick.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from isotherm.errors import IsothermError
from isotherm.language import LANGUAGES, Text
from isotherm.record import Verdict

if TYPE_CHECKING:
    from isotherm.lab.claim import Claim


@dataclass(frozen=True)
class Topic:
    """A few claims about one thing."""

    id: str
    title: Text
    lead: Text
    claims: tuple[str, ...]


ORDER = {
    "softmax": ("softmax-saturates", "a-a-2a", "jacobian", "one-hot-kills-gradient"),
    "dot-product": ("dot-variance", "variance-is-sqrt-d", "sqrt-is-the-right-power"),
    "gradient": ("ten-draws", "jacobian-at-high-variance", "vanishing-not-exploding", "mean-versus-quantile"),
    "additive": (
        "additive-needs-no-scale",
        "bounded-inputs",
        "additive-versus-dot-cost",
        "additive-wins-at-large-d",
        "scaling-restores-it",
    ),
    "transformer": ("cross-entropy-is-safe", "constant-path", "parallel", "heads-differ", "encoder-decoder", "bert"),
    "other-scales": ("entropy-invariance", "init-instead-of-scale"),
    "beyond": ("freezing", "trained-model", "longer-than-trained"),
}
"""The claims of each topic. Titles and leads of topics are in `en.md` and `zh.md` beside this file."""


def _topics() -> tuple[Topic, ...]:
    pages = ((Path(__file__).parent / f"{language}.md").read_text(encoding="utf-8") for language in LANGUAGES)
    told = [re.findall(r"^## (\S+)\n(.+)\n\n(.+)$", page, re.M) for page in pages]
    return tuple(
        Topic(one[0], Text(one[1], other[1]), Text(one[2], other[2]), ORDER[one[0]])
        for one, other in zip(*told, strict=True)
    )


TOPICS = _topics()
CLAIMS = tuple(claim for topic in TOPICS for claim in topic.claims)


@dataclass(frozen=True)
class Listed:
    """One line of the list of claims."""

    id: str
    title: Text
    expected: Verdict


def module_of(claim: str) -> str:
    """The module that holds a claim's experiment."""
    return f"{__name__}.{claim.replace('-', '_')}.experiment"


def load(claim: str) -> "Claim":
    """The claim itself, with its experiment."""
    return cast("Claim", import_module(module_of(claim)).CLAIM)


def missing() -> tuple[str, ...]:
    """Claims named above that have no file."""
    return tuple(claim for claim in CLAIMS if find_spec(module_of(claim)) is None)


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """The claims asked for, in the order of the topics; all of them when none is named."""
    asked = set(names)
    for name in asked:
        if name not in CLAIMS:
            near = get_close_matches(name, CLAIMS, n=1, cutoff=0.4)
            hint = Text("did you mean {near}? ", "是否要用 {near}？").format(near=near[0]) if near else Text("", "")
            message = Text(
                "no such claim: {name}; {hint}isotherm explain --list shows all",
                "没有这个论断：{name}；{hint}isotherm explain --list 可列出全部",
            )
            raise IsothermError(message.format(name=name, hint=hint))
    return tuple(claim for claim in CLAIMS if not asked or claim in asked)


def listed(claim: str) -> Listed:
    """A claim's title and the verdict on record, read from its files without running them."""
    folder = Path(__file__).parent / claim.replace("-", "_")
    expected = re.search(r'^    expected="(\w+)"', (folder / "experiment.py").read_text(encoding="utf-8"), re.M)
    assert expected is not None
    titles = ((folder / f"{language}.md").read_text(encoding="utf-8").split("\n")[0] for language in LANGUAGES)
    return Listed(claim, Text(*(title.removeprefix("# ") for title in titles)), cast(Verdict, expected[1]))
