"""The same models on a CUDA device, where PyTorch has other kernels: outputs, gradients, stacked models."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from isotherm.models import build

from .small import KINDS, SHAPE, batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WIDE = replace(SHAPE, width=64, heads=4, head_dim=16)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_the_cpus(kind):
    torch.manual_seed(1)
    model, given = build(kind, WIDE), batch(kind)
    want = model(*given)
    names = [name for name, _ in model.named_parameters() if not name.startswith(("pooler", "head"))]
    gradients = torch.autograd.grad(want.sin().sum(), [model.get_parameter(name) for name in names])
    model, given = model.cuda(), tuple(ids.cuda() for ids in given)
    got = model(*given)
    torch.testing.assert_close(got.cpu(), want, atol=2e-5, rtol=1e-4)
    on_gpu = torch.autograd.grad(got.sin().sum(), [model.get_parameter(name) for name in names])
    for name, mine, its in zip(names, on_gpu, gradients, strict=True):
        torch.testing.assert_close(mine.cpu(), its, atol=1e-3, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_stays_close(kind):
    torch.manual_seed(1)
    model, given = build(kind, WIDE).cuda(), tuple(ids.cuda() for ids in batch(kind))
    with torch.autocast("cuda", torch.bfloat16):
        low = model(*given)
    torch.testing.assert_close(low.float(), model(*given), atol=0.2, rtol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_models_get_their_own_gradients(kind):
    torch.manual_seed(1)
    models, given = [build(kind, WIDE).cuda() for _ in range(3)], tuple(ids.cuda() for ids in batch(kind))

    def loss(parameters):
        return functional_call(models[0], parameters, given).sin().sum()

    parameters, _ = stack_module_state(models)
    stacked = vmap(grad(loss))(parameters)
    for index, model in enumerate(models):
        for name, gradient in grad(loss)(dict(model.named_parameters())).items():
            torch.testing.assert_close(stacked[name][index], gradient, atol=1e-3, rtol=1e-3)
