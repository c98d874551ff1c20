"""The monitor in a training loop: what it reads is right, and training is what it would be without it."""

import gc
import os
import pickle
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.optim.optimizer as optimizers
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from isotherm.errors import ArgumentError, InputError
from isotherm.monitor import store
from isotherm.monitor.monitor import watch
from isotherm.monitor.roster import NOTHING_SEEN
from isotherm.monitor.valve import Valve
from isotherm.ops import attention
from tests.monitor.loops import Attention, Written, batch, build, train

KINDS = [Attention, Written]


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def expected(model, x):
    """Statistics of every head of the first layer, from attention() on the projections."""
    layer = model.layers[0]
    b, t, w = x.shape
    q, k, v = layer.qkv(x).view(b, t, 3, layer.heads, w // layer.heads).permute(2, 0, 3, 1, 4).detach()
    return attention(q, k, v, causal=True, stats=True).stats


@pytest.mark.parametrize("kind", KINDS)
def test_a_reading_holds_the_statistics_of_every_head(kind):
    model = build(kind)
    want = expected(model, batch(0))
    monitor = watch(model, every=1, rows=None)
    losses = train(model, 1, monitor)
    reading = monitor.latest
    assert reading.step == 0
    assert reading.loss == pytest.approx(losses[0])
    assert [(layer.name, layer.heads) for layer in monitor.layers] == [("layers.0", 2), ("layers.1", 4)]
    assert {name: len(values) for name, values in reading.values.items()} == dict.fromkeys(store.rows.STATISTICS, 6)
    for name, statistic in (("entropy", "entropy_fraction"), ("gate", "jacobian_trace"), ("logit_std", "logit_std")):
        np.testing.assert_allclose(reading.values[name][:2], want.summary(statistic).mean, rtol=1e-5)
    np.testing.assert_allclose(reading.values["max_logit"][:2], want.summary("max_logit").max, rtol=1e-5)
    assert not reading.values["invalid"].any()


def test_gradients_are_those_that_reach_q_and_k():
    model, x = build(), batch(0)
    monitor = watch(model, every=1)
    train(model, 1, monitor)
    layer = build().layers[0]
    projected = layer.qkv(x)
    projected.retain_grad()
    layer.qkv.forward = lambda _: projected
    rest = build().layers[1]
    y = x + layer(x)
    (y + rest(y) - x.roll(1, 1)).square().mean().backward()
    q, k, _ = projected.grad.chunk(3, -1)
    assert monitor.latest.gradients["q"][0] == pytest.approx(q.norm().item(), rel=1e-4)
    assert monitor.latest.gradients["k"][0] == pytest.approx(k.norm().item(), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("every", "rows"), [(1, None), (10, 4)])
def test_training_is_bit_for_bit_what_it_would_be(kind, every, rows):
    plain, watched = build(kind), build(kind)
    before = train(plain, 200)
    random = torch.get_rng_state()
    assert train(watched, 200, watch(watched, every=every, rows=rows)) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert same(weights(plain), weights(watched))


def test_nothing_is_left_on_the_model_or_in_pytorch():
    model = build()
    clean = nn.Module.__call__, len(optimizers._global_optimizer_pre_hooks), len(pickle.dumps(model))
    with watch(model, every=1):
        model(batch(0)).sum().backward()
        assert nn.Module.__call__ is not clean[0]
        assert not any(vars(module)[name] for module in model.modules() for name in vars(module) if "hooks" in name)
        model.zero_grad()
        assert len(pickle.dumps(model)) == clean[2]
    assert (nn.Module.__call__, len(optimizers._global_optimizer_pre_hooks)) == clean[:2]


def test_it_reads_every_so_many_steps_and_none_in_between():
    model, steps = build(), []
    monitor = watch(model, every=4, on_alert=None)
    monitor._telling.reading = lambda reading: steps.append(reading.step)
    train(model, 10, monitor)
    assert steps == [0, 4, 8]


def test_validation_is_left_alone():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, rows=None) as monitor:
        with torch.no_grad():
            model(100 * batch(5))
        model(batch(0)).square().mean().backward()
        with torch.no_grad():
            model(100 * batch(5))
        optimizer.step()
    np.testing.assert_allclose(
        monitor.latest.values["max_logit"][:2], expected(build(), batch(0)).summary("max_logit").max, rtol=1e-4
    )


