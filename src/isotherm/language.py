"""English and Chinese side by side: every sentence a person reads is a `Text` with both.

Keeping the two next to each other, where they are used, means neither can be forgotten: a `Text` cannot be built
with one of them missing.
"""

import os
from dataclasses import dataclass
from typing import Literal, get_args

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

_chosen: Language | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """One sentence in both languages; `{name}` places are filled by `format`."""

    en: str
    zh: str

    def __str__(self) -> str:
        return self.to(current())

    def to(self, language: Language) -> str:
        """The sentence in one language."""
        return self.zh if language == "zh" else self.en

    def format(self, **values: object) -> "Text":
        """Fill the places; a value that is itself a `Text` goes in translated.

        >>> Text("{n} rows", "{n} 行").format(n=3).to("zh")
        '3 行'
        """
        english, chinese = (
            {name: value.to(language) if isinstance(value, Text) else value for name, value in values.items()}
            for language in LANGUAGES
        )
        return Text(self.en.format(**english), self.zh.format(**chinese))


def choose(language: Language | None) -> None:
    """Set the language of this process; None goes back to the one the environment names."""
    global _chosen  # noqa: PLW0603  one process speaks one language, as with locale.setlocale
    _chosen = language


def current() -> Language:
    """The chosen language, else the first one named by ISOTHERM_LANG, LC_ALL, LC_MESSAGES, LANG; English otherwise."""
    if _chosen is not None:
        return _chosen
    for variable in ("ISOTHERM_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(variable)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"
