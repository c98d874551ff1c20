"""Odd inputs, samples of rows, memory, and what is refused."""

import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from isotherm import attention
from isotherm.errors import ArgumentError, UnsupportedError
from isotherm.ops import tiles
from isotherm.scale import (
    Cosine,
    InverseSqrt,
    Llama4Temperature,
    LogN,
    PerHead,
    QKNorm,
    Sigmoid,
    Sinks,
    SoftCap,
    SoftmaxPlusOne,
)
from isotherm.stats import STATISTICS
from tests.ops.cases import Case, assert_same, assert_same_statistics
from tests.ops.watch import LargestTensor


def test_causal_alignment_both_ways():
    q, k = torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 5, 3)
    seen = {
        how: attention(q, k, k, causal=how, stats=True).stats.n[0, 0].tolist()
        for how in (True, "bottom-right", "top-left")
    }
    assert seen == {True: [4, 5], "bottom-right": [4, 5], "top-left": [1, 2]}
    more_queries = attention(k, q, q, causal=True, stats=True)
    assert more_queries.stats.n[0, 0].tolist() == [0, 0, 0, 1, 2]
    assert more_queries.stats.empty[0, 0].tolist() == [True, True, True, False, False]
    assert more_queries.output[0, 0, :3].abs().sum() == 0


@pytest.mark.parametrize("impl", ["reference", "blockwise", "sdpa"])
@pytest.mark.parametrize(("t", "s"), [(0, 5), (5, 0), (0, 0)], ids=["no queries", "no keys", "nothing"])
def test_zero_length_works_and_has_gradients(impl, t, s):
    q, k = torch.randn(2, 4, t, 3, requires_grad=True), torch.randn(2, 2, s, 3, requires_grad=True)
    result = attention(q, k, k, stats=True, impl=impl)
    assert result.output.shape == (2, 4, t, 3)
    assert result.output.abs().sum() == 0
    assert result.stats.empty.sum() == 2 * 4 * t
    result.output.sum().backward()
    assert k.grad is None or k.grad.abs().sum() == 0


EVERY_RULE = {
    "1/√d": InverseSqrt(),
    "log-n": LogN(8) * InverseSqrt(),
    "llama-4": Llama4Temperature(8) * InverseSqrt(),
    "qk-norm": QKNorm() * InverseSqrt(),
    "qk-norm over the width": QKNorm(over="width") * InverseSqrt(),
    "cosine": Cosine(),
    "soft-cap": SoftCap(5.0) * InverseSqrt(),
}