def test_micro_batches_of_one_step_are_one_reading():
    whole, parts = build(), build()
    one, other = watch(whole, every=1, rows=None), watch(parts, every=1, rows=None)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.0)
    with one:
        whole(batch(0, 6)).square().mean().backward()
        optimizer.step()
    train(parts, 1, other, lr=0.0, pieces=2)
    for name in one.latest.values:
        np.testing.assert_allclose(other.latest.values[name], one.latest.values[name], rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_call_counts_once(reentrant):
    class Checkpointed(Attention):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    plain, model = build(), build(Checkpointed)
    one, other = watch(plain, every=1, rows=None), watch(model, every=1, rows=None)
    for it, monitor in ((plain, one), (model, other)):
        optimizer = torch.optim.SGD(it.parameters(), lr=0.0)
        with monitor:
            it(batch(0).requires_grad_()).square().mean().backward()
            optimizer.step()
    for name in one.latest.values:
        np.testing.assert_array_equal(other.latest.values[name], one.latest.values[name])


def test_statistics_are_taken_in_full_precision_under_autocast():
    model = build()
    monitor = watch(model, every=1, rows=None)
    train(model, 1, monitor, precision=lambda: torch.autocast("cpu", torch.bfloat16))
    want = expected(build(), batch(0)).summary("entropy_fraction").mean
    np.testing.assert_allclose(monitor.latest.values["entropy"][:2], want, atol=2e-3)  # q and k are bfloat16
    assert monitor.events == []


def test_a_closure_runs_inside_the_optimizers_step():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(batch(0)).square().mean()
        loss.backward()
        return loss

    with watch(model, every=1) as monitor:
        optimizer.step(closure)
        assert monitor.latest.step == 0
        optimizer.step(closure)
    assert monitor.latest.step == 1


def test_another_models_optimizer_is_no_clock():
    model, other = build(), build()
    others = torch.optim.SGD(other.parameters(), lr=0.1)
    with watch(model, every=1) as monitor:
        other(batch(0)).sum().backward()
        others.step()
        others.step()
        assert monitor.step == 0
    assert monitor.latest is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("attached", ["before", "after"])
def test_a_compiled_model_is_compiled_once(attached):
    from torch._dynamo.utils import counters

    def graphs(watched):
        torch._dynamo.reset()
        counters.clear()
        model = build()
        monitor = watch(model, every=2) if watched and attached == "before" else None
        compiled = torch.compile(model, backend="aot_eager")
        monitor = watch(compiled, every=2) if watched and attached == "after" else monitor
        losses = train(compiled, 6, monitor)
        return losses, counters["stats"]["unique_graphs"], monitor

    plain, watched = graphs(False), graphs(True)
    assert watched[1] == plain[1]
    np.testing.assert_allclose(watched[0], plain[0], rtol=1e-6)
    assert watched[2].latest.step == 4
    assert [layer.name for layer in watched[2].layers] == ["layers.0", "layers.1"]


def test_an_error_inside_the_monitor_is_told_once_and_training_goes_on(monkeypatch):
    plain, model = build(), build()
    before = train(plain, 6)
    monitor = watch(model, every=1)

    def broken(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(monitor._roster, "settle", broken)
    with pytest.warns(RuntimeWarning, match="no such luck") as told:
        assert train(model, 6, monitor) == before
    assert len(told) == 1
    assert [event.kind for event in monitor.events] == ["trouble"]


def test_no_filter_of_warnings_stops_training(monkeypatch):
    monkeypatch.undo()  # what the monitor warns of would fail this test
    model = nn.Linear(16, 16)
    monitor = watch(model, every=1)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        assert len(train(model, 4, monitor)) == 4
    assert [str(one.message) for one in shown] == [str(event.message) for event in monitor.events]
    assert [event.message.en for event in monitor.events] == [NOTHING_SEEN.en]


def test_what_a_monitor_warns_of_fails_a_test_that_does_not_expect_it(unexpected):
    model = nn.Linear(16, 16)
    train(model, 4, watch(model, every=1))
    assert unexpected == [NOTHING_SEEN.en]
    unexpected.clear()


def test_a_model_without_attention_is_told_once():
    model = nn.Linear(16, 16)
    with pytest.warns(RuntimeWarning, match="no attention was seen") as told:
        train(model, 4, watch(model, every=1))
    assert len(told) == 1


def test_memory_does_not_grow():
    model = build()
    monitor = watch(model, every=1, rows=2)
    train(model, 20, monitor)

    def objects():
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    before = objects()
    train(model, 60, watch(model, every=1, rows=2))
    assert objects() <= before


def test_a_run_that_is_resumed_goes_on_in_its_store(tmp_path):
    path = tmp_path / "run.db"
    model = build()
    train(model, 6, watch(model, every=2, store=path))
    monitor = watch(model, every=2, store=path)
    monitor.start(3)
    train(model, 4, None, first=3)
    monitor.stop()
    record = store.read(path)
    assert [reading.step for reading in record.readings] == [0, 2, 4, 6]
    assert [event.kind for event in record.events] == ["resumed"]


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_a_run_goes_on_with_checkpoint_wrapper_or_without(wrapped_first, tmp_path):
    path = tmp_path / "run.db"
    for first, wrapped in ((0, wrapped_first), (4, not wrapped_first)):
        model = build()
        if wrapped:
            model.layers = nn.ModuleList(map(checkpoint_wrapper, model.layers))
        monitor = watch(model, every=2, store=path, rows=None, valve=Valve(0.05))
        monitor.start(first)
        train(model, 4, first=first)
        monitor.stop()
        clipped = {event.layer for event in monitor.events if event.rule == "qk-clip"}
        assert clipped == {0, 1}, "the rows of the weights are found, too"
    record = store.read(path)
    assert [layer.name for layer in record.layers] == ["layers.0", "layers.1"]
    assert [reading.step for reading in record.readings] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "every"), ({"every": 1.5}, "every"), ({"rows": 0}, "rows"), ({"rows": True}, "rows")],
)
def test_what_cannot_be_used_is_refused_by_name(options, message):
    with pytest.raises(ArgumentError, match=message):
        watch(build(), **options)


