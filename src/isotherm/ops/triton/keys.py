"""The keys under which Triton keeps compiled kernels on disk, made the same in every process.

Triton (3.6) makes a kernel's key from those of the functions it calls and from the constants they use, but knows the
constants of only those whose own key has been asked for before. So the key depends on which kernels a process happened to
use first, and what one process has compiled the next compiles again, for seconds a kernel.
"""

from isotherm.ops.triton import (
    attend_kernel,
    backward_kernel,
    careful_kernel,
    dense_kernel,
    fields_kernel,
    finish_kernel,
    gram_kernel,
    lanes,
    products_kernel,
    scales_kernel,
    sums_kernel,
)

KERNELS = (
    attend_kernel,
    backward_kernel,
    careful_kernel,
    products_kernel,
    dense_kernel,
    fields_kernel,
    finish_kernel,
    gram_kernel,
    lanes,
    scales_kernel,
    sums_kernel,
)
"""All but `hopper_kernel`, which shares no function with them."""


def settle() -> None:
    """Ask for every key once, always in the same order."""
    for module in KERNELS:
        for each in vars(module).values():
            getattr(each, "cache_key", None)
