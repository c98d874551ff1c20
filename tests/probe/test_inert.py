"""The patient is left as it was found: no output bit, weight, flag, hook, registry entry, random number or warning differs,
whatever happens while a probe looks."""

import copy
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from isotherm.errors import ArgumentError
from isotherm.ops import api
from isotherm.probe import probe
from isotherm.probe.session import Session
from tests.probe.architectures import NanoAttention, build, widen

transformers = pytest.importorskip("transformers")

HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]
GLOBAL_HOOKS = [name for name in vars(torch_module) if name.startswith("_global_") and "hooks" in name]


def condition(model: nn.Module) -> dict[str, Any]:
    """Everything about the model and about Python's state that a probe could have changed."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.gptj import modeling_gptj
    from transformers.models.llama import modeling_llama

    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "training": [module.training for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [[list(getattr(module, name).items()) for name in HOOKS] for module in model.modules()],
        "global hooks": [list(getattr(torch_module, name).items()) for name in GLOBAL_HOOKS],
        "gradients": [(parameter.requires_grad, parameter.grad is None) for parameter in model.parameters()],
        "random": torch.get_rng_state(),
        "implementation": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "registry": list(ALL_ATTENTION_FUNCTIONS._global_mapping.items()),
        "local registry": list(ALL_ATTENTION_FUNCTIONS._local_mapping.items()),
        "eager": (modeling_llama.eager_attention_forward, list(vars(modeling_llama)), list(vars(modeling_gptj))),
        "classes": [
            vars(kind)["forward"] for kind in (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
        ],
        "call": nn.Module.__call__,
        "own": (api._solve, api._with_sink),
        "modes": torch._C._len_torch_function_stack(),
        "grad mode": torch.is_grad_enabled(),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "filters": list(warnings.filters),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, before in one.items():
        after = other[name]
        if name == "state":
            assert list(before) == list(after)
            assert all(torch.equal(before[key], after[key]) for key in before)
        elif name == "random":
            assert torch.equal(before, after)
        else:
            assert before == after, name


MODELS = ["llama", "gptj", "bert", "t5", "swin-v2", "falcon"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_everything_is_as_before(name: str, training: bool):
    model, batch = build(name)
    model.train(training)
    before = condition(model)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.manual_seed(3)
        plain = model(**batch)[0]
        state = torch.get_rng_state()
        told = len(heard)
        torch.manual_seed(3)
        with probe(model) as seen:
            probed = model(**batch)[0]
    assert len(heard) == 2 * told
    assert torch.equal(plain, probed)
    assert torch.equal(state, torch.get_rng_state()), "the probe drew random numbers"
    torch.set_rng_state(before["random"])
    assert_same(before, condition(model))
    assert seen.captures


class Sparse(nn.Module):
    """Something is done in place to a tensor that has no memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = NanoAttention()

    def forward(self, x: Tensor) -> Tensor:
        graph = torch.eye(x.shape[1]).to_sparse()
        graph.mul_(0.5)
        return torch.stack([torch.sparse.mm(graph, one) for one in self.attention(x)])


def test_sparse_tensors_are_left_in_peace():
    model, x = widen(Sparse()), torch.randn(2, 5, 32)
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(plain, model(x))
    assert seen.captures
    assert not seen.unseen


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.good, self.bad = NanoAttention(), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.bad(self.good(x))


class Boom(Exception):
    pass


def test_an_exception_of_the_model_passes_unchanged():
    model = widen(Broken())
    before = condition(model)
    error = Boom("mine")

    def fail(*_: object) -> None:
        raise error

    handle = model.bad.register_forward_pre_hook(fail)
    with pytest.raises(Boom) as raised, probe(model) as seen:
        model(torch.randn(2, 5, 32))
    handle.remove()
    assert raised.value is error
    assert len(seen.captures) == 1
    torch.set_rng_state(before["random"])
    assert_same(before, condition(model))
    with probe(model) as again:
        model(torch.randn(2, 5, 32))
    assert len(again.captures) == 1


def test_an_exception_inside_an_attention_function_passes_unchanged():
    model, batch = build("llama")
    before = condition(model)
    with pytest.raises(RuntimeError, match="size of tensor"), probe(model):
        model(**batch, attention_mask=torch.zeros(2, 1, 3, 3))
    assert_same(before, condition(model))


def test_a_model_may_catch_its_own_exceptions_and_go_on():
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.broken = NanoAttention(), Broken()
            self.broken.bad = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            try:
                self.broken(x)
            except RuntimeError:
                return self.attention(x)
            return x

    model = widen(Careful())
    with probe(model) as seen:
        model(torch.randn(2, 5, 32))
    assert [capture.name for capture in seen.captures] == ["broken.good", "attention"]


