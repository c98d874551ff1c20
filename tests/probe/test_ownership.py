"""Probes share PyTorch with each other and with everyone else: threads, nesting, any order of closing, interrupts, and patches
of other people. Each probe sees its own model's calls only, and the last one to close leaves nothing behind."""

import copy
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import isotherm
from isotherm import attention, check
from isotherm.ops.observers import observers
from isotherm.probe import Seen, probe
from tests.probe.architectures import NanoAttention, build, widen

transformers = pytest.importorskip("transformers")

FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward", "softmax", "linear", "layer_norm")


def shared() -> dict[str, object]:
    """Everything that belongs to the process or the thread and that a probe could replace."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.bert import modeling_bert
    from transformers.models.llama import modeling_llama

    kinds = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    return {
        "call": vars(nn.Module)["__call__"],
        **{kind.__name__: vars(kind)["forward"] for kind in kinds},
        **{name: getattr(F, name) for name in FUNCTIONS},
        **{f"global {key}": value for key, value in ALL_ATTENTION_FUNCTIONS._global_mapping.items()},
        **{f"local {key}": value for key, value in ALL_ATTENTION_FUNCTIONS._local_mapping.items()},
        "bert": modeling_bert.eager_attention_forward,
        "llama": modeling_llama.eager_attention_forward,
        "stance": torch._dynamo.eval_frame._stance,
        "observers": tuple(observers) or None,
        "modes": torch._C._len_torch_function_stack() or None,
        "gradients": torch.is_grad_enabled(),
    }


def changed(before: dict[str, object]) -> list[str]:
    """What is no longer the same object."""
    after = shared()
    return sorted(name for name in before.keys() | after.keys() if before.get(name) is not after.get(name))


@pytest.fixture(autouse=True)
def everything_is_restored() -> Iterator[None]:
    before = shared()
    yield
    gc.collect()
    assert changed(before) == []


class Own(nn.Module):
    """Isotherm's own `attention`."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return attention(q, k, v).output


def nano(seed: int = 0) -> tuple[nn.Module, Tensor]:
    return widen(NanoAttention(), seed), torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(seed))


def encoder(seed: int = 0) -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    _, x = nano(seed)
    return widen(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), seed), x


def own(seed: int = 0) -> tuple[nn.Module, Tensor]:
    _, x = nano(seed)
    return widen(Own(), seed), x


MAKERS: list[Callable[[], tuple[nn.Module, Any]]] = [
    nano, encoder, own, lambda: build("llama", "sdpa"), lambda: build("bert", "eager"), lambda: build("gptj"),
    lambda: nano(7), lambda: build("t5"),
]  # fmt: skip


def names(seen: Seen) -> list[str]:
    return [capture.name for capture in seen.captures]


class Boom(Exception):
    pass


def raising(model: nn.Module) -> nn.Module:
    """The model, whose forward raises at its end."""

    def fail(*_: object) -> None:
        raise Boom

    broken = copy.deepcopy(model)
    broken.register_forward_hook(fail)
    return broken


def record(model: nn.Module, batch: Any) -> dict[str, Any]:
    """A check-up without the two fields that no two check-ups share."""
    plain = check(model, batch, what_if=["none"], detail=False).to_dict()
    return {key: value for key, value in plain.items() if key not in ("created", "cost")}


def checks_in_threads(rounds: int, *, broken: bool) -> None:
    """8 threads, each with its own model, `rounds` checks each; with `broken`, every second forward raises."""
    subjects = [make() for make in MAKERS]
    expected = [record(*subject) for subject in subjects]
    start = threading.Barrier(len(subjects))

    def work(index: int) -> list[dict[str, Any]]:
        model, batch = subjects[index]
        failing = raising(model)
        start.wait()
        found = []
        for turn in range(rounds):
            if broken and turn % 2:
                with pytest.raises(Boom):
                    check(failing, batch)
            else:
                found.append(record(model, batch))
        return found

    before = shared()
    with ThreadPoolExecutor(len(subjects)) as pool:
        results = list(pool.map(work, range(len(subjects))))
    assert changed(before) == []
    for index, found in enumerate(results):
        assert len(found) == (rounds + broken) // 2 if broken else len(found) == rounds
        assert all(one == expected[index] for one in found), index


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "half-raise"])
def test_checks_in_threads_equal_serial_ones(broken: bool):
    checks_in_threads(4, broken=broken)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True], ids=["whole", "half-raise"])
