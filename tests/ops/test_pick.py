"""Which implementation is asked, here and on a GPU. What the kernels of a GPU compute is tested in tests/ops/triton."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch

from isotherm import attention
from isotherm.errors import UnsupportedError
from isotherm.ops import api, blockwise, reference, triton
from isotherm.scale import Sinks

OPTIONS = {"plain": {}, "causal": {"causal": True}, "window": {"window": 3}, "sink": {"scale": Sinks(0.5)}}
REFUSED_BY_PYTORCH = ("window", "sink")


@pytest.fixture
def q() -> torch.Tensor:
    return torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Every tensor says that it lies on a GPU, and the kernels there only note that they were asked."""
    calls: list[str] = []

    def solve(problem, *, stats):
        calls.append("solve")
        return reference.solve(problem, stats=stats)

    def statistics(problem, rows):
        calls.append("statistics")
        return blockwise.statistics(problem if rows is None else problem.take(rows))

    kernels = SimpleNamespace(unsupported=lambda _: None, solve=solve, statistics=statistics)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(api, "triton", kernels)
    return calls


@pytest.mark.parametrize("stats", [False, True], ids=["output alone", "statistics"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_a_gpu_takes_our_kernels_for_statistics_and_for_what_pytorch_refuses(kind, stats, q, asked):
    ours = stats or kind in REFUSED_BY_PYTORCH
    assert attention(q, q, q, stats=stats, **OPTIONS[kind]).impl == ("triton" if ours else "sdpa")
    assert asked == (["solve"] if ours else [])


@pytest.mark.parametrize("impl", ["auto", "sdpa", "triton", "blockwise", "reference"])
def test_a_gpu_samples_rows_with_our_kernels_unless_another_implementation_is_named(impl, q, asked):
    stats = attention(q, q, q, rows=torch.tensor([1, 3]), impl=impl).stats
    assert ("statistics" in asked) == (impl in ("auto", "sdpa", "triton"))
    assert (stats.rows.tolist(), stats.total_rows) == ([1, 3], 5)


@pytest.mark.parametrize("stats", [False, True], ids=["output alone", "statistics"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_what_our_kernels_do_not_support_is_computed_without_them(kind, stats, q, asked, monkeypatch):
    monkeypatch.setattr(api.triton, "unsupported", lambda _: "this")
    found = attention(q, q, q, stats=stats, **OPTIONS[kind])
    assert found.impl == ("blockwise" if kind in REFUSED_BY_PYTORCH or stats else "sdpa")
    assert asked == []


def test_the_kernels_of_a_gpu_are_refused_on_a_cpu_with_the_reason(q, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedError, match="triton"):
        attention(q, q, q, impl="triton")


@pytest.mark.parametrize(
    ("found", "takes"), [("3.5.1", False), ("3.6.0", True), ("3.10.0+git1", True), ("4.0.0", True)]
)
def test_a_triton_that_cannot_compile_the_kernels_is_named(found, takes, monkeypatch):
    monkeypatch.setattr(triton, "find_spec", lambda _: object())
    monkeypatch.setattr(triton, "version", lambda _: found)
    lacking = triton._lacking()
    assert (lacking is None) == takes
    if lacking is not None:
        assert f"Triton {found}" in lacking.en
        assert f"Triton {found}" in lacking.zh


@pytest.mark.parametrize(("generation", "takes"), [(7, False), (8, True), (12, True)])
def test_a_gpu_that_is_too_small_for_the_kernels_is_named(generation, takes, monkeypatch):
    monkeypatch.setattr(triton, "LACKING", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=generation))
    lacking = triton.lacking(torch.device("cuda", 0))
    assert lacking is None if takes else "Ampere" in lacking.en


def test_a_triton_under_another_name_counts(monkeypatch):
    def version(name):
        if name != "pytorch-triton":
            raise PackageNotFoundError
        return "3.2.0"

    monkeypatch.setattr(triton, "find_spec", lambda _: object())
    monkeypatch.setattr(triton, "version", version)
    assert "3.2.0" in triton._lacking().en
