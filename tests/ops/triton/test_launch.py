"""The launch tape: a played call gives the same bits as a recorded one, for any tensors, and holds none of them."""

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from isotherm.ops import triton as kernels
from isotherm.ops.triton import fast, launch, several_scales
from tests.ops.cases import Case, problem
from tests.ops.triton.test_random import drawn

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf


class Interpreted(NamedTuple):
    """Stands for `TapeLaunch` where there is no compiled kernel."""

    kernel: object
    args: list
    tensors: list
    options: dict

    @classmethod
    def of(cls, tape, kernel, compiled, grid, args, options):
        assert compiled is None
        tensors = [
            (at, tape.number(getattr(x, "base", x)), x)
            for at, x in enumerate(args)
            if hasattr(x, "data_ptr") or hasattr(x, "base")
        ]
        blank = [None if hasattr(x, "data_ptr") or hasattr(x, "base") else x for x in args]
        tensors = [(at, number, blank_descriptor(x)) for at, number, x in tensors]
        return cls(kernel[grid], blank, tensors, options)

    def play(self, known, addresses, stream):
        args = self.args.copy()
        for at, number, like in self.tensors:
            assert known[number].data_ptr() == addresses[number]
            view = isinstance(like, torch.dtype)  # of which a launch takes the address alone
            args[at] = known[number].view(like) if view else replace(like, base=known[number])
        self.kernel(*args, **self.options)


def blank_descriptor(x):
    """A descriptor without its tensor; of a tensor its type."""
    if isinstance(x, torch.Tensor):
        return x.dtype
    other = object.__new__(type(x))
    other.__dict__.update(x.__dict__, base=None)
    return other


WAYS = {
    "output and statistics": lambda p, rows: kernels.solve(p, stats=True),
    "output": lambda p, rows: kernels.solve(p, stats=False),
    "statistics": lambda p, rows: kernels.statistics(p),
    "of some rows": kernels.statistics,
    "several scales": lambda p, rows: kernels.statistics_at(p, [0.05, 0.1, 0.13, 0.2]),
    "several scales of some rows": lambda p, rows: kernels.statistics_at(p, [0.05, 0.1, 0.13, 0.2], rows),
    "between others": lambda p, rows: kernels.statistics_at(p, [0.1 * 1.27**i for i in range(9)], rows),
}


@pytest.fixture
def remembering(monkeypatch):
    """Record and play even without a GPU; the list has an entry for every call that was not played."""
    done = []
    monkeypatch.setattr(launch, "_worthwhile", lambda device: True)
    if not torch.cuda.is_available():
        monkeypatch.setattr(launch, "TapeLaunch", Interpreted)
    for module, name in (
        (fast, "run"),
        (fast.general, "run"),
        (several_scales, "_run_fast"),
        (several_scales, "_run_general"),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, real=real, **named: (done.append(real), real(*args, **named)))
    return done


def tensors_of(found):
    """All tensors that a call returns."""
    if isinstance(found, list):
        return [x for each in found for x in tensors_of(each)]
    if hasattr(found, "output"):
        return [found.output, found.lse, *([] if found.stats is None else tensors_of(found.stats))]
    names = ("rest", "rest2", "cross", "peak", "first_logit", "first_key", "broken")
    return [*(getattr(found, name) for name in names), found.moments.mean, found.moments.m2]


def other(x, seed):
    """Other numbers in the same memory layout."""
    if x is None:
        return None
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    g = torch.Generator(x.device).manual_seed(seed)
    if x.dtype is torch.bool:
        return y.copy_(torch.rand(x.shape, generator=g, device=x.device) > 0.4)
    return y.copy_(torch.randn(x.shape, generator=g, device=x.device))


def others(p, seed):
    seen = replace(p.visibility, mask=other(p.visibility.mask, seed))
    q, k, v, bias = (other(x, seed + i) for i, x in enumerate((p.q, p.k, p.v, p.bias), 1))
    return replace(p, q=q, k=k, v=v, bias=bias, visibility=seen)