def test_fifty_checks_in_each_of_eight_threads_equal_serial_ones(broken: bool):
    checks_in_threads(50, broken=broken)


def test_probes_in_threads_equal_serial_ones():
    """8 threads × 50 looks, without the rest of a check-up."""
    subjects = [make() for make in MAKERS]

    def look(model: nn.Module, batch: Any) -> list[tuple[str, float, float]]:
        with torch.no_grad(), probe(model) as seen:
            model(**batch) if isinstance(batch, dict) else model(batch)
        assert seen.unseen == []
        return [(capture.name, capture.problem.scale, float(capture.problem.q.sum())) for capture in seen.captures]

    expected = [look(*subject) for subject in subjects]
    start = threading.Barrier(len(subjects))

    def work(index: int) -> bool:
        start.wait()
        return all(look(*subjects[index]) == expected[index] for _ in range(50))

    with ThreadPoolExecutor(len(subjects)) as pool:
        assert all(pool.map(work, range(len(subjects))))


def test_two_threads_check_the_same_model():
    """A check-up switches the model's implementation for a while, so check-ups of one model take turns."""
    model, batch = build("llama", "sdpa")
    inner = model.model
    expected = [record(model, batch), record(inner, batch)]
    assert expected[0]["comparisons"]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda turn: record((model, inner)[turn % 2], batch), range(12)))
    assert all(one == expected[turn % 2] for turn, one in enumerate(found))
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_probes_close_in_any_order(order: tuple[int, ...]):
    before = shared()
    models = [nano(1), encoder(2), build("llama")]
    open_probes = [probe(model) for model, _ in models]
    seen = [context.__enter__() for context in open_probes]
    still_open = set(order)
    for closing in order:
        for index, (model, batch) in enumerate(models):
            already = len(seen[index].captures)
            model(**batch) if isinstance(batch, dict) else model(batch)
            assert (len(seen[index].captures) > already) == (index in still_open)
        open_probes[closing].__exit__(None, None, None)
        still_open.discard(closing)
    assert changed(before) == []
    assert names(seen[0])[0] == ""
    assert {capture.module for capture in seen[1].captures} == {"MultiheadAttention"}
    assert {capture.module for capture in seen[2].captures} == {"LlamaAttention"}


class Nesting(nn.Module):
    """Checks `other`, or itself, in the middle of its forward."""

    def __init__(self, other: nn.Module | None, batch: Any) -> None:
        super().__init__()
        self.first, self.last = NanoAttention(), NanoAttention()
        self.other, self.batch = other, batch
        self.inner: dict[str, Any] | None = None
        self.nests = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.nests:
            self.nests = False
            found = record(self if self.other is None else self.other, self.batch)
            self.inner = self.inner or found  # a second forward compares: it runs `other` under another implementation
            self.nests = True
        return self.last(x)


@pytest.mark.parametrize(
    "make", [None, nano, encoder, lambda: build("bert")], ids=["itself", "nano", "encoder", "bert"]
)
def test_a_check_inside_another_checks_forward(make: Callable[[], tuple[nn.Module, Any]] | None):
    other, batch = (None, nano()[1]) if make is None else make()
    model, x = widen(Nesting(other, batch)), nano()[1]
    model.nests = False
    expected, expected_inner = record(model, x), record(model if other is None else other, batch)
    model.nests = True
    assert record(model, x) == expected
    assert model.inner == expected_inner


def test_a_fused_path_is_taken_inside_another_probes_forward():
    """The outer probe's mode would push the inner model off its fused path, and change its bits."""
    fused, x = encoder()
    with torch.no_grad():
        plain = fused(x)

    class Outer(NanoAttention):
        def forward(self, y: Tensor) -> Tensor:
            with probe(fused) as self.seen:
                self.result = fused(x)
            return super().forward(y)

    model = widen(Outer())
    with torch.no_grad(), probe(model) as outer:
        model(x)
    assert torch.equal(model.result, plain)
    assert names(model.seen) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert names(outer) == [""]


