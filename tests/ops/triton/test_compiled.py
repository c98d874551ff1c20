"""A training step whose attention is measured, as one compiled graph: by the compiler's own kernels on a GPU, else traced."""

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

from isotherm import attention
from isotherm.ops.triton import registration
from isotherm.scale import InverseSqrt, LogN

ON_GPU = torch.cuda.is_available()
BACKEND = "inductor" if ON_GPU else "aot_eager"
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from inside Inductor
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy under the interpreter
]


class Layer(nn.Module):
    """q, k and v are views of one projection, as in many models."""

    def __init__(self, **options):
        super().__init__()
        self.options, self.qkv, self.out = options, nn.Linear(32, 96), nn.Linear(32, 32)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, 16).permute(2, 0, 3, 1, 4)
        found = attention(q, k, v, causal=True, impl="triton", **self.options)
        stats = found.stats
        self.seen.copy_(torch.stack([stats.max_logit.amax(), stats.entropy.mean(), stats.jacobian_trace.mean()]))
        return x + self.out(found.output.transpose(1, 2).reshape(b, t, d))


def step(layer, x, forward):
    layer.zero_grad(set_to_none=True)
    loss = forward(x).float().square().mean()
    loss.backward()
    return loss.detach(), layer.seen.clone(), *(each.grad.clone() for each in layer.parameters())


def pair(device, **options):
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Layer(**options).to(device), torch.randn(2, 19, 32, device=device)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "options",
    [{"stats": True}, {"rows": 5}, {"stats": True, "scale": InverseSqrt() * LogN(4)}, {"stats": True, "window": 5}],
    ids=["statistics", "rows", "a factor for each query", "window"],
)
def test_a_training_step_is_one_graph(options, dynamic, device):
    layer, x = pair(device, **options)
    want = step(layer, x, layer)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=BACKEND)
    torch.testing.assert_close(step(layer, x, compiled), want, rtol=1e-4, atol=1e-5)
    if dynamic:
        longer = torch.randn(3, 23, 32, device=device)
        want = step(layer, longer, layer)
        torch.testing.assert_close(step(layer, longer, compiled), want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{"stats": True}, {"rows": 5}], ids=["statistics", "rows"])
def test_a_training_step_is_replayed_as_cuda_graphs(options, device):
    layer, x = pair(device, **options)
    want = step(layer, x, layer)
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        got = step(layer, x, compiled)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert not torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_under_autocast_it_is_computed_in_half_precision(compiled, device):
    layer, x = pair(device, stats=True)
    forward = torch.compile(layer, fullgraph=True, backend=BACKEND) if compiled else layer
    with torch.autocast(device, torch.float16):
        got = step(layer, x, forward)
    for a, b in zip(got, step(layer, x, layer), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-3)


@pytest.fixture
def counted(monkeypatch):
    """How often the operator ran."""
    runs = []
    run = registration.fast.run_fast_or_general
    monkeypatch.setattr(
        registration.fast, "run_fast_or_general", lambda *given, **named: (runs.append(1), run(*given, **named))
    )
    return runs


def test_activation_checkpointing_keeps_the_statistics_if_told_so(device, counted):
    """Recomputing a layer computes its attention again, unless a policy keeps what the operator returned."""
    layer, x = pair(device, stats=True)
    x.requires_grad_()

    def policy(context, operator, *given, **named):
        keep = operator is torch.ops.isotherm.attend.default
        return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        return checkpoint.create_selective_checkpoint_contexts(policy)

    want = step(layer, x, layer)
    runs = []
    for options in ({}, {"context_fn": contexts}):
        counted.clear()
        got = step(layer, x, lambda x, options=options: checkpoint.checkpoint(layer, x, use_reentrant=False, **options))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        runs.append(len(counted))
    assert runs == [2, 1]


def test_checkpointed_and_compiled(device):
    layer, x = pair(device, stats=True)
    want = step(layer, x, layer)

    @torch.compile(fullgraph=True, backend=BACKEND)
    def compiled(x):
        return checkpoint.checkpoint(layer, x, use_reentrant=False)

    torch.testing.assert_close(step(layer, x, compiled), want, rtol=1e-4, atol=1e-5)
