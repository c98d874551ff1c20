"""Trace vectors back to what frames have recorded, at once."""

from torch import Tensor

from isotherm.probe import Factor
from isotherm.probe.factors import Tracer
from isotherm.probe.frames import Frame, Recorded
from isotherm.probe.sampled import Sampler, read


def trace(used: Tensor, frames: list[Frame]) -> tuple[Factor, Recorded | None]:
    """The factor on `used`, and the projection that it came from."""
    sample = Sampler().take(used, frames)
    read([] if sample is None else [sample])
    return Tracer().trace(sample)
