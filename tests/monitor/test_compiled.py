"""Compiled models: looked at while they run compiled, compiled once, and trained as if nobody looked."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from isotherm.monitor import dynamo, noting
from isotherm.monitor.compiled import NoteBook
from isotherm.monitor.graphs import NotedCall
from isotherm.monitor.monitor import watch
from isotherm.monitor.valve import Valve
from tests.monitor.loops import Attention, Model, Written, batch, build, train

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch.compile(nn.Identity(), backend="eager")  # loads the compiler
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def compiled(kind=Attention, **options):
    return torch.compile(build(kind), backend="aot_eager", **options)


def watched(model, steps, **options):
    """Losses, the steps that were read, how many of them by notes, and the monitor."""
    monitor, read = watch(model, **{"every": 1, "rows": None, **options}), []
    tell = monitor._telling.reading

    def note(reading):
        read.append(reading)
        tell(reading)

    monitor._telling.reading = note
    losses = train(model, steps, monitor)
    return losses, read, monitor


def same(one, other):
    for name, values in one.values.items():
        np.testing.assert_allclose(other.values[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    for name, values in one.gradients.items():
        np.testing.assert_allclose(other.gradients[name], values, rtol=1e-4, err_msg=name)
    assert other.loss == pytest.approx(one.loss)


@pytest.fixture
def eager_looks(monkeypatch):
    """How many steps were looked at eagerly."""
    from isotherm.monitor import looks

    opened = []
    real = looks.open_session
    monkeypatch.setattr(looks, "open_session", lambda session: (opened.append(session), real(session))[1])
    return opened


@pytest.mark.parametrize(("every", "rows"), [(1, None), (3, None), (2, 6)])
def test_a_compiled_step_is_read_as_an_eager_one_is(every, rows, eager_looks):
    losses, read, monitor = watched(compiled(fullgraph=True), 7, every=every, rows=rows)
    assert graphs() == 1
    assert eager_looks == []
    _, wanted, other = watched(build(), 7, every=every, rows=rows)
    assert [one.step for one in read] == [one.step for one in wanted] == list(range(0, 7, every))
    assert monitor.layers == other.layers
    for one, want in zip(read, wanted, strict=True):
        same(want, one)
    torch._dynamo.reset()
    assert train(compiled(), 7) == losses


def test_attached_before_compiling():
    model = build()
    monitor = watch(model, every=2)
    losses = train(torch.compile(model, backend="aot_eager"), 6, monitor)
    assert graphs() == 1
    assert monitor.latest.step == 4
    torch._dynamo.reset()
    assert losses == pytest.approx(train(compiled(), 6), rel=1e-6)


def test_attached_to_code_that_was_compiled_before(eager_looks):
    model = compiled()
    train(model, 2)
    _, read, _ = watched(model, 4)
    assert graphs() == 1
    assert [one.step for one in read] == [1, 2, 3]  # the first was given to the compiler, for nothing
    assert len(eager_looks) == 4  # the last one saw no forward


def test_a_second_monitor_uses_the_notes_of_the_first(eager_looks):
    model = compiled()
    watched(model, 2)
    _, read, _ = watched(model, 3)
    assert [one.step for one in read] == [0, 1, 2]
    assert graphs() == 1
    assert eager_looks == []


def test_another_model_of_the_class_has_code_of_its_own():
    model, other = compiled(), torch.compile(build(seed=1), backend="aot_eager")
    monitor = watch(model, every=1, rows=None)
    with monitor:
        model(batch(0)).square().mean().backward()
        (100 * other(batch(0))).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert graphs() == 2
    _, (wanted,), _ = watched(build(), 1)
    np.testing.assert_allclose(monitor.latest.values["max_logit"], wanted.values["max_logit"], rtol=1e-5)


def test_notes_are_reached_though_another_model_of_the_class_is_compiled_later(eager_looks):
    """What PyTorch compiled last it tries first, and it would do for the watched model, too."""
    model, others = compiled(), [torch.compile(build(seed=seed), backend="aot_eager") for seed in (1, 2)]
    optimizer, read = torch.optim.SGD(model.parameters(), lr=0.1), []
    with watch(model, every=1, rows=None) as monitor:
        for step in range(4):
            model(batch(step)).square().mean().backward()
            for other in others:
                other(batch(step)).square().mean().backward()
            optimizer.step()
            read.append(monitor.latest.step)
    assert read == [0, 1, 2, 3]
    assert eager_looks == []
    assert graphs() == 2, "one for the watched model, one for all others"
    others[0](batch(0)).square().mean().backward()
    assert graphs() == 2


def test_where_code_without_notes_is_run_after_all_steps_are_looked_at_eagerly(monkeypatch, eager_looks):
    """Another version of PyTorch may not take our guards."""
    keep_apart = dynamo._keep_apart
    monkeypatch.setattr(
        dynamo, "_keep_apart", lambda *given: keep_apart(*given) if any(map(given[3].owns, given[2])) else None
    )
    model, other = compiled(), torch.compile(build(seed=1), backend="aot_eager")
    optimizer, read = torch.optim.SGD(model.parameters(), lr=0.1), []
    with watch(model, every=1, rows=None) as monitor:
        for step in range(6):
            model(batch(step)).square().mean().backward()
            other(batch(step)).square().mean().backward()
            optimizer.step()
            read.append(monitor.latest.step)
    assert read == [0, 0, 0, 3, 4, 5]
    assert len(eager_looks) == 4, "one is open when the monitor ends"


class Half(Model):
    """One layer fused, the other written by hand."""

    def __init__(self, kind, **options):
        super().__init__(Attention, **options)
        self.layers[1] = kind(16, 4)


class Checkpointed(Attention):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize("kind", [Written, Checkpointed])
def test_what_notes_cannot_reach_is_looked_at_eagerly(kind, eager_looks):
    torch.manual_seed(0)
    model = torch.compile(Half(kind), backend="aot_eager")
    losses, read, monitor = watched(model, 4, every=2)
    assert [layer.name for layer in monitor.layers] == ["layers.0", "layers.1"]
    assert [one.step for one in read] == [1, 2]
    assert eager_looks
    assert np.isfinite(read[-1].values["entropy"]).all()
    torch._dynamo.reset()
    torch.manual_seed(0)
    assert losses == pytest.approx(train(Half(kind), 4), rel=1e-5)


class Disabled(Model):
    """The last layer is kept from the compiler, or is not used."""

    used = True

    def forward(self, x):
        x = x + self.layers[0](x)
        return x + torch.compiler.disable(self.layers[1].__call__)(x) if self.used else x


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, with and without a monitor
@pytest.mark.parametrize("used", [True, False])
def test_a_layer_that_is_kept_from_the_compiler_is_looked_at_eagerly(used, eager_looks):
    """One step is looked at eagerly to see whether a layer without a note, of whose class others have one, runs at all."""

    def model():
        torch._dynamo.reset()
        torch.manual_seed(0)
        made = Disabled(heads=(2, 4))
        made.used = used
        return torch.compile(made, backend="aot_eager")

    losses, read, monitor = watched(model(), 7, every=3)
    assert [layer.name for layer in monitor.layers] == ["layers.0", "layers.1"][: 1 + used]
    assert [one.step for one in read] == [0, 1, 3, 6]
    assert len(eager_looks) == (3 if used else 1)
    assert np.isfinite(read[-1].values["entropy"]).all()
    assert losses == pytest.approx(train(model(), 7), rel=1e-5)


def test_validation_and_other_models_run_compiled_beside_an_eager_look():
    """A look begins when a step ends, and what runs before the next one may be long."""
    ran = []

    def backend(graph, _):
        return lambda *given: (ran.append(len(ran)), graph.forward(*given))[1]

    model, other = (torch.compile(build(Attention, seed), backend=backend) for seed in (0, 1))
    for one in (model, other):
        one(batch(0))
        with torch.no_grad():
            one(batch(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, every=1) as monitor:
        for step in range(3):
            before = len(ran)
            model(batch(step)).square().mean().backward()
            assert len(ran) == before + (step == 0), "what was compiled before has no notes: it is looked at uncompiled"
            optimizer.step()
            before = len(ran)
            with torch.no_grad():
                model(batch(step))
            other(batch(step))
            assert len(ran) == before + 2
    assert monitor.latest is not None


def test_validation_leaves_no_note():
    model = compiled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, rows=None) as monitor:
        with torch.no_grad():
            model(100 * batch(5))
        model(batch(0)).square().mean().backward()
        with torch.no_grad():
            model(100 * batch(5))
        optimizer.step()
    _, (wanted,), _ = watched(build(), 1)
    np.testing.assert_allclose(monitor.latest.values["max_logit"], wanted.values["max_logit"], rtol=1e-5)


def test_micro_batches_add_up():
    monitor = watch(compiled(), every=1, rows=None)
    train(monitor.model, 1, monitor, pieces=2)
    other = watch(build(), every=1, rows=None)
    train(other.model, 1, other, pieces=2)
    same(other.latest, monitor.latest)


class Masked(Attention):
    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mask = torch.ones(t, t, dtype=torch.bool).tril(1)
        return self.out(F.scaled_dot_product_attention(q, k, v, mask, scale=0.3).transpose(1, 2).reshape(b, t, w))


class Biased(Attention):
    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        bias = torch.arange(float(t)) - torch.arange(float(t))[:, None]
        out = F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=bias)
        return self.out(out.transpose(1, 2).reshape(b, t, w))


class Added(Attention):
    """A mask of numbers: some hide a key, others are a bias."""

    hidden = -torch.inf

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        mask = (torch.arange(float(t)) - torch.arange(float(t))[:, None]).masked_fill(later, self.hidden)
        return self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(b, t, w))


class Large(Added):
    hidden = -1e9


class Grouped(Attention):
    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], is_causal=True, enable_gqa=True)
        return self.out(out.transpose(1, 2).reshape(b, t, w))


@pytest.mark.parametrize("kind", [Masked, Biased, Added, Large, Grouped])
def test_masks_biases_scales_and_groups(kind, eager_looks):
    _, read, _ = watched(compiled(kind, fullgraph=True), 2)
    assert eager_looks == []
    _, wanted, _ = watched(build(kind), 2)
    for one, want in zip(read, wanted, strict=True):
        same(want, one)


def test_the_valve_acts_on_compiled_models(eager_looks):
    model = compiled()
    _, read, _ = watched(model, 1)
    tau = 0.5 * float(read[0].values["max_logit"].max())
    torch._dynamo.reset()
    _, read, monitor = watched(compiled(), 6, valve=Valve(tau))
    assert len(eager_looks) == 1  # the first, which finds the projections
    assert [one.step for one in read] == [0, 2, 3, 4, 5]
    assert {event.kind for event in monitor.events} == {"valve"}
    assert read[-1].values["max_logit"].max() < 1.5 * tau


class Towers(nn.Module):
    """A tower behind a frozen one."""

    def __init__(self, without_grad):
        super().__init__()
        self.frozen, self.tower, self.without_grad = build(seed=1).requires_grad_(without_grad), build(), without_grad

    def forward(self, x):
        with torch.no_grad() if self.without_grad else nullcontext():
            x = self.frozen(x)
        return self.tower(x)


@pytest.mark.parametrize("without_grad", [True, False])
def test_where_no_gradient_comes_there_is_none_to_read(without_grad, eager_looks):
    _, read, _ = watched(torch.compile(Towers(without_grad), backend="aot_eager"), 3)
    assert eager_looks == []
    _, wanted, _ = watched(Towers(without_grad), 3)
    for one, want in zip(read, wanted, strict=True):
        same(want, one)
        assert np.isnan(one.gradients["q"]).tolist() == [True, True, False, False]


def test_a_gradient_of_nothing_is_read_as_nothing(eager_looks):
    model = torch.compile(build(), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1) as monitor:
        (0 * model(batch(0))).sum().backward()
        optimizer.step()
    assert eager_looks == []
    assert monitor.latest.gradients["q"].tolist() == [0, 0]


def test_the_valve_does_not_act_twice_on_one_reading(monkeypatch):
    """A GPU is not asked whether code with notes has run; if it has not, the last reading is an earlier step's."""
    monkeypatch.setattr(NoteBook, "reached", lambda _: True)
    model = compiled()
    bare = torch._dynamo.disable(model._orig_mod.forward)
    optimizer, read = torch.optim.SGD(model.parameters(), lr=0.0), set()
    with watch(model, every=1, rows=None, valve=Valve(0.05)) as monitor:
        for step in range(6):
            with torch.no_grad():
                for layer in model._orig_mod.layers:
                    layer.qkv.weight *= 1.5
            (model if step < 4 else bare)(batch(0)).square().mean().backward()
            optimizer.step()
            read.add(monitor.latest.step)
    assert read == {0, 2, 3, 5}
    assert {event.step for event in monitor.events} == {step + 1 for step in read}


