"""Which captures are whole rows, and which are blocks of keys that the model puts together later.

Attention in blocks of keys has a softmax for each block, and weights for the blocks that come from their sums: exp(lseᵢ − lse).
So if numbers of several products, one for each row (a sum, a largest, a logsumexp), are put together, then what the running
module has normalised of these products were blocks. Either may come first. If the products were computed twice, once for the
sums and once for the blocks, they are told by their keys.
"""

from collections.abc import Iterable

from torch import Tensor

from isotherm.probe.frames import Frame
from isotherm.probe.session import Session
from isotherm.probe.trail import Trail


class Blocks:
    """What became of each product of a forward pass, by its origin."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._taken: dict[int, tuple[Frame | None, int]] = {}
        self._merged: list[frozenset[int]] = []
        self._read: set[int] = set()
        self._keys: dict[int, Tensor] = {}

    def take(self, origins: Iterable[int], capture: int | None = None) -> None:
        """Note that a capture, the next one if none is given, is of these products."""
        here = self._session.frames.attending, len(self._session.seen.captures) if capture is None else capture
        self._taken |= dict.fromkeys(origins, here)
        self._settle()

    def merge(self, trails: Iterable[Trail]) -> None:
        """Note that numbers for rows of several products were put together."""
        trails = tuple(trails)
        origins = frozenset().union(*(trail.origins for trail in trails))
        if len(origins) < 2 or origins in self._merged:
            return
        self._merged.append(origins)
        self._settle()
        self._keys |= {origin: one.product.b for one in trails if one.product is not None for origin in one.origins}
        if self._session.frames.attending is not None:
            self._session.frames.attending.merged.append([self._keys[one] for one in origins if one in self._keys])

    def _settle(self) -> None:
        """Tell the frames which of their captures are blocks."""
        for origins in self._merged:
            taken = {self._taken[origin] for origin in origins if origin in self._taken}
            for frame in {frame for frame, _ in taken if frame is not None}:
                indices = {index for where, index in taken if where is frame}
                if len(indices) > 1:
                    frame.blocks |= indices

    def read(self, trail: Trail) -> Trail:
        """The trail of weights that were captured. What else is made of the same exponentials is no other attention."""
        self._read |= trail.origins
        for frame in self._session.frames.stack:
            frame.divisors -= trail.origins
        return Trail(trail.origins, None, None, captured=True)

    def are_read(self, trail: Trail) -> bool:
        """Whether the rows of all exponentials that this was made of were captured, or it says how much each block counts."""
        return trail.captured or says_how_much(trail) or (trail.exponential and trail.origins <= self._read)

    def divide(self, by: Trail) -> None:
        """Note that something was divided by sums of exponentials whose rows were not read so far."""
        frame = self._session.frames.attending
        if frame is not None and by.exponential and not by.captured:
            frame.divisors |= by.origins - self._read


def says_how_much(trail: Trail) -> bool:
    """Whether something made of numbers for rows of several products says how much each of these counts."""
    return trail.reduced and len(trail.origins) > 1