@pytest.mark.parametrize("where", ["capture", "before", "after", "end"])
def test_a_failure_of_the_probe_never_stops_the_model(where: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside the probe")

    target = {"capture": "isotherm.probe.sampled.Sampler.take", "before": "isotherm.probe.frames.Frames.note",
              "after": "isotherm.probe.products.of_matrices", "end": "isotherm.probe.factors.Tracer.trace"}[where]  # fmt: skip
    monkeypatch.setattr(target, fail)
    model, x = widen(NanoAttention()), torch.randn(2, 5, 32)
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(plain, model(x))
    assert any("ZeroDivisionError: inside the probe" in entry.why.en for entry in seen.unseen)
    assert any("ZeroDivisionError: inside the probe" in entry.why.zh for entry in seen.unseen)


def test_autograd_goes_through_and_captures_are_detached():
    for name in ("llama", "gptj"):
        model, batch = build(name)
        model.train()

        def gradients(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
            model.zero_grad()
            model(**batch, labels=batch["input_ids"]).loss.backward()
            return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

        torch.manual_seed(0)
        plain = gradients(model, batch)
        torch.manual_seed(0)
        with probe(model) as seen:
            probed = gradients(model, batch)
        assert all(map(torch.equal, plain, probed))
        for capture in seen.captures:
            problem = capture.problem
            tensors = (problem.q, problem.k, problem.v, problem.bias, problem.visibility.mask, capture.sink)
            assert not any(tensor is not None and tensor.requires_grad for tensor in tensors)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_is_one_capture_per_layer(reentrant: bool):
    model, batch = build("llama")
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with probe(model) as seen:
        model(**batch, labels=batch["input_ids"]).loss.backward()
    assert [capture.name for capture in seen.captures] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert seen.unseen == []


def test_checkpointed_hand_written_attention_is_one_capture():
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = NanoAttention()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.attention, x, use_reentrant=False)

    model = widen(Wrapped())
    with probe(model) as seen:
        model(torch.randn(2, 5, 32, requires_grad=True)).sum().backward()
    assert len(seen.captures) == 1


def test_probes_nest():
    for name in ("llama", "gptj", "bert"):
        model, batch = build(name)
        before = condition(model)
        with torch.no_grad(), probe(model) as outer:
            with probe(model) as inner:
                model(**batch)
            model(**batch)
        assert len(inner.captures) == 2
        assert len(outer.captures) == 4
        assert inner.unseen == outer.unseen == []
        assert_same(before, condition(model))


def test_probes_nest_around_fused_paths():
    model = widen(nn.TransformerEncoderLayer(24, 4, 32, batch_first=True))
    x = torch.randn(2, 5, 24)
    with torch.no_grad():
        plain = model(x)
        with probe(model) as outer, probe(model) as inner:
            assert torch.equal(plain, model(x))
    assert len(inner.captures) == len(outer.captures) == 1


def test_another_model_in_the_same_block_is_not_looked_at():
    model, other = widen(NanoAttention()), widen(NanoAttention())
    x = torch.randn(2, 5, 32)
    with probe(model) as seen:
        other(x)
        F.scaled_dot_product_attention(x, x, x)
        nn.MultiheadAttention(32, 4)(x, x, x)
    assert seen.captures == []
    assert seen.unseen == []


def test_another_threads_calls_are_not_mixed_in():
    model, x = widen(NanoAttention()), torch.randn(2, 5, 32)
    with probe(model) as seen:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        model(x)
    assert len(seen.captures) == 1


def test_weights_written_in_place_after_the_projection_are_seen_as_they_were():
    class InPlace(NanoAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x)
            q *= 0.25
            k = k.clone()  # memory of its own
            y = F.scaled_dot_product_attention(q, k, v, scale=1.0)
            for given in (q, k):
                given.zero_()
            return self.merge(y)

    model, x = widen(InPlace()), torch.randn(2, 5, 32)
    with torch.no_grad():
        plain = model(x)
        with probe(model) as seen:
            assert torch.equal(plain, model(x))
    (capture,) = seen.captures
    assert capture.q_factor.value == pytest.approx(0.25, rel=1e-5)
    assert capture.problem.q.abs().min() > 0
    assert capture.problem.k.abs().min() > 0


@pytest.mark.parametrize("inference", [False, True])
def test_no_grad_and_inference_mode(inference: bool):
    model, batch = build("llama")
    with torch.inference_mode(inference), torch.no_grad():
        plain = model(**batch).logits
        with probe(model) as seen:
            assert torch.equal(plain, model(**batch).logits)
    assert len(seen.captures) == 2
    assert seen.unseen == []


def test_autocast():
    for name in ("llama", "gptj"):
        model, batch = build(name)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            plain = model(**batch).logits
            with probe(model) as seen:
                assert torch.equal(plain, model(**batch).logits)
        assert len(seen.captures) == 2
        assert seen.unseen == []


@pytest.mark.parametrize("whole", [True, False], ids=["module", "in-place"])
def test_compiled_models_are_seen(whole: bool):
    model, batch = build("llama", "sdpa")
    plain = model(**batch).logits
    if whole:
        compiled = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
        compiled = model
    before = compiled(**batch).logits
    with probe(compiled) as seen:
        probed = compiled(**batch).logits
    assert torch.equal(plain, probed)
    assert torch.equal(before, compiled(**batch).logits)
    assert [capture.name for capture in seen.captures] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert seen.unseen == []
    torch._dynamo.reset()


def test_a_compiled_part_is_seen():
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.compile(NanoAttention(), backend="eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x)

    model, x = widen(Partly()), torch.randn(2, 5, 32)
    model(x)
    with probe(model) as seen:
        model(x)
    assert [capture.name for capture in seen.captures] == ["attention"]
    torch._dynamo.reset()


class Counted:
    """A backend that counts how often what it compiled has run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, graph: Any, _: object) -> Any:
        def run(*args: Any) -> Any:
            self.runs += 1
            return graph.forward(*args)

        return run


def test_models_that_are_not_probed_run_compiled():
    """A teacher, a copy, or the other half of a GAN is no business of the probe's; a module that has the model in it is."""
    torch._dynamo.reset()
    before, inside = Counted(), Counted()
    model, x = widen(NanoAttention()), torch.randn(2, 5, 32)
    first, second = (torch.compile(widen(NanoAttention()), backend=backend) for backend in (before, inside))
    plain = first(x)
    with probe(model) as seen:
        assert torch.equal(first(x), plain)
        assert before.runs == 2
        found = second(x)
        assert inside.runs == 1
        assert seen.captures == []
        model(x)
        first(x)
    assert before.runs == 3
    assert len(seen.captures) == 1
    assert torch.equal(second(x), found)
    assert inside.runs == 2
    torch._dynamo.reset()


def test_a_module_that_cannot_be_asked_for_its_parts_runs():
    class Odd(nn.Module):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model, x, odd = widen(NanoAttention()), torch.randn(2, 5, 32), Odd()
    odd.__dict__["_modules"] = None
    with probe(model) as seen:
        assert torch.equal(odd.forward(x), 2 * x)
        assert torch.equal(Odd.__call__(odd, x), 2 * x)
        model(x)
    assert len(seen.captures) == 1


@pytest.mark.parametrize("held", ["as a part", "in a list"])
def test_a_compiled_model_inside_another_module_is_seen(held: str):
    class Around(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner: Any = inner if held == "as a part" else [inner]

        def forward(self, x: Tensor) -> Any:
            return (self.inner if held == "as a part" else self.inner[0])(x)

    torch._dynamo.reset()
    counted, model = Counted(), widen(NanoAttention())
    around = Around(torch.compile(model, backend=counted))
    with probe(model) as seen:
        around(torch.randn(2, 5, 32))
    assert len(seen.captures) == 1
    assert counted.runs == 0
    torch._dynamo.reset()


def test_a_copy_of_a_probed_model_holds_nothing_of_the_probe():
    model, batch = build("llama")
    with torch.no_grad(), probe(model):
        model(**batch)
    assert sorted(copy.deepcopy(model).state_dict()) == sorted(model.state_dict())


def test_only_models_can_be_probed():
    with pytest.raises(ArgumentError, match=r"model: expected a torch.nn.Module, got int"), probe(3):  # type: ignore[arg-type]
        pass


def test_an_attention_module_that_never_attends_is_listed():
    class LinearAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ (x.mT @ x)

    model = nn.Sequential(LinearAttention())
    with probe(model) as seen:
        model(torch.randn(2, 5, 4))
        model(torch.randn(2, 5, 4))
    assert {*seen.suspects} == {"0"}
    with probe(model, seen.suspects) as seen:
        model(torch.randn(2, 5, 4))
    assert [(entry.name, entry.module, entry.severity) for entry in seen.unseen] == [("0", "LinearAttention", "note")]


def test_transformers_is_not_needed():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import torch; from isotherm.probe import probe\n"
        "m = torch.nn.MultiheadAttention(8, 2)\n"
        "x = torch.randn(3, 1, 8)\n"
        "with probe(m) as seen: m(x, x, x)\n"
        "assert len(seen.captures) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_probe_does_not_import_transformers():
    code = "import sys, isotherm.probe; assert 'transformers' not in sys.modules and 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_session_keeps_no_frames_when_nothing_runs():
    session = Session(NanoAttention())
    assert not session.awake
    assert session.frames.top is None


def test_flex_attention_is_followed_in_a_process_that_never_compiled():
    code = (
        "import torch, isotherm\n"
        "from torch.nn.attention.flex_attention import flex_attention\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        q = super().forward(x)[:, None]\n"
        "        return flex_attention(q, q, q)\n"
        "with torch.no_grad():\n"
        "    assert len(isotherm.check(Model(8, 8), torch.randn(1, 5, 8)).layers) == 1\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