def test_no_module_and_no_store(tmp_path):
    with pytest.raises(ArgumentError, match="model"):
        watch("gpt2")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="notes"):
        watch(build(), store=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def growth(path):
    """The bytes that 8,000 watched steps add to this process after 2,000 others, and the tensors that 9,000 add."""

    def size():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def tensors():
        gc.collect()
        # isinstance would ask every object, and some warn that they are deprecated.
        return sum(issubclass(kind, torch.Tensor) for kind in map(type, gc.get_objects()))

    torch.set_num_threads(1)
    model, given = build(), batch(0)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=1e-3), {}
    with watch(model, every=10, rows=4, store=path) as monitor:
        for step in range(10_001):
            loss = (model(given) - given.roll(1, 1)).square().mean()
            loss.backward()
            monitor.log(loss)
            optimizer.step()
            optimizer.zero_grad()
            # Never together: the list of all objects that tensors() asks for takes megabytes itself.
            if step == 1_000:
                before = tensors()
            if step in (2_000, 10_000):
                seen[step] = size()
    return seen[10_000] - seen[2_000], tensors() - before


@pytest.mark.slow
def test_memory_does_not_grow_over_ten_thousand_steps(tmp_path):
    # In a process of its own: what the tests before left behind, and their threads, move the memory of this one.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        size, tensors = alone.submit(growth, tmp_path / "run.db").result()
    assert tensors == 0
    assert size < 2**20  # measured: 0.45 MiB, most of it SQLite's pages, whose number is bounded


def test_models_are_watched_in_threads_of_their_own():
    found, models = {}, [build(seed=seed) for seed in range(3)]  # here, since all threads share one random state

    def work(seed):
        monitor = watch(models[seed], every=1, rows=None)
        found[seed] = train(models[seed], 5, monitor), monitor.latest, monitor.events

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, (losses, reading, events) in found.items():
        alone = watch(build(seed=seed), every=1, rows=None)
        assert losses == train(alone.model, 5, alone)
        np.testing.assert_array_equal(reading.values["max_logit"], alone.latest.values["max_logit"])
        assert events == []


def test_a_model_is_trained_in_another_thread_than_its_monitor_was_started_in():
    model = build()
    with watch(model, every=50, rows=None) as monitor:
        thread = threading.Thread(target=train, args=(model, 25))
        thread.start()
        thread.join()
    assert (monitor.step, monitor.latest.step, monitor.events) == (25, 1, [])


