"""Inside a compiled or exported graph: what sizes and numbers may stay open, and what is never read there.

`torch.export` is asked by its whole name: importing from it loads Triton, which tests/ops/triton has to do first.
"""

import pytest
import torch
from torch import func, nn
from torch._subclasses import FakeTensorMode

from isotherm import attention
from isotherm.errors import UnsupportedError
from isotherm.ops import api, kept
from isotherm.scale import InverseSqrt, PerHead

pytestmark = pytest.mark.filterwarnings("ignore")  # Dynamo's own
IDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2]])
OPEN = {
    "plain": ({"causal": True}, 7),
    "grouped": ({}, 7, 1),
    "fewer queries, top left": ({"causal": "top-left"}, 3),
    "documents": ({"documents": IDS, "impl": "reference"}, 7),
    "a factor for each head": ({"scale": InverseSqrt() * PerHead(torch.tensor([0.5, 2.0]))}, 7),
}


def draw(queries=7, key_heads=2):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, h, n, 8, generator=g) for h, n in ((2, queries), (key_heads, 7), (key_heads, 7))]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", OPEN)
def test_one_graph_whether_sizes_are_open_or_not(kind, dynamic):
    options, *sizes = OPEN[kind]
    documents = options.get("documents")

    def call(q, k, v, documents):
        return attention(q, k, v, **options | {"documents": documents}).output

    torch._dynamo.reset()
    given = (*draw(*sizes), documents)
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), call(*given))


TRANSFORMS = {
    "grad": lambda f, q: func.grad(lambda q: f(q).sin().sum())(q),
    "vmap": lambda f, q: func.vmap(f)(torch.stack([q, 2 * q])),
}


@pytest.mark.parametrize("options", [{}, {"stats": True}, {"window": 3}], ids=["plain", "statistics", "window"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_is_compiled_as_it_is_computed(transform, options):
    """Tiles are no part of a graph, and outside of it they are no part of the transform."""
    torch._dynamo.reset()
    q, k, v = draw()

    def call(q):
        return transform(lambda q: attention(q, k, v, **options).output, q)

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(q), call(q))


class Layer(nn.Module):
    """Attention over one projection."""

    def __init__(self, **options):
        super().__init__()
        self.qkv, self.options = nn.Linear(8, 24), options

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        found = attention(q, k, v, **self.options)
        return found.output if found.stats is None else (found.output, found.stats.entropy)


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_an_exported_layer_takes_other_lengths(strict):
    torch._dynamo.reset()
    layer, sizes = (
        Layer(causal=True),
        {0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("t", min=4, max=64)},
    )
    exported = torch.export.export(layer, (torch.randn(2, 7, 8),), strict=strict, dynamic_shapes=(sizes,)).module()
    x = torch.randn(3, 9, 8)
    torch.testing.assert_close(exported(x), layer(x))


def test_an_export_may_leave_the_heads_open():
    class Whole(nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, causal=True).output

    given = tuple(draw(key_heads=2))
    exported = torch.export.export(
        Whole(),
        given,
        dynamic_shapes=({1: torch.export.Dim.AUTO}, {1: torch.export.Dim.AUTO}, {1: torch.export.Dim.AUTO}),
    ).module()
    more = tuple(torch.cat([x, -x, x], 1) for x in given)
    torch.testing.assert_close(exported(*more), Whole()(*more))


WITHOUT_SDPA = {
    "statistics": {"stats": True},
    "rows": {"rows": 3},
    "window": {"window": 3},
    "documents": {"documents": [0, 3, 7]},
}


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("options", WITHOUT_SDPA.values(), ids=WITHOUT_SDPA)
def test_exported_it_is_the_same(options, strict):
    """Tiles cannot be part of a graph, and an exported one cannot break."""
    torch._dynamo.reset()
    layer, x = Layer(causal=True, **options), torch.randn(2, 7, 8)
    torch.testing.assert_close(torch.export.export(layer, (x,), strict=strict).module()(x), layer(x))


@pytest.mark.parametrize("options", [{}, *WITHOUT_SDPA.values()], ids=["plain", *WITHOUT_SDPA])
def test_traced_it_is_the_same(options):
    """As exporters to ONNX and TorchScript do it."""
    before = list(api._plans), list(kept._kept)
    layer, x = Layer(causal=True, **options), torch.randn(2, 7, 8)
    traced = torch.jit.trace(layer, (torch.randn(2, 7, 8),), check_trace=False)
    assert (list(api._plans), list(kept._kept)) == before  # sizes are tensors there: no later call has them
    torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.parametrize("options", WITHOUT_SDPA.values(), ids=WITHOUT_SDPA)
def test_fake_tensors_have_the_shapes_of_real_ones(options):
    """Whoever estimates a model's memory runs it on these."""
    hidden = {"bias": torch.zeros(7, 7)}
    want = attention(*draw(), **hidden, **options)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        got = attention(*map(mode.from_tensor, draw()), **hidden, **options)
        with pytest.raises(UnsupportedError, match="'blockwise' does not support tensors without numbers"):
            attention(*map(mode.from_tensor, draw()), impl="blockwise")
    assert got.output.shape == want.output.shape
    assert (got.stats is None) == (want.stats is None)
    assert got.stats is None or got.stats.entropy.shape == want.stats.entropy.shape
