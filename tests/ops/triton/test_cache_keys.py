"""Later processes find compiled kernels in the cache, whichever kernel they use first."""

import os
import pkgutil
import subprocess
import sys

from isotherm.ops import triton as kernels
from isotherm.ops.triton import cache_keys

KEYS = """
import pkgutil, sys
from importlib import import_module
from isotherm.ops import triton
from triton.runtime.jit import JITFunction
modules = [import_module(f"isotherm.ops.triton.{module.name}") for module in pkgutil.iter_modules(triton.__path__)]
found = {
    f"{module.__name__}.{name}": each
    for module in modules
    for name, each in vars(module).items()
    if isinstance(each, JITFunction)
}
for name in sorted(found, reverse=sys.argv[1] == "backwards"):
    found[name].cache_key
for name in sorted(found):
    print(name, found[name].cache_key)
"""


def _keys(order: str) -> str:
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", KEYS, order], env=plain, capture_output=True, text=True, check=True
    ).stdout


def test_keys_do_not_depend_on_which_kernel_is_used_first() -> None:
    forwards = _keys("forwards")
    assert "several_scales_fast_kernel.fast_scales " in forwards
    assert forwards == _keys("backwards")


def test_every_kernel_is_asked_for() -> None:
    there = {module.name for module in pkgutil.iter_modules(kernels.__path__) if module.name.endswith("_kernel")}
    assert there - set(cache_keys.KERNEL_FILES) == {"fast_hopper_kernel"}
