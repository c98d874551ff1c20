"""The same probe on a GPU: cuDNN's and flash's kernels behind PyTorch's function, half precision, fused encoder paths."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import isotherm
from isotherm.probe import probe
from tests.probe.architectures import TRANSFORMERS, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
transformers = pytest.importorskip("transformers")
NAMES = ["llama", "gpt2", "bert", "gemma2", "t5", "whisper", "qwen3", "vit"]


def on_gpu(name, dtype):
    """Model and batch moved; token ids stay whole numbers."""
    try:
        model, batch = build(name, attention="sdpa")
    except ValueError:
        model, batch = build(name, attention="eager")

    def move(value):
        return value.to("cuda", dtype if value.is_floating_point() else value.dtype)

    moved = {key: move(value) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    return model.to("cuda", dtype), moved


def first(output):
    return next(value for value in output.values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_bit_identical_and_every_call_is_seen(name, dtype):
    model, batch = on_gpu(name, dtype)
    with torch.no_grad():
        before = first(model(**batch))
        with probe(model) as seen:
            during = first(model(**batch))
    assert torch.equal(before, during)
    assert len(seen.captures) == TRANSFORMERS[name].calls
    assert seen.unseen == []


@pytest.mark.parametrize("name", NAMES)
def test_a_stock_architecture_raises_no_alarm(name):
    model, batch = on_gpu(name, torch.bfloat16)
    report = isotherm.check(model, batch, what_if=())
    assert [f.code for f in report.findings if f.code in ("scale-mismatch", "implementations-disagree")] == []


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "CUDNN_ATTENTION"])
def test_statistics_under_each_kernel_are_those_of_the_cpu(backend):
    model, batch = build("llama", attention="sdpa")
    expected = isotherm.check(model, batch, what_if=(), compare=False)
    model, batch = on_gpu("llama", torch.bfloat16)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        got = isotherm.check(model, batch, what_if=(), compare=False)
    for one, other in zip(expected.layers, got.layers, strict=True):
        assert other.scale.agrees
        for a, b in zip(one.head_stats, other.head_stats, strict=True):
            assert b.entropy.mean == pytest.approx(a.entropy.mean, rel=0.05)


def test_pytorchs_fused_encoder_is_seen_and_stays_fused():
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval().cuda()
    x = torch.randn(2, 17, 64, device="cuda")
    with torch.no_grad():
        before = model(x)
        with probe(model) as seen:
            during = model(x)
    assert torch.equal(before, during)
    assert [capture.name for capture in seen.captures] == ["layers.0.self_attn", "layers.1.self_attn"]


def test_a_training_step_is_the_same_with_and_without():
    model, batch = on_gpu("llama", torch.float32)
    gradients = []
    for watched in (False, True):
        model.zero_grad()
        torch.manual_seed(0)
        if watched:
            with probe(model):
                first(model(**batch)).square().mean().backward()
        else:
            first(model(**batch)).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
