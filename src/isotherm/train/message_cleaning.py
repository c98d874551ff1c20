"""Turn a program's messages into sentences: remove markup and keyboard accelerators, and number the placeholders."""

import html
import re
from collections import Counter

from isotherm.train.parallel_text import Pair

_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_ACCELERATOR = re.compile(r"\s*[(（][&_][A-Za-z0-9][)）]")  # 文件(&F), as translations that cannot mark a letter do
_PLACEHOLDER = re.compile(
    r"%\([^)]*\)[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]"  # %(name)s
    r"|%(?:\d+\$)?[-#0+]*\d*(?:\.\d+)?[sdifgexXcru](?![a-zA-Z])"  # %s, %1$s
    r"|\$\{[^{}]*\}|\{\{[^{}]*\}\}|\{[^{}\s]*\}"  # ${name}, {{ name }}, {name}
    r"|%\d+"  # %1
)
_HAN = re.compile(r"[\u3400-\u9fff]")
_LETTER = re.compile(r"[^\W\d_]")


def clean(message: Pair, *, chinese: bool) -> Pair | None:
    """The pair of sentences a message holds, or None where it holds none worth learning.

    >>> clean(Pair("&Delete <b>%(count)d</b> pages", "删除 <b>%(count)d</b> 个页面(&D)"), chinese=True)
    Pair(source='Delete {1} pages', target='删除 {1} 个页面')
    """
    source, target = (_plain(text) for text in (message.source, message.target))
    numbered = _number(source, target)
    if numbered is None:
        return None
    source, target = numbered
    if not _LETTER.search(_PLACEHOLDER.sub("", source)) or source == target:
        return None
    if chinese and not _HAN.search(target):
        return None
    return Pair(source, target)


def key(sentence: str) -> str:
    """A key that is equal for sentences that differ in capitals, spaces or punctuation only."""
    return re.sub(r"[\W_]+", " ", sentence).casefold().strip()


def _plain(text: str) -> str:
    """Without tags, entities and accelerators, on one line."""
    text = html.unescape(_TAG.sub("", re.sub(r"<br\s*/?>", " ", text)))
    text = re.sub(r"&(?=[A-Za-z])", "", _ACCELERATOR.sub("", text))
    return re.sub(r"\s+", " ", text).strip()


def _number(source: str, target: str) -> tuple[str, str] | None:
    """Placeholders as {1}, {2} … in the order of the source; None if the two sides do not hold the same ones."""
    found = _PLACEHOLDER.findall(source)
    if Counter(found) != Counter(_PLACEHOLDER.findall(target)):
        return None
    waiting: dict[str, list[str]] = {}
    for place, name in enumerate(found, 1):
        waiting.setdefault(name, []).append(f"{{{place}}}")
    return _replace(source, waiting), _replace(target, waiting)


def _replace(text: str, numbers: dict[str, list[str]]) -> str:
    waiting = {name: iter(places) for name, places in numbers.items()}
    return _PLACEHOLDER.sub(lambda match: next(waiting[match[0]]), text)