def test_a_loss_that_is_logged_after_the_step_is_that_of_its_step():
    model, losses = build(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor, read = watch(model, every=2), []
    tell = monitor._telling.reading
    monitor._telling.reading = lambda reading: (read.append(reading), tell(reading))
    with monitor:
        for step in range(5):
            loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            monitor.log(loss)
            if step % 2 == 0:
                assert monitor.latest.loss == pytest.approx(loss.item())
    assert [one.step for one in read] == [0, 2, 4]


@pytest.mark.parametrize("compiled", [False, True])
def test_float64_is_trained_and_read(compiled):
    plain, model = build().double(), build().double()
    run = torch.compile(model, backend="aot_eager") if compiled else model
    monitor = watch(run, every=1)
    with monitor:
        for one in (plain, run):
            one(batch(0).double()).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert (monitor.latest.gradients["q"] > 0).all()
    assert monitor.events == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "place", ["looking.LayerTotals.of", "looking.squared_length", "looking._without_tensors", "looking.Counter"]
)
def test_no_error_of_the_probe_reaches_the_model(monkeypatch, kind, place):
    """Such as too little memory for measuring, in the forward or in the backward pass."""
    if kind is Written and "squared" in place:
        pytest.skip("its gradients are not seen")

    def broken(*_):
        raise torch.OutOfMemoryError("no room")

    before = train(build(kind), 6)
    monkeypatch.setattr(f"isotherm.monitor.{place}", broken)
    monitor = watch(build(kind), every=2)
    with pytest.warns(RuntimeWarning, match="no room") as told:
        assert train(monitor.model, 6, monitor) == before
    assert len(told) == 1
    assert [event.kind for event in monitor.events] == ["trouble"]


@pytest.mark.parametrize("place", ["_totals", "squared_length"])
def test_no_error_of_a_note_reaches_compiled_code(monkeypatch, place):
    def broken(*_):
        raise RuntimeError("no such luck")

    def losses(monitored):
        torch._dynamo.reset()
        run = torch.compile(build(), backend="aot_eager")
        return train(run, 4, watch(run, every=1) if monitored else None)

    before = losses(monitored=False)
    monkeypatch.setattr(f"isotherm.monitor.noting.{place}", broken)
    with pytest.warns(RuntimeWarning, match="no such luck"):
        np.testing.assert_allclose(losses(monitored=True), before, rtol=1e-6)