@pytest.mark.parametrize("impl", ["reference", "blockwise"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("rule", EVERY_RULE.values(), ids=EVERY_RULE.keys())
@pytest.mark.parametrize("none", ["batch", "queries", "keys", "features of v"])
def test_a_size_of_zero_works_under_every_rule(none, rule, causal, impl):
    sizes = {"batch": 2, "queries": 5, "keys": 7, "features of v": 6} | {none: 0}
    batch, t, s, width = sizes.values()
    q, k, v = (torch.randn(batch, 2, *shape, requires_grad=True) for shape in ((t, 8), (s, 8), (s, width)))
    result = attention(q, k, v, scale=rule, causal=causal, stats=True, impl=impl)
    assert result.output.shape == (batch, 2, t, width)
    whole = attention(q, k, torch.randn(batch, 2, s, 6), scale=rule, causal=causal, stats=True, impl="reference")
    assert_same_statistics(result.stats, whole.stats)
    result.output.sum().backward()
    assert all(x.grad is None or x.grad.abs().sum() == 0 for x in (q, k, v))


@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
def test_a_bias_of_minus_infinity_under_a_cap_leaves_finite_gradients(learned):
    given = [x.double() for x in Case("").tensors()]
    bias = torch.zeros(13, 13, dtype=torch.float64)
    bias[:, 3:] = -torch.inf
    found = []
    for impl in ("reference", "blockwise"):
        q, k, v = (x.detach().requires_grad_() for x in given)
        own = bias.clone().requires_grad_(learned)
        attention(q, k, v, bias=own, scale=SoftCap(5.0) * InverseSqrt(), impl=impl).output.square().sum().backward()
        found.append([x.grad for x in (q, k, v, own) if x.requires_grad])
    torch.testing.assert_close(found[1], found[0])
    assert all(x.isfinite().all() for x in found[0])


@pytest.mark.parametrize("impl", ["reference", "blockwise", "sdpa"])
def test_rows_that_see_nothing_give_zero_and_finite_gradients(impl):
    q, k, v = (x.requires_grad_() for x in Case("").tensors())
    mask = torch.ones(13, 13, dtype=torch.bool)
    mask[4] = False
    result = attention(q, k, v, mask=mask, stats=True, impl=impl)
    assert result.output[:, :, 4].abs().sum() == 0
    assert result.stats.empty.sum() == 2 * 3
    result.output.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("impl", ["reference", "blockwise"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.usefixtures("tile_size")
def test_nan_and_inf_make_exactly_the_rows_that_see_them_invalid(impl, bad, causal):
    q, k, v = (x.abs() for x in Case("", groups=2).tensors())
    q[0, 1, 3, 0] = bad
    k[1, 2, 6, 1] = bad
    stats = attention(q, k, v, causal=causal, stats=True, impl=impl).stats
    expected = torch.zeros(2, 6, 13, dtype=torch.bool)
    expected[0, 1, 3] = True
    expected[1, 4:6, 6 if causal else 0 :] = True
    assert torch.equal(stats.invalid, expected)
    assert stats.entropy.isnan().sum() == expected.sum()
    assert stats.logit_std[~expected].isfinite().all()


def test_float16_logits_past_65504_are_reported():
    q = torch.full((1, 1, 2, 64), 60.0, dtype=torch.float16)
    stats = attention(q, q, q, scale=1.0, stats=True).stats
    assert stats.max_logit.max().item() == 230400
    assert stats.overflowing(torch.float16).all()


@given(st.integers(1, 40), st.booleans())
def test_sampled_rows_are_the_same_rows_of_the_exact_answer(rows, causal):
    q, k, v = Case("", queries=31, keys=31).tensors()
    exact = attention(q, k, v, causal=causal, stats=True)
    result = attention(q, k, v, causal=causal, rows=rows)
    assert result.output.shape == exact.output.shape
    if rows >= 31:
        assert result.stats.label == "exact"
        return
    stats = result.stats
    assert (stats.label, stats.total_rows) == ("sampled", 31)
    assert len(stats.rows) == rows
    for name in STATISTICS:
        torch.testing.assert_close(getattr(stats, name), getattr(exact.stats, name)[:, :, stats.rows], equal_nan=True)
    assert stats.summary("entropy").label == "sampled"
    assert (stats.summary("entropy").interval > 0).all() or rows == 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("impl", ["reference", "blockwise", "sdpa"])
def test_indices_of_rows_may_be_of_any_whole_type(dtype, impl):
    stats = attention(OK, OK, OK, causal=True, rows=torch.tensor([4, 1, 4], dtype=dtype), impl=impl).stats
    assert stats.n[1, 3].tolist() == [2, 5]
    assert torch.arange(5)[stats.rows].tolist() == [1, 4]


def test_sampling_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    q, k, v = Case("").tensors()
    attention(q, k, v, rows=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_interval_of_a_sample_covers_the_true_mean():
    q, k, v = Case("", batch=1, heads=40, queries=512, keys=64).tensors()
    exact, sampled = attention(q, k, v, stats=True).stats, attention(q, k, v, rows=64).stats
    a, b = exact.summary("entropy"), sampled.summary("entropy")
    covered = ((a.mean - b.mean).abs() <= b.interval).double().mean().item()
    assert 0.8 <= covered <= 1.0
    assert (b.interval < 0.2 * a.mean).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window": 100}, {"mask": torch.ones(1, 1, 1, 4099, dtype=torch.bool)}],
    ids=["full", "causal", "window", "mask of keys"],
)
def test_no_implementation_but_the_reference_makes_an_n_by_n_matrix(options):
    n = 4099
    q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))
    with LargestTensor() as seen:
        attention(q, k, v, stats=True, impl="blockwise", **options).output.sum().backward()
    assert seen.largest <= tiles.TILE * 8 < n * n * 4
    with LargestTensor() as seen, torch.no_grad():
        attention(q, k, v, impl="reference", **options)
    assert seen.largest >= n * n * 4  # and the watcher would have seen it


@pytest.mark.parametrize("rule", [SoftmaxPlusOne(), Sinks(0.7)], ids=str)
@pytest.mark.parametrize("impl", ["reference", "blockwise"])
def test_sinks_are_an_extra_column_of_the_softmax(rule, impl):
    q, k, v = Case("").tensors()
    alpha = 0.7 if isinstance(rule, Sinks) else 0.0
    s = torch.cat([q @ k.mT * 5**-0.5, torch.full((2, 3, 13, 1), alpha, dtype=torch.float64)], -1)
    p = torch.softmax(s, -1)
    result = attention(q, k, v, scale=InverseSqrt() * rule, stats=True, impl=impl)
    torch.testing.assert_close(result.output, p[..., :-1] @ v)
    torch.testing.assert_close(result.stats.entropy, -(p * p.log()).sum(-1))
    torch.testing.assert_close(result.lse, s.logsumexp(-1))


def test_log_n_counts_visible_keys_and_restarts_with_a_packed_document():
    q, k, v = Case("", queries=12, keys=12).tensors()
    document = torch.arange(12) // 6
    mask = (document.view(-1, 1) == document) & torch.ones(12, 12, dtype=torch.bool).tril()
    packed = attention(q, k, v, scale=InverseSqrt() * LogN(2), mask=mask, stats=True)
    for part in (slice(0, 6), slice(6, 12)):
        alone = attention(q[:, :, part], k[:, :, part], v[:, :, part], scale=InverseSqrt() * LogN(2), causal=True)
        torch.testing.assert_close(packed.output[:, :, part], alone.output)


def test_sigmoid_attention_has_weights_of_its_own_and_no_rows():
    q, k, v = Case("").tensors()
    s = q @ k.mT * 5**-0.5
    result = attention(q, k, v, scale=InverseSqrt() * Sigmoid())
    torch.testing.assert_close(result.output, torch.sigmoid(s - torch.tensor(13.0).log()) @ v)
    with pytest.raises(ArgumentError, match="stats: expected False with sigmoid"):
        attention(q, k, v, scale=InverseSqrt() * Sigmoid(), stats=True)
    with pytest.raises(UnsupportedError, match="'blockwise' does not support sigmoid"):
        attention(q, k, v, scale=InverseSqrt() * Sigmoid(), impl="blockwise")


def test_non_contiguous_inputs():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in Case("", groups=2).tensors())
    assert not q.is_contiguous()
    assert_same(attention(q, k, v, stats=True, impl="blockwise"), attention(q, k, v, stats=True, impl="reference"))


def test_auto_says_which_path_ran():
    q, k, v = Case("plain").tensors(torch.float32)
    assert attention(q, k, v).impl == "sdpa"
    assert attention(q, k, v, stats=True).impl == "blockwise"
    assert attention(q, k, v, rows=3).impl == "sdpa"
    assert attention(q, k, v, scale=InverseSqrt() * SoftCap(5)).impl == "blockwise"
    assert attention(q.requires_grad_(), k, v, stats=True).impl == "sdpa"
    torch.testing.assert_close(attention(q, k, v).output, F.scaled_dot_product_attention(q, k, v))


OK = torch.zeros(2, 4, 5, 8)
BAD = {
    "q is a list": ({"q": [1.0]}, r"q: expected a tensor, got list"),
    "wrong rank": ({"q": torch.zeros(4, 5, 8)}, r"q: expected \[batch, heads, length, dimension\], got \[4, 5, 8\]"),
    "integers": ({"v": OK.long()}, r"v: expected a floating-point tensor, got torch.int64"),
    "batch": ({"k": torch.zeros(3, 4, 5, 8)}, r"k: expected the batch of q, 2, got 3 in \[3, 4, 5, 8\]"),
    "heads don't divide": (
        {"k": torch.zeros(2, 3, 5, 8), "v": torch.zeros(2, 3, 5, 8)},
        r"k: expected a number of heads that divides q's 4, got 3",
    ),
    "no key heads": (
        {"k": torch.zeros(2, 0, 5, 8), "v": torch.zeros(2, 0, 5, 8)},
        r"k: expected a number of heads that divides q's 4, got 0",
    ),
    "head dimension": ({"k": torch.zeros(2, 4, 5, 7)}, r"k: expected the head dimension of q, 8, got 7"),
    "no dimension": (
        {"q": OK[..., :0], "k": OK[..., :0]},
        r"q: expected .* a head dimension of at least 1, got \[2, 4, 5, 0\]",
    ),
    "no heads": (dict.fromkeys("qkv", OK[:, :0]), r"q: expected at least one head, .* got \[2, 0, 5, 8\]"),
    "lengths of k and v": ({"v": torch.zeros(2, 4, 6, 8)}, r"v: expected the length of k, 5, got 6"),
    "heads of k and v": ({"v": torch.zeros(2, 2, 5, 8)}, r"v: expected the number of heads of k, 4, got 2"),
    "dtype": ({"k": OK.double()}, r"k: expected the dtype of q, torch.float32, got torch.float64"),
    "device": ({"v": OK.to("meta")}, r"v: expected the device of q, cpu, got meta"),
    "scale NaN": ({"scale": float("nan")}, r"scale: expected a finite number above 0, got nan"),
    "scale zero": ({"scale": 0.0}, r"scale: expected a finite number above 0, got 0"),
    "scale negative": ({"scale": -1}, r"scale: expected a finite number above 0, got -1"),
    "scale a word": ({"scale": "1/d"}, r"scale: expected a rule, a number or None, got '1/d'"),
    "mask of numbers": (
        {"mask": torch.zeros(5, 5)},
        r"mask: expected bool, True where a key is visible .* got torch.float32",
    ),
    "mask too wide": (
        {"mask": torch.ones(5, 6).bool()},
        r"mask: expected \[T, S\] or \[B, Hq, T, S\] = \[2, 4, 5, 5\], any of them 1, got \[5, 6\]",
    ),
    "mask of rank 3": ({"mask": torch.ones(1, 5, 5).bool()}, r"mask: expected .* got \[1, 5, 5\]"),
    "mask elsewhere": (
        {"mask": torch.ones(5, 5, device="meta").bool()},
        r"mask: expected the device of q, cpu, got meta",
    ),
    "bias of bools": ({"bias": torch.ones(5, 5).bool()}, r"bias: expected a floating-point tensor, got torch.bool"),
    "bias too tall": ({"bias": torch.ones(6, 5)}, r"bias: expected .* got \[6, 5\]"),
    "window zero": ({"window": 0}, r"window: expected a whole number of keys, at least 1, got 0"),
    "window a float": ({"window": 2.5}, r"window: expected a whole number of keys, at least 1, got 2.5"),
    "documents that end early": ({"documents": [0, 4]}, r"documents: expected .* last, 5, .* got \[0, 4\]$"),
    "documents out of order": ({"documents": [0, 4, 2, 5]}, r"documents: expected .* got \[0, 4, 2, 5\]$"),
    "documents out of order, in bytes": (
        {"documents": torch.tensor([0, 4, 2, 5], dtype=torch.uint8)},
        r"documents: expected .* got \[0, 4, 2, 5\]$",
    ),
    "documents beyond int64": (
        {"documents": [0, 2**70, 5]},
        r"documents: expected .* got \[0, 1180591620717411303424, 5\]$",
    ),
    "documents in fractions": ({"documents": [0, 2.5, 5]}, r"documents: expected .* got \[0, 2.5, 5\]$"),
    "documents in float": ({"documents": torch.ones(2, 5)}, r"documents: expected .* got torch.float32$"),
    "documents of another length": ({"documents": torch.ones(2, 4).int()}, r"documents: expected .* got \[2, 4\]$"),
    "one place": ({"documents": [5]}, r"documents: expected .* got \[1\]$"),
    "documents a word": ({"documents": "all"}, r"documents: expected .* got 'all'$"),
    "documents without numbers": (
        {"documents": torch.zeros(2, 5, dtype=torch.long, device="meta")},
        r"documents: expected .* got a tensor on the meta device$",
    ),
    "more queries than documents": (
        {"q": torch.cat([OK, OK], 2), "documents": [0, 5]},
        r"documents: expected at most as many queries as keys, got 10$",
    ),
    "rows zero": ({"rows": 0}, r"rows: expected a number of rows, at least 1, got 0"),
    "rows negative": ({"rows": -3}, r"rows: expected a number of rows, at least 1, got -3"),
    "rows past the end": ({"rows": torch.tensor([0, 5])}, r"rows: expected indices from 0 to 4, got \[0, 5\]"),
    "rows before the start": ({"rows": torch.tensor([-1, 2])}, r"rows: expected indices from 0 to 4, got \[-1, 2\]"),
    "causal a word": ({"causal": "left"}, r"causal: expected True, False, 'top-left' or 'bottom-right', got 'left'"),
    "window beyond any key": (
        {"window": 10**30},
        r"window: expected at most 2\^30 keys \(None: every key\), got 10{30}$",
    ),
    "window beyond print": (
        {"window": 10**5000},
        r"window: expected at most 2\^30 keys .* got a number of 5001 digits",
    ),
    "scale beyond float64": ({"scale": 10**400}, r"scale: expected a finite number above 0, got 10{400}$"),
    "scale beyond print": (
        {"scale": 10**5000},
        r"scale: expected a finite number above 0, got a number of 5001 digits",
    ),
    "complex": ({"q": OK.cfloat()}, r"q: expected a floating-point tensor, got torch.complex64"),
    "float8": (
        {"k": OK.to(torch.float8_e4m3fn)},
        r"k: expected float16, bfloat16, float32 or float64, got torch.float8_e4m3fn",
    ),
    "sparse": ({"v": OK.to_sparse()}, r"v: expected a dense tensor, got torch.sparse_coo"),
    "sparse mask": (
        {"mask": torch.ones(5, 5).bool().to_sparse()},
        r"mask: expected a dense tensor, got torch.sparse_coo",
    ),
    "meta": (
        dict.fromkeys("qkv", OK.to("meta")),
        r"q: expected a tensor that holds numbers, got a tensor on the meta device$",
    ),
    "bias in float8": (
        {"bias": torch.ones(5, 5).to(torch.float8_e5m2)},
        r"bias: expected float16, .* got torch.float8_e5m2",
    ),
    "sparse bias": ({"bias": torch.ones(5, 5).to_sparse()}, r"bias: expected a dense tensor, got torch.sparse_coo"),
    "rows in complex": ({"rows": torch.tensor([1j])}, r"rows: expected indices from 0 to 4, got torch.complex64 \[1\]"),
    "rows without numbers": (
        {"rows": torch.zeros(2, dtype=torch.long, device="meta")},
        r"rows: expected indices from 0 to 4, got a tensor on the meta device",
    ),
    "sparse rows": ({"rows": torch.tensor([1, 2]).to_sparse()}, r"rows: expected indices .* got torch.sparse_coo"),
    "a rule elsewhere": (
        {"scale": PerHead(torch.ones(4, device="meta"))},
        r"scale: expected tensors on the device of q, cpu, got meta",
    ),
    "a sink elsewhere": (
        {"scale": InverseSqrt() * Sinks(torch.ones(4, device="meta"))},
        r"scale: expected tensors on the device of q, cpu, got meta",
    ),
    "a gain elsewhere": (
        {"scale": QKNorm(q_gain=torch.ones(8, device="meta"))},
        r"q_gain: expected a tensor on cpu, got meta",
    ),
    "impl unknown": ({"impl": "flash"}, r"impl: expected one of auto, reference, blockwise, sdpa, triton, got 'flash'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_clear_error_that_names_the_argument(change, message):
    arguments = {"q": OK, "k": OK, "v": OK} | change
    with pytest.raises(ArgumentError, match=message):
        attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


def test_a_nested_tensor_is_refused():
    """Made here, not with the others: making one imports Dynamo and with it Triton, before the kernels' tests prepare it."""
    nested = torch.nested.as_nested_tensor([OK[0], OK[1]], layout=torch.jagged)
    with pytest.raises(ArgumentError, match=r"q: expected a dense tensor, got a nested tensor"):
        attention(nested, OK, OK)


@pytest.mark.slow
def test_distributed_tensors_go_to_pytorchs_kernel_or_are_refused(monkeypatch):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        q = distribute_tensor(OK, init_device_mesh("cpu", (1,)), [Shard(1)])
        assert attention(q, q, q).output.to_local().shape == OK.shape
        for options in ({"stats": True}, {"rows": 2}, {"window": 2}, {"impl": "reference"}):
            with pytest.raises(ArgumentError, match=r"q: expected .* \(its to_local\(\)\), got DTensor"):
                attention(q, q, q, **options)
            with pytest.raises(ArgumentError, match="v: expected"):
                attention(OK, OK, q, **options)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    "rule", [SoftCap, Sinks, Llama4Temperature, lambda x: QKNorm(eps=x)], ids=["cap", "sink", "llama-4", "eps"]
)
@pytest.mark.parametrize(
    ("number", "shown"),
    [(10**400, "10{400}$"), (10**5000, "a number of 5001 digits$")],
    ids=["400 digits", "5000 digits"],
)
def test_rules_refuse_whole_numbers_beyond_float64(rule, number, shown):
    with pytest.raises(ArgumentError, match=f"expected a finite number.*, got {shown}"):
        rule(number)


def test_shapes_alone_go_through_the_reference():
    """Whoever sizes a model on the meta device names the one implementation that reads no number."""
    shape = OK.to("meta")
    bias = torch.zeros(5, 5, device="meta")
    assert attention(shape, shape, shape, bias=bias, causal=True, impl="reference").output.shape == OK.shape


def test_errors_are_chinese_when_asked(monkeypatch):
    monkeypatch.setenv("ISOTHERM_LANG", "zh_CN.UTF-8")
    with pytest.raises(ArgumentError, match="rows：应为至少为 1 的行数，实为 0"):
        attention(OK, OK, OK, rows=0)


@pytest.mark.filterwarnings("ignore")  # Dynamo's own
@pytest.mark.parametrize(
    "options",
    [
        {"stats": True},
        {"stats": True, "impl": "blockwise"},
        pytest.param({"rows": 3}, marks=pytest.mark.slow),
        pytest.param({"rows": torch.tensor([4, 1])}, marks=pytest.mark.slow),
        {"stats": True, "bias": torch.zeros(5, 5).fill_diagonal_(-torch.inf)},
    ],
    ids=["statistics", "tiles", "some rows", "these rows", "bias"],
)
def test_compiled_it_is_the_same(options, monkeypatch):
    """Tiles are not traced (where the graph breaks), and nothing that a graph cannot hold stops it."""
    monkeypatch.setattr(tiles, "_kept", threading.local())
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 8, generator=g, requires_grad=True) for _ in range(3))

    def step(q, k, v):
        result = attention(q, k, v, **options)
        return result.output, result.stats.entropy

    torch._dynamo.reset()
    got, want = torch.compile(step, backend="aot_eager")(q, k, v), step(q, k, v)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(*(torch.autograd.grad(x[0].square().sum(), (q, k, v)) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b)


def test_tiles_do_not_import_the_compiler():
    """That takes a second, and whoever compiles nothing is to be spared it."""
    code = (
        "import sys, torch, isotherm; q = torch.ones(1, 1, 4, 4); isotherm.attention(q, q, q, stats=True, impl='blockwise')"
        "; sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
