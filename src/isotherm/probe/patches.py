"""Replace attributes and entries for the duration of a probe, and restore them in reverse order."""

from collections.abc import Callable, MutableMapping
from typing import Any


class Patches:
    """The replacements made so far."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def entry(self, mapping: MutableMapping[str, Any], key: str, value: object) -> None:
        """Replace an existing entry."""
        old = mapping[key]
        mapping[key] = value
        self._undo.append(lambda: mapping.__setitem__(key, old))

    def attribute(self, owner: Any, name: str, value: object) -> None:
        """Replace an attribute that `owner` itself has."""
        old = vars(owner)[name]
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, old))

    def undo(self) -> None:
        """Restore everything, the last first. If one fails, the others are restored all the same."""
        errors = []
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
