"""These tests need many other libraries, so they are collected only on request: `make test-wild`."""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = any("wild" in argument for argument in config.args)
    return None if named or "wild" in config.option.markexpr else True


@pytest.fixture(scope="session", autouse=True)
def torchvision_without_its_kernels() -> Iterator[None]:
    """PyPI has torchvision for CUDA only. Beside a CPU build of torch it finds no kernels, and then fails to import because
    two operators are not even declared. No model here calls them."""
    if importlib.util.find_spec("torchvision") is None:
        yield
        return
    try:
        importlib.import_module("torchvision")
        yield
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")  # exists as long as this object
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
        yield
