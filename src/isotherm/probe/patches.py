"""Things replaced for the time of a probe, and put back in reverse order whatever happens."""

from collections.abc import Callable, MutableMapping
from typing import Any


class Patches:
    """What was replaced."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def entry(self, mapping: MutableMapping[str, Any], key: str, value: object) -> None:
        """Replace an entry that is there."""
        old = mapping[key]
        mapping[key] = value
        self._undo.append(lambda: mapping.__setitem__(key, old))

    def attribute(self, owner: Any, name: str, value: object) -> None:
        """Replace an attribute that `owner` itself has."""
        old = vars(owner)[name]
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, old))

    def undo(self) -> None:
        """Put everything back, the last first; one that fails does not keep the others from it."""
        errors = []
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
