"""Kernels run as compiled on a GPU, and under Triton's interpreter where there is none."""

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    # Read when a kernel is defined, Triton's own among them, so before the first of them is imported.
    os.environ["TRITON_INTERPRET"] = "1"
    if "triton" in sys.modules:  # it cannot be loaded twice
        raise RuntimeError("Triton was loaded before: import transformers' models and torch.export inside of tests")

pytest.importorskip("triton")

if not torch.cuda.is_available():
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor, *scope):
        """NumPy 2.4 no longer turns an array of one element into a whole number, which Triton 3.6 relies on."""
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched

    from tests.ops.triton import bounds, contracted

    bounds.watch()
    contracted.contract()


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Tests patch launchers, so no call may be played from a tape of another test."""
    from isotherm.ops.triton import launch

    launch.forget()


@pytest.fixture
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def splitting(request, monkeypatch):
    """Split keys over programs even where they are few."""
    from isotherm.ops.triton import general, key_splits

    if request.param:
        monkeypatch.setattr(key_splits, "LEAST_SPLIT", 4)
        monkeypatch.setattr(general, "tile_size", lambda call, backward=False: general.TileSize(16, 16, 4, 1))
    return request.param


@pytest.fixture
def small_tiles(monkeypatch):
    """Give the fast path tiles that are small enough for the interpreter."""
    from isotherm.ops.triton import fast, several_scales

    if not torch.cuda.is_available():
        small = {32: fast.Tuning(64, 16, 1, 4)}
        monkeypatch.setattr(fast, "OUTPUT", {False: small, True: small})
        monkeypatch.setattr(fast, "STATISTICS", {False: small, True: {32: fast.Tuning(64, 32, 1, 4)}})
        monkeypatch.setattr(fast, "EDGE", 16)
        monkeypatch.setattr(fast, "SAMPLED", small)
        monkeypatch.setattr(several_scales, "TILES", small)


@pytest.fixture
def sums_pay(device, monkeypatch):
    """A function that makes key sums pay, and returns a number of keys and a type for which they are made."""
    from isotherm.ops.triton import fast

    def ask():
        for name, value in (("LONG", 0), ("LONG_CAUSAL", 0), ("LEAST_CHUNKS", 2)):
            monkeypatch.setattr(fast, name, value)
        if device != "cpu":
            return 2230, torch.bfloat16
        monkeypatch.setattr(fast, "LEAST_KEYS", 16)
        monkeypatch.setattr(
            fast, "KEY_SUM_DTYPES", (torch.float16,)
        )  # the interpreter multiplies bfloat16 as whole numbers
        return 143, torch.float16

    return ask


def pytest_collection_modifyitems(items):
    """Where there is a GPU, `make test-gpu` runs these tests. The interpreter is so slow that `make test` has it run two cases
    of each, the first and the last; `make test-full` runs those in between, too."""
    cases = {}
    for item in items:
        if item.path.parent.name == "triton":
            cases.setdefault((item.path, item.originalname), []).append(item)
    for one in cases.values():
        for item in one if torch.cuda.is_available() else one[1:-1]:
            item.add_marker(pytest.mark.gpu if torch.cuda.is_available() else pytest.mark.slow)