def test_an_error_of_ours_leaves_the_graph_to_the_compiler(monkeypatch, eager_looks):
    def broken(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(NotedCall, "of", broken)
    losses, read, _ = watched(compiled(), 4)
    assert len(read) == 3
    assert len(eager_looks) == 4
    torch._dynamo.reset()
    assert train(build(), 4) == pytest.approx(losses, rel=1e-6)


def test_nothing_is_left_in_the_compiler():
    output_graph = sys.modules["torch._dynamo.output_graph"].OutputGraph
    before = output_graph.call_user_compiler
    model = compiled()
    with watch(model, every=1):
        assert output_graph.call_user_compiler is not before
    assert output_graph.call_user_compiler is before
    train(model, 2)  # the notes in its code do nothing


def test_a_compilation_that_outlasts_the_last_monitor_goes_on(monkeypatch):
    from torch._dynamo.output_graph import OutputGraph

    monkeypatch.setattr(OutputGraph, "call_user_compiler", lambda dynamo, graph, *given: graph)
    notes = SimpleNamespace(others=False)
    dynamo.listen(notes)
    ours = OutputGraph.call_user_compiler  # which another thread is about to call
    dynamo.leave(notes)
    assert ours(SimpleNamespace(compiler_fn=None), "graph", []) == "graph"


def by_layers(model):
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    return model


class Broken(Model):
    """Its graph breaks between the layers, which are then compiled one by one."""

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
            torch._dynamo.graph_break()
        return x


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler asks for
@pytest.mark.parametrize("way", ["layers", "breaks", "twice", "layers twice"])
def test_code_that_is_compiled_in_parts_or_runs_twice_is_trained_and_read(way):
    """Each part keeps tensors for its own backward pass; notes must not make autograd refuse them. Contrastive losses and DPO
    run a model twice before that pass."""
    kind = Broken if way == "breaks" else Model

    def trained(every):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = kind(heads=(4, 4, 4))
        run = by_layers(model) if "layers" in way else torch.compile(model, backend="aot_eager")
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        with nullcontext() if every is None else watch(run, every=every, rows=None) as monitor:
            for step in range(5):
                x = batch(step)
                made = run(x) + run(x.flip(0)) if "twice" in way else run(x)
                loss = made.square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses, graphs(), monitor

    plain = trained(None)
    torch._dynamo.utils.counters.clear()
    *watched, monitor = trained(2)
    np.testing.assert_allclose(watched[0], plain[0], rtol=1e-5)
    assert watched[1] == plain[1]
    assert monitor.events == []
    assert [layer.name for layer in monitor.layers] == ["layers.0", "layers.1", "layers.2"]
    assert monitor.latest.step == 4
    assert (monitor.latest.gradients["q"] > 0).all()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_on_a_gpu_only_what_inductor_compiles_has_notes(backend, monkeypatch):
    """Other backends write to the pools as PyTorch does, and autograd refuses a second backward pass after that."""
    torch._dynamo.reset()
    on_a_gpu = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=(1, 2, 8, 64))
    can_note, asked = noting.can_note, []

    def answer(q, mask, backend):
        asked.append(can_note(on_a_gpu, mask, backend))
        return False

    monkeypatch.setattr(noting, "can_note", answer)
    monkeypatch.setattr(noting.kernels, "lacking", lambda _: None)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: graph.forward)  # it needs g++
    model = build(heads=(2,))
    train(torch.compile(model, backend=backend), 3, watch(model, every=2))
    assert asked == [backend == "inductor"]


def test_a_part_that_is_compiled_by_itself_has_its_name_in_the_model():
    torch._dynamo.reset()
    model = nn.ModuleDict({"body": build(), "head": nn.Linear(16, 16)})
    body = torch.compile(model["body"], backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1) as monitor:
        for step in range(3):
            model["head"](body(batch(step))).square().mean().backward()
            optimizer.step()
    assert [layer.name for layer in monitor.layers] == ["body.layers.0", "body.layers.1"]
