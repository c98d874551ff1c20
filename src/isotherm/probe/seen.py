"""What a probe brings back."""

from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.probe.capture import Capture
from isotherm.record import Unseen


class NotFinite(NamedTuple):
    """A module whose output has NaN or Inf, and the index of the last call captured before it ended."""

    module: str
    capture: int | None


@dataclass
class Seen:
    """What a probe brings back: `captures` in the order of the calls, the attention modules that it could not see into, the
    first module with a captured call inside it whose output is not finite, and `suspects`, the names of modules that have
    projections like those of attention. A second probe may look at these more closely."""

    captures: list[Capture] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    not_finite: NotFinite | None = None
    suspects: list[str] = field(default_factory=list)