def abandoned(model: nn.Module, x: Tensor) -> Iterator[Seen]:
    with probe(model) as seen:
        model(x)
        yield seen
        raise AssertionError("never reached")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-thread", "another-thread"])
@pytest.mark.parametrize("in_cycle", [False, True], ids=["dropped", "in-a-cycle"])
def test_an_abandoned_generator_closes_its_probe(elsewhere: bool, in_cycle: bool):
    before = shared()
    model, x = nano()
    generator = abandoned(model, x)
    seen = next(generator)
    assert "call" in changed(before)
    held: list[Any] = [generator]
    if in_cycle:
        held.append(held)
    del generator

    def drop() -> None:
        held.pop() if in_cycle else None
        held.clear()
        gc.collect()

    if elsewhere:
        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
    else:
        drop()
    assert changed(before) == []
    model(x)
    assert len(seen.captures) == 1
    with probe(model) as again:
        model(x)
    assert len(again.captures) == 1


def test_a_generator_abandoned_inside_a_forward_does_not_blind_the_probe_around_it():
    other, y = nano(3)

    class Leaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = NanoAttention(), NanoAttention()
            self.left: list[Iterator[Seen]] = []

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            self.left.append(abandoned(other, y))
            next(self.left[-1])
            return self.last(x)

    model, x = widen(Leaky()), nano()[1]
    with probe(model) as seen:
        model(x)
        model.first(x)
    assert names(seen) == ["first", "first"]  # `last` ran while the inner probe was open
    model.left.clear()
    with probe(model) as again:
        model.first(x)
    assert names(again) == ["first"]


def test_an_interrupt_in_the_forward():
    model, x = nano()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = shared()
    handle = model.proj.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), probe(model) as seen:
        model(x)
    handle.remove()
    assert changed(before) == []
    assert len(seen.captures) == 1
    with probe(model) as again:
        model(x)
    assert len(again.captures) == 1


REPORTED_ONLY = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python reports an interrupt inside `__del__` and goes on."""
PROBE = str(Path(isotherm.__file__).parent / "probe")


def interrupted_at(line: int, work: Callable[[], object]) -> bool:
    """Run `work` and raise KeyboardInterrupt at the `line`-th line that runs in the probe's files; False if it has fewer."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(PROBE):
            return None
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@REPORTED_ONLY
def test_an_interrupt_at_any_line_while_probes_open_and_close():
    """Opening and closing beside a probe that stays open, so that shared replacements must survive the interrupt."""
    model, x = nano()
    other, _ = encoder()

    def work() -> None:
        with probe(other):
            pass

    before = shared()
    line = 0
    while True:
        line += 1
        with probe(model) as seen:
            if not interrupted_at(line, work):
                break
            model(x)
        assert names(seen) == [""], line
        assert changed(before) == [], line
    assert line > 50


class Still(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return x + 1


@REPORTED_ONLY
def test_an_interrupt_while_the_models_own_no_grad_ends():
    model, before, line = Still(), shared(), 1

    def work() -> None:
        with probe(model):
            model(torch.ones(2))

    while interrupted_at(line, work):
        assert changed(before) == [], line
        line += 1
    assert line > 50


@REPORTED_ONLY
@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=[pytest.mark.slow] * (make is MAKERS[1])) for make in MAKERS[:4]],
    ids=["nano", "encoder", "own", "llama"],
)
def test_an_interrupt_at_any_line_of_a_look(make: Callable[[], tuple[nn.Module, Any]]):
    model, batch = make()
    batch = batch if isinstance(batch, dict) else {"x" if make in (nano, own) else "src": batch}

    def work() -> Seen:
        with probe(model) as seen:
            model(**batch)
        return seen

    expected = names(work())
    before = shared()
    line, step = 1, 211 if make is MAKERS[3] else 7
    while interrupted_at(line, work):
        assert changed(before) == [], line
        assert names(work()) == expected, line
        line += step
    assert line > 500


