"""Many models trained at once (vmap over stacked parameters), compiled without a graph break, in lower precision."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from isotherm.models import build, smoothed_cross_entropy
from isotherm.scale import ATLAS

from .small import SHAPE, batch

RULED = [("decoder", name) for name, entry in ATLAS.items() if entry.example is not None]
SCORED = [("recurrent", score) for score in ("additive", "multiplicative", "dot", "scaled-dot")]
CASES = [("transformer", "1/sqrt(d)"), ("transformer", "qk-norm"), ("bert", "1/d"), *SCORED, *RULED]


def rule_of(kind: str, name: str):
    return name if kind == "recurrent" or name == "1/d" else ATLAS[name].example


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind} {name}" for kind, name in CASES])
def test_gradients_of_stacked_models_are_each_models_own(kind, name):
    torch.manual_seed(1)
    models = [build(kind, SHAPE, rule_of(kind, name)).double() for _ in range(3)]
    given = batch(kind)

    def loss(parameters, inputs):
        out = functional_call(models[0], parameters, inputs)
        if kind == "bert":
            return out.sin().sum()
        return smoothed_cross_entropy(out, inputs[-1])

    parameters, _ = stack_module_state(models)
    shifts = torch.arange(3).view(3, 1, 1)
    inputs = tuple(torch.where(ids == 0, 0, (ids + shifts) % 12 + 1) for ids in given)
    stacked = vmap(grad(loss))(parameters, inputs)
    for index, model in enumerate(models):
        alone = grad(loss)(dict(model.named_parameters()), tuple(ids[index] for ids in inputs))
        for parameter, gradient in alone.items():
            torch.testing.assert_close(stacked[parameter][index], gradient, atol=1e-11, rtol=1e-9)


RULES = ("1/sqrt(d)", "per-head", "log-n", "qk-norm", "softcap", "sinks", "sigmoid")
COMPILED = [
    ("transformer", "1/sqrt(d)"),
    ("bert", "1/d"),
    ("recurrent", "additive"),
    ("recurrent", "scaled-dot"),
    *(("decoder", name) for name in RULES),
]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own, of itself
@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*one, marks=[pytest.mark.slow] * (place > 1)) for place, one in enumerate(COMPILED)],
    ids=[f"{kind} {name}" for kind, name in COMPILED],
)
def test_a_model_compiles_as_one_graph(kind, name):
    torch.manual_seed(1)
    model, given = build(kind, replace(SHAPE, layers=1), rule_of(kind, name)), batch(kind)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), model(*given))
    compiled(*given).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if not name.startswith(("pooler", "head")))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("transformer", "bert", "recurrent")] + ["decoder"]
)
def test_one_graph_serves_other_lengths(kind):
    torch.manual_seed(1)
    model = build(kind, replace(SHAPE, layers=1), rule_of(kind, "additive" if kind == "recurrent" else "1/d")).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for given in (batch(kind), tuple(ids[:, :-1] for ids in batch(kind))):
        torch.testing.assert_close(compiled(*given), model(*given))


@pytest.mark.parametrize("kind", ["transformer", "decoder", "bert", "recurrent"])
def test_autocast_keeps_close_and_gives_gradients(kind):
    torch.manual_seed(1)
    model, given = build(kind, SHAPE), batch(kind)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(*given)
        low.float().sum().backward()
    torch.testing.assert_close(low.float(), model(*given), atol=0.15, rtol=0.1)


LOW = [name for name, entry in ATLAS.items() if entry.example is not None]


@pytest.mark.parametrize("name", LOW)
def test_every_rule_runs_in_bfloat16_weights_and_under_autocast(name):
    torch.manual_seed(1)
    model, given = build("decoder", SHAPE, ATLAS[name].example), batch("decoder")
    want = model(*given)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(*given)
    out = model.bfloat16()(*given)
    assert out.dtype == torch.bfloat16
    for got in (low, out):
        torch.testing.assert_close(got.float(), want, atol=0.15, rtol=0.1)