def test_a_forward_that_fails_and_is_run_again_counts_once():
    class Failing(nn.Module):
        count = 0

        def forward(self, x):
            self.count += 1
            if self.count % 2:
                raise RuntimeError("too little memory")
            return torch.zeros_like(x)

    model = build()
    want = expected(model, batch(0)).summary("max_logit").max
    model.layers.append(Failing())
    with watch(model, every=1, rows=None) as monitor:
        with pytest.raises(RuntimeError, match="too little"):
            model(batch(0))
        model(batch(0)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert [layer.name for layer in monitor.layers] == ["layers.0", "layers.1"]
    np.testing.assert_allclose(monitor.latest.values["max_logit"][:2], want, rtol=1e-5)


def test_an_optimizer_that_takes_over_is_the_clock():
    model, steps = build(), []
    monitor = watch(model, every=1)
    with monitor:
        first = torch.optim.SGD(model.parameters(), lr=0.1)
        second = torch.optim.AdamW(model.layers[0].parameters())
        for step in range(9):
            model(batch(step)).square().mean().backward()
            for one in (first, second) if step < 3 else (second,):
                one.step()
            steps.append(monitor.step)
    assert steps == list(range(1, 10))
    assert monitor.latest.step == 8


def test_an_optimizer_of_master_weights_is_a_clock():
    model = build().bfloat16()
    masters = {weight: weight.detach().float() for weight in model.parameters()}
    optimizer = torch.optim.AdamW(masters.values())
    with watch(model, every=1, rows=None, valve=Valve(0.5, masters)) as monitor:
        for step in range(3):
            model(batch(step).bfloat16()).square().mean().backward()
            for weight, master in masters.items():
                master.grad, weight.grad = weight.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for weight, master in masters.items():
                    weight.copy_(master)
    assert monitor.latest.step == 2
    assert monitor.latest.values["max_logit"][:2].max() < 0.6
    assert {event.kind for event in monitor.events} == {"valve"}


def by_hand(model, monitor, steps, *, says):
    for step in range(steps):
        loss = model(batch(step)).square().mean()
        loss.backward()
        monitor.log(loss)
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(0.1 * weight.grad)
                weight.grad = None
        if says:
            monitor.stepped()


def test_weights_that_are_updated_by_hand():
    with watch(build(), every=2) as monitor:
        by_hand(monitor.model, monitor, 5, says=True)
    assert (monitor.step, monitor.latest.step, monitor.events) == (5, 4, [])
    with pytest.warns(RuntimeWarning, match=r"call monitor.stepped\(\)"), watch(build()) as monitor:
        by_hand(monitor.model, monitor, 20, says=False)
    assert monitor.latest is None


def test_steps_that_are_told_by_hand_too_are_counted_once():
    model = build()
    with watch(model, every=1) as monitor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            model(batch(step)).square().mean().backward()
            optimizer.step()
            monitor.stepped()
    assert (monitor.step, monitor.latest.step) == (3, 2)


def test_another_copy_that_is_trained_is_told():
    model = build()
    other = build()
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with watch(model, every=5) as monitor:
        for step in range(19):
            other(batch(step)).sum().backward()
            optimizer.step()
        with pytest.warns(RuntimeWarning, match="has run no forward"):
            optimizer.step()
        optimizer.step()
    assert len(monitor.events) == 1


def test_a_model_that_is_not_trained_is_told_at_the_end():
    monitor = watch(build())
    with pytest.warns(RuntimeWarning, match="stepped 20 times, none of them held"), monitor:
        train(build(), 20)
    with watch(build()) as monitor:
        train(build(), 19)  # another model is trained first
    assert monitor.events == []


def test_a_monitor_that_is_started_again_counts_each_step_once():
    model = build()
    with watch(model, every=1) as monitor:
        train(model, 2)
        monitor.start(5)
        train(model, 2)
    assert (monitor.step, monitor.latest.step) == (7, 6)


def test_layers_that_are_replaced():
    model = build()
    with watch(model, every=1) as monitor:
        train(model, 2)
        model.layers[0], model.layers[1] = Attention(heads=2), Attention(heads=2)
        with pytest.warns(RuntimeWarning, match=r"layers.1 had 4 heads and has 2 now"):
            train(model, 4)
    assert [layer.name for layer in monitor.layers] == ["layers.0", "layers.1"]
    assert np.isfinite(monitor.latest.values["max_logit"][:2]).all()


def test_attention_that_is_not_seen_is_told_once(monkeypatch):
    class Blocks(Written):
        """Softmax over blocks of the keys, which are put together later."""

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = [(q @ part.transpose(-1, -2)) for part in k.chunk(2, 1)]
            total = sum(score.exp().sum(-1, keepdim=True) for score in scores)
            parts = zip(scores, v.chunk(2, 1), strict=True)
            return self.out(sum((score.exp() @ values) / total for score, values in parts))

    model = nn.Sequential(Attention(), Blocks(), Blocks())
    with pytest.warns(RuntimeWarning, match=r"1 and 1 more are not watched: ") as told:
        train(model, 3, watch(model, every=1))
    assert len(told) == 1


def test_a_store_of_another_model_is_left_as_it_is(tmp_path):
    """The run goes on without a store, and its alarms do too."""
    path = tmp_path / "run.db"
    other = build(heads=(2, 2))
    train(other, 3, watch(other, every=1, store=path))
    model = build()
    monitor = watch(model, every=1, store=path)
    with pytest.warns(RuntimeWarning, match="attention layers are others"):
        train(model, 3, monitor)
    assert monitor.latest.step == 2
    assert monitor._telling._alarms is not None
    record = store.read(path)
    assert [reading.values["gate"].size for reading in record.readings] == [4, 4, 4]
    assert record.events == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_nothing_is_no_trouble(kind):
    """Neither does an empty call vouch for later ones."""
    model = build(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, every=1, rows=None) as monitor:
        for size in (0, 3, 0):
            model(batch(0, size)).sum().backward()
            if not size and monitor.step == 0:
                assert monitor._looks._trusted == set()
            optimizer.step()
    assert monitor.events == []
    assert (monitor.step, monitor.latest.step) == (3, 1)
    np.testing.assert_allclose(
        monitor.latest.values["max_logit"][:2], expected(build(kind), batch(0)).summary("max_logit").max, rtol=1e-5
    )


def test_gradients_that_have_not_come_are_not_zero():
    """Optimizers that step inside the backward pass (one for each parameter, so that no gradient is kept) are read before it
    reaches q and k."""
    model = build()
    optimizers_of = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()}

    def update(weight):
        optimizers_of[weight].step()
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    with watch(model, every=1) as monitor:
        for step in range(3):
            model(batch(step)).square().mean().backward()
    assert (monitor.step, monitor.latest.step) == (3, 2)
    assert np.isnan(monitor.latest.gradients["q"]).all()
    assert (monitor.latest.values["max_logit"] > 0).all()