def test_a_foreign_patch_made_in_between_stays():
    """Someone wraps what a probe has replaced, and the probe closes first."""
    original = vars(nn.Module)["__call__"]
    calls = []
    model, x = nano()
    context = probe(model)
    seen = context.__enter__()
    ours = vars(nn.Module)["__call__"]

    def foreign(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(module)
        return ours(module, *args, **kwargs)

    nn.Module.__call__ = foreign
    try:
        model(x)
        with probe(model) as second:
            model(x)
        assert vars(nn.Module)["__call__"] is foreign
        context.__exit__(None, None, None)
        assert vars(nn.Module)["__call__"] is foreign
        model(x)
        with probe(model) as third:  # opened on top of the foreign patch
            model(x)
        assert vars(nn.Module)["__call__"] is foreign
        assert calls.count(model) == 4
    finally:
        nn.Module.__call__ = ours  # as whoever patched would undo it: our replacement is back, and does nothing
    assert len(seen.captures) == 2
    assert len(second.captures) == len(third.captures) == 1
    with probe(model) as fourth:
        model(x)
    assert len(fourth.captures) == 1
    assert vars(nn.Module)["__call__"] is original, "the next probe clears it away"


def test_a_foreign_patch_made_before_and_undone_in_between():
    original = vars(nn.MultiheadAttention)["forward"]

    def foreign(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    nn.MultiheadAttention.forward = foreign
    try:
        with probe(nano()[0]):
            nn.MultiheadAttention.forward = original
        assert vars(nn.MultiheadAttention)["forward"] is original
    finally:
        nn.MultiheadAttention.forward = original


def test_a_function_registered_with_transformers_in_between_stays():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as TABLE

    def replacement(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    original = TABLE._global_mapping["sdpa"]
    try:
        with probe(build("llama")[0]):
            TABLE.register("sdpa", replacement)
        assert TABLE._global_mapping["sdpa"] is replacement
    finally:
        TABLE.register("sdpa", original)


def test_other_threads_run_untouched():
    """A model in another thread keeps its bits, its fused path, its own modes and its compiled code."""
    fused, x = encoder()
    compiled_frames: list[object] = []

    def backend(graph: Any, _: object) -> Any:
        compiled_frames.append(graph)
        return graph.forward

    torch._dynamo.reset()
    both = (nano(4)[0], nn.Sequential(nn.Linear(32, 8), nn.ReLU()))
    compiled, later = (torch.compile(module, backend=backend, fullgraph=True) for module in both)
    with torch.no_grad():
        plain = fused(x)
        compiled(x)
    model, _ = nano()

    class Counting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def work() -> tuple[Tensor, int]:
        with torch.no_grad():
            result = fused(x)
            compiled(x)
            later(x)
        with Counting():
            return result, torch._C._len_torch_function_stack()

    with probe(model) as seen, ThreadPoolExecutor(1) as pool:
        result, modes = pool.submit(work).result()
        assert len(compiled_frames) == 2, "one before, and the other in the thread"
        with torch.no_grad():
            compiled(x)
        model(x)
    assert torch.equal(result, plain)
    assert modes == 1
    assert names(seen) == [""]
    with torch.no_grad():
        compiled(x)
    assert len(compiled_frames) == 2, "compiled again although nothing has changed"
    torch._dynamo.reset()


def test_threads_that_a_forward_starts_do_no_harm():
    """As DataParallel does. They are not followed."""

    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([NanoAttention(), NanoAttention()])
            self.last = NanoAttention()

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(2) as pool:
                return self.last(sum(pool.map(lambda part: part(x), self.parts)))

    model, x = widen(Parallel()), nano()[1]
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(model(x), plain)
    assert names(seen) == ["last"]


def test_a_mode_that_a_forward_leaves_on_the_stack_stays_alone():
    class Left(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    left = Left()
    model, x = nano()
    model.register_forward_pre_hook(lambda *_: left.__enter__() and None)
    with probe(model) as seen:
        model(x)
    assert torch._C._len_torch_function_stack() == 1
    left.__exit__(None, None, None)
    assert len(seen.captures) == 1