def assert_same(got, want):
    for a, b in zip(tensors_of(got), tensors_of(want), strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


SLOW_SEEDS = {0, 3, 4}
"""What these draw takes the interpreter most of a minute."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [pytest.param(i, marks=[pytest.mark.slow] * (i in SLOW_SEEDS)) for i in range(6)])
@pytest.mark.usefixtures("poisoned_memory")
def test_the_same_bits(way, seed, device, remembering):
    p, rows = drawn(seed, device).problem, torch.arange(1, 16, 3, device=device)
    WAYS[way](p, rows)
    anew, like = len(remembering), others(p, 100 * seed)
    got = WAYS[way](like, rows)
    assert len(remembering) == anew
    launch.forget()
    assert_same(got, WAYS[way](like, rows))
    assert len(remembering) > anew


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "scale"), [(True, 3.0), (False, 0.2), (False, 3.0), (True, 0.2)])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_the_same_bits_with_sums_of_the_keys_and_frozen_rows(causal, scale, device, sums_pay, remembering):
    """Tensors made during a call, cleared memory among them, are made again."""
    keys, dtype = sums_pay()
    case = Case("", batch=1, heads=2, groups=2, queries=keys - 13, keys=keys, dim=32, value_dim=32)
    first, second = (
        problem(*(x.to(device) for x in case.tensors(dtype, seed=seed)), scale=scale, causal=causal) for seed in (0, 1)
    )
    for way in ("output and statistics", "statistics", "several scales"):
        WAYS[way](first, None)
        anew, got = len(remembering), WAYS[way](second, None)
        assert len(remembering) == anew
        launch.forget()
        assert_same(got, WAYS[way](second, None))


def plain(device, **sizes):
    case = Case("", **{"batch": 1, "heads": 2, "queries": 20, "keys": 24, "dim": 16, "value_dim": 16, **sizes})
    return problem(*(x.to(device) for x in case.tensors(torch.float16)), scale=0.25)


def test_what_lies_otherwise_in_memory_is_done_anew(device, remembering):
    p = plain(device)
    wide = torch.zeros(1, 2, 20, 24, dtype=torch.float16, device=device)
    shifted = torch.zeros(1 * 2 * 20 * 16 + 1, dtype=torch.float16, device=device)[1:].view(1, 2, 20, 16)
    kinds = [
        p,
        replace(p, scale=0.3),
        replace(p, softcap=5.0),
        replace(p, visibility=replace(p.visibility, causal=True)),
        replace(p, visibility=replace(p.visibility, window=3)),
        replace(p, q=wide[..., :16]),
        replace(p, q=p.q.float()),
        replace(p, q=shifted),  # no longer at a multiple of 16 bytes
        replace(p, k=p.k[:, :, :22], v=p.v[:, :, :22], visibility=replace(p.visibility, keys=22)),
        plain(device, queries=21),
        plain(device, keys=25),
    ]
    for i, each in enumerate(kinds, 1):
        for _ in range(2):
            kernels.statistics(each)
        assert len(remembering) == i


@pytest.mark.parametrize("way", ["statistics", "several scales"])
def test_one_tensor_in_two_places(way, device, remembering):
    """It is played where one tensor is given twice again, and where two are given, each is used in its place."""
    p, other_p = plain(device, queries=24), plain(device, queries=24)
    twice = replace(p, k=p.q, v=p.q)
    WAYS[way](twice, None)
    want = tensors_of(WAYS[way](p, None))
    assert len(remembering) == 2
    like = replace(other_p, q=other(p.q, 7))
    like = replace(like, k=like.q, v=like.q)
    got = WAYS[way](like, None)
    assert len(remembering) == 2
    launch.forget()
    assert all(map(torch.equal, want, tensors_of(WAYS[way](p, None))))
    assert_same(got, WAYS[way](like, None))


def test_two_tensors_in_one_place_are_not_remembered(device, remembering):
    """Otherwise a call with two tensors would be played as if they were one."""
    p = plain(device, queries=24)
    kernels.statistics(replace(p, k=p.q.view_as(p.q)))
    want = tensors_of(kernels.statistics(p))
    assert len(remembering) == 2
    launch.forget()
    assert all(map(torch.equal, want, tensors_of(kernels.statistics(p))))


@pytest.mark.parametrize("dim", [16, 32], ids=["general", "fast"])
@pytest.mark.usefixtures("small_tiles")
def test_no_tensor_is_held(dim, device, remembering):
    """No tensor is held when a call is recorded, nor when it is played."""
    for _ in range(2):
        p = plain(device, dim=dim, value_dim=dim)
        kernels.solve(p, stats=True)
        held = [weakref.ref(x) for x in (p.q, p.k, p.v)]
        del p
        gc.collect()
        assert not any(x() is not None for x in held)
    assert len(remembering) == 1


def test_what_a_tape_cannot_hold_is_not_remembered(device, monkeypatch):
    """A number read from a tensor, a tensor from elsewhere, tensors in a list, several results, the beginning of a tensor."""
    monkeypatch.setattr(launch, "_worthwhile", lambda device: True)
    x, elsewhere, done = torch.ones(4, device=device), torch.ones(4, device=device), []
    numbers, tensors = (lambda: x.sum().item(), lambda: x.add_(elsewhere)), (lambda: torch.cat([x, x]), x.unbind)
    for way in (*numbers, *tensors, lambda: x[:2].mul_(2)):
        for _ in range(2):
            launch.remembered(str(way), (x,), (torch.empty(4, device=device),), lambda way=way: done.append(way()))
    assert len(done) == 10
    for _ in range(2):
        launch.remembered("", (x,), (torch.empty(4, device=device),), lambda: done.append(x.zero_()))
    assert len(done) == 11


def test_memory_that_is_let_go_and_a_call_within_a_call(device, monkeypatch):
    """A new tensor may lie where a freed one lay."""
    monkeypatch.setattr(launch, "_worthwhile", lambda device: True)
    done = []

    def body(x, out):
        done.append(x)
        for i in (1, 2):
            made = torch.full((1000,), float(i), device=device)
            out[i : i + 1].add_(made[7:8])
            del made
        launch.remembered("within", (x,), (out,), lambda: out.mul_(x))
        out.add_(x)

    for value in (1.0, 2.0, 3.0):
        x, out = torch.full((3,), value, device=device), torch.zeros(3, device=device)
        launch.remembered("around", (x,), (out,), lambda x=x, out=out: body(x, out))
        assert out.tolist() == [value, 2 * value, 3 * value]
    assert len(done) == 1


def test_so_many_and_no_more(device, remembering, monkeypatch):
    monkeypatch.setattr(launch, "MOST_TAPES", 3)
    sizes = [plain(device, queries=20 + i) for i in range(5)]
    for p in (*sizes, *sizes[2:]):
        kernels.statistics(p)
    assert len(remembering) == 5
    kernels.statistics(sizes[0])
    assert len(remembering) == 6


def test_only_with_a_version_of_triton_that_is_known(monkeypatch):
    assert launch._worthwhile(torch.device("cuda", 0)) == launch.triton.__version__.startswith("3.6")
    monkeypatch.setattr(launch.triton, "__version__", "4.0.0")
    assert not launch._worthwhile(torch.device("cuda", 0))
    assert not launch._worthwhile(torch.device("cpu"))


def test_a_launch_is_laid_out_as_triton_lays_it_out(monkeypatch):
    """What the tape hands to Triton's launcher is what `CudaLauncher` would hand it, with addresses for tensors."""
    driver = pytest.importorskip("triton.backends.nvidia.driver")
    encoded = []

    def encode(address, *others):
        encoded.append(address)
        return ("encoded", address, *others)

    active = SimpleNamespace(utils=SimpleNamespace(fill_tma_descriptor=encode))
    monkeypatch.setattr(launch.triton.runtime.driver, "_active", active)
    kind = next(iter(driver.TMA_DTYPE_DEVICE_TO_HOST))
    described = {"swizzle": 3, "elem_size": 2, "elem_type": kind, "block_size": [1, 1, 4, 8], "fp4_padded": False}
    signature = {
        0: "tensordesc<fp16[1, 1, 4, 8]>",
        1: "*fp16",
        2: "i32",
        3: "tensordesc<fp16[1, 1, 4, 8]>",
        4: "constexpr",
    }
    passed = []
    run = driver.CudaLauncher.__new__(driver.CudaLauncher)
    run.launch = driver.wrap_handle_tensordesc(lambda *given: passed.append(given), signature, [described] * 2)
    run.num_ctas, run.launch_cooperative_grid, run.launch_pdl = 1, False, True
    run.global_scratch_size = run.profile_scratch_size = run.global_scratch_align = run.profile_scratch_align = 0
    x, y = torch.zeros(1, 2, 16, 8).half(), torch.ones(1, 2, 32, 8).half()
    args = [fast.tiles(x, 4), y, 7, fast.tiles(y[:, :1], 4)]
    compiled = SimpleNamespace(run=run, function=99, packed_metadata=("packed",))
    tape = launch.Tape([x, y])
    kernel = SimpleNamespace(arg_names=["a", "b", "c", "d", "E"])
    step = launch.TapeLaunch.of(tape, kernel, compiled, (5, 6), args, {"E": True, "num_warps": 4})
    assert tape.replayable
    step.play([x, y], [x.data_ptr(), y.data_ptr()], 1234)
    run(5, 6, 1, 1234, 99, ("packed",), None, None, None, *args, True)
    ours, theirs = passed
    assert list(ours) == [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in theirs]
    # A descriptor is encoded once for an address, and for no more addresses than are kept.
    monkeypatch.setattr(launch, "MOST_ADDRESSES", 2)
    encoded.clear()
    others = [x.clone() for _ in range(4)]
    place = next(at for at, each in enumerate(ours) if isinstance(each, tuple) and each[0] == "encoded")
    for z in (x, others[0], x, *others[1:], x):
        step.play([z, y], [z.data_ptr(), y.data_ptr()], 1234)
        assert passed[-1] == (*ours[:place], ("encoded", z.data_ptr(), *ours[place][2:]), *ours[place + 1 :])
    assert encoded.count(others[0].data_ptr()) == 1
    assert len(encoded) < 2 * 7


def test_nothing_is_played_while_a_profiler_of_tritons_watches(monkeypatch):
    monkeypatch.setattr(launch.triton, "__version__", "3.6.0")
    assert launch._worthwhile(torch.device("cuda", 0))
    monkeypatch.setattr(launch.triton.knobs.runtime.launch_enter_hook, "calls", [print])
    assert not launch._worthwhile(torch.device("cuda", 0))


@pytest.mark.parametrize(("version", "persistent"), [("3.6.0", True), ("3.9.0", False)])
def test_the_kernel_for_hopper_is_for_versions_of_triton_that_compile_it(version, persistent, monkeypatch):
    monkeypatch.setattr(launch.triton, "__version__", version)
    monkeypatch.setattr(fast, "_generation", lambda _: 9)
    monkeypatch.setattr(fast, "_processors", lambda _: 1)
    call = SimpleNamespace(shape=(1, 2, 256), q=SimpleNamespace(is_cuda=True, device=None))
    assert fast.uses_persistent_kernel(call) == persistent