def test_gradients_of_steps_that_a_scaler_skipped_are_not_told():
    """Their scale was another, and what overflowed is infinite. The statistics are of the same weights, and are told."""
    model, scaler = build(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    with watch(model, every=1, scaler=scaler) as monitor:
        for step in range(4):
            scaler.scale(model(batch(step)).square().mean()).backward()
            if step == 1:
                model.layers[0].qkv.weight.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            found.append(monitor.latest)
    assert [one.step for one in found] == [0, 0, 1, 2]
    assert [bool(np.isnan(one.gradients["q"]).all()) for one in found] == [False, False, True, False]
    assert all(np.isfinite(one.values["max_logit"]).all() for one in found)


@pytest.mark.parametrize("late", [False, True])
def test_what_is_no_loss_is_told_as_none(late):
    """It is no reason to stop training."""
    kinds = [
        (lambda loss: loss.reshape(1), True),
        (lambda loss: loss.detach().numpy(), True),
        (lambda loss: np.float32(loss.item()), True),
        (lambda loss: torch.stack([loss, loss]), False),
        (lambda loss: {"loss": loss}, False),
        (lambda loss: None, False),
    ]
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1) as monitor:
        for step, (kind, known) in enumerate(kinds):
            loss = model(batch(step)).square().mean()
            loss.backward()
            for order in (0, 1):
                if order == late:
                    monitor.log(kind(loss))
                if order == 0:
                    optimizer.step()
            assert monitor.latest.step == step
            assert monitor.latest.loss == (pytest.approx(loss.item()) if known else None)
    assert monitor.events == []


@pytest.mark.parametrize(
    ("every", "first", "late"),
    [(1, 0, False), (3, 0, False), (1, 9, False), (1, 0, True), (3, 0, True), (1, 9, True)],
)
def test_a_loss_that_is_logged_now_and_then_is_told_for_its_step_only(every, first, late):
    model, losses, told = build(), [], {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=every) as monitor:
        for step in range(30):
            loss = model(batch(step)).square().mean()
            loss.backward()
            if step % 10 == first and not late:
                monitor.log(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step % 10 == first and late:
                monitor.log(loss)
            told[monitor.latest.step] = monitor.latest.loss
    wanted = {step: losses[step] if step % 10 == first else None for step in range(0, 30, every)}
    assert told == pytest.approx(wanted)


def test_a_run_whose_layers_run_now_and_then_goes_on_in_its_store(tmp_path):
    """Experts: the first step of the second run calls another one than that of the first, and none of its steps calls all."""
    path = tmp_path / "run.db"

    def trained(monitor, first, order):
        optimizer = torch.optim.SGD(monitor.model.parameters(), lr=0.1)
        monitor.start(first)
        for step, expert in enumerate(order, first):
            monitor.model.layers[expert](batch(step)).square().mean().backward()
            optimizer.step()
        monitor.stop()

    model = build(heads=(2, 4, 2, 1))
    trained(watch(model, every=1, store=path), 0, [1, 0, 2])
    trained(watch(model, every=1, store=path), 3, [2, 3])
    record = store.read(path)
    assert [layer.name for layer in record.layers] == [f"layers.{number}" for number in (1, 0, 2, 3)]
    assert [reading.step for reading in record.readings] == list(range(5))
    ran = [np.isfinite(reading.values["gate"][[0, 4, 6, 8]]).tolist() for reading in record.readings]
    assert [row.index(True) for row in ran] == [0, 1, 2, 2, 3]
    assert [event.kind for event in record.events] == ["resumed"]


def test_a_run_goes_on_in_its_store_whatever_its_model_is_wrapped_in(tmp_path):
    """Such as one of several processes that goes on in one alone."""
    path, model = tmp_path / "run.db", build()
    for first, run in enumerate((nn.DataParallel(model), model, torch.compile(model, backend="eager"))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = watch(run, every=1, store=path)
        monitor.start(first)
        run(batch(first)).square().mean().backward()
        optimizer.step()
        monitor.stop()
        assert [event for event in monitor.events if event.kind == "trouble"] == []
    record = store.read(path)
    assert [layer.name for layer in record.layers] == ["layers.0", "layers.1"]
    assert [reading.step for reading in record.readings] == [0, 1, 2]
