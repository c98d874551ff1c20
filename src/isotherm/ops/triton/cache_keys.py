"""Makes the keys under which Triton caches compiled kernels on disk the same in every process.

Triton 3.6 derives a kernel's key from the functions that the kernel calls and from the constants they use. It knows the
constants only of functions whose own key was read before. So the key depends on which kernel a process uses first, and
without this file one process recompiles what another has compiled, for seconds a kernel.
"""

from importlib import import_module

KERNEL_FILES = (
    "general_kernel",
    "key_splits_kernel",
    "backward_kernel",
    "fast_recompute_kernel",
    "several_scales_fast_kernel",
    "fast_kernel",
    "shared_kernel",
    "fast_finish_kernel",
    "fast_key_sums_kernel",
    "several_scales_general_kernel",
    "several_scales_sums_kernel",
)
"""All files with kernels but `fast_hopper_kernel`, which shares no function with them."""


def settle() -> None:
    """Read every key once, always in this order."""
    for name in KERNEL_FILES:
        for each in vars(import_module(f"isotherm.ops.triton.{name}")).values():
            getattr(each, "cache_key", None)
