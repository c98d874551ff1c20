"""Every implementation against the reference, and the reference against PyTorch."""

import itertools
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm import attention
from isotherm.errors import UnsupportedError
from isotherm.ops import Visibility
from isotherm.ops.tiles import Chunk
from isotherm.scale import InverseSqrt, Llama4Temperature, LogN, PerHead
from tests.ops.cases import CASES, Case, assert_same, assert_same_statistics

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_name
@pytest.mark.usefixtures("tile_size", "poisoned_memory")
def test_blockwise_is_the_reference(case):
    q, k, v = case.tensors()
    got = attention(q, k, v, stats=True, impl="blockwise", **case.arguments())
    assert got.impl == "blockwise"
    assert_same(got, attention(q, k, v, stats=True, impl="reference", **case.arguments()))


@by_name
@pytest.mark.usefixtures("tile_size", "poisoned_memory")
def test_blockwise_gradients_are_autograds_through_the_reference(case):
    gradients = []
    for impl in ("reference", "blockwise"):
        leaves = [tensor.requires_grad_() for tensor in case.tensors()]
        options = case.arguments()
        if "bias" in options:
            leaves.append(options["bias"].requires_grad_())
        if isinstance(options.get("scale"), PerHead):
            leaves.append(options["scale"].scale.requires_grad_())
        result = attention(*leaves[:3], impl=impl, **options)
        finite = result.lse.isfinite()
        (result.output.sin().sum() + torch.where(finite, result.lse, 0).cos().sum()).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for wanted, got in zip(*gradients, strict=True):
        assert wanted.abs().sum() > 0
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@by_name
@pytest.mark.parametrize("impl", ["reference", "blockwise"])
def test_sampled_rows_of_every_case_are_those_of_the_whole(case, impl):
    q, k, v = case.tensors()
    rows = torch.tensor([1, case.queries - 2])
    whole = attention(q, k, v, stats=True, impl=impl, **case.arguments()).stats
    some = attention(q, k, v, rows=rows, impl=impl, **case.arguments()).stats
    assert_same_statistics(some, whole.map(lambda tensor: tensor[:, :, rows]), budget=1e-11)


@by_name
def test_sdpa_is_the_reference_or_refuses(case):
    q, k, v = case.tensors()
    try:
        got = attention(q, k, v, stats=True, impl="sdpa", **case.arguments())
    except UnsupportedError as error:
        assert "impl='sdpa' does not support" in str(error)  # noqa: PT017
        assert attention(q, k, v, **case.arguments()).impl == "blockwise"
        return
    assert got.impl == "sdpa"
    assert_same(got, attention(q, k, v, stats=True, impl="reference", **case.arguments()))


@by_name
def test_reference_is_pytorchs_softmax(case):
    """The specification itself, written a second time with `torch.softmax` over an explicit matrix."""
    options = case.arguments()
    if isinstance(options.get("scale"), float):
        scale = options["scale"]
    elif "scale" not in options:
        scale = case.dim**-0.5
    else:
        pytest.skip("rules are compared in tests/scale and below")
    q, k, v = case.tensors()
    k, v = (tensor.repeat_interleave(case.groups, 1) for tensor in (k, v))
    s = scale * torch.einsum("bhtd,bhsd->bhts", q, k)
    s = s + options.get("bias", torch.zeros(1))
    t, u = torch.arange(case.queries).view(-1, 1), torch.arange(case.keys).view(1, -1)
    causal = options.get("causal", False)
    t = t if causal == "top-left" else t + case.keys - case.queries
    seen = torch.ones(case.queries, case.keys, dtype=torch.bool)
    seen = seen & (u <= t) if causal else seen
    seen = seen & ((t - u).abs() < options["window"]) if "window" in options else seen
    seen = seen & options.get("mask", torch.tensor(True))
    if (documents := options.get("documents")) is not None:
        ids = torch.as_tensor(documents)
        ids = (ids[:, None] <= u).sum(0, keepdim=True) if ids.dim() == 1 else ids
        seen = seen & (ids[:, None, -case.queries :, None] == ids[:, None, None, :])
    p = torch.softmax(s.masked_fill(~seen, -torch.inf), -1).nan_to_num(0.0)
    q, k, v = case.tensors()
    result = attention(q, k, v, impl="reference", stats=True, **options)
    torch.testing.assert_close(result.output, p @ v.repeat_interleave(case.groups, 1))
    torch.testing.assert_close(result.stats.n, seen.sum(-1).expand_as(result.stats.n))


PACKED = {
    "1/√d": None,
    "log-n, which counts visible keys": InverseSqrt() * LogN(2),
    "by position, which starts again": InverseSqrt() * Llama4Temperature(2, 0.5),
}


@pytest.mark.parametrize("rule", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("impl", ["reference", "blockwise"])
@pytest.mark.usefixtures("tile_size")
def test_packed_documents_are_what_each_is_alone(impl, rule):
    """Output, lse, statistics and gradients, whether documents are given by place or by id."""
    q, k, v = (x.requires_grad_() for x in Case("", groups=2, queries=23, keys=23).tensors())
    places = [0, 5, 6, 6, 16, 23]
    options = {"causal": True, "scale": rule, "stats": True, "impl": impl}
    alone = [attention(*(x[:, :, a:b] for x in (q, k, v)), **options) for a, b in itertools.pairwise(places) if a < b]
    output, lse = torch.cat([each.output for each in alone], 2), torch.cat([each.lse for each in alone], 2)
    want = torch.autograd.grad((output.sin().sum() + lse.square().sum()), (q, k, v))
    ids = torch.repeat_interleave(torch.tensor([7, 3, 7, 5]), torch.tensor([5, 1, 10, 7])).expand(2, -1)
    for documents in (places, torch.tensor(places), ids):
        got = attention(q, k, v, documents=documents, **options)
        torch.testing.assert_close(got.output, output)
        torch.testing.assert_close(got.lse, lse)
        for name in ("n", "entropy", "jacobian_trace", "max_logit", "sink"):
            both = getattr(got.stats, name), torch.cat([getattr(each.stats, name) for each in alone], 2)
            torch.testing.assert_close(*both, equal_nan=True)
        found = torch.autograd.grad((got.output.sin().sum() + got.lse.square().sum()), (q, k, v))
        torch.testing.assert_close(found, want)


def test_a_list_of_documents_is_read_whatever_the_default_device():
    q = torch.ones(1, 1, 5, 4)
    with torch.device("meta"):
        assert attention(q, q, q, documents=[0, 2, 5], stats=True).stats.n.tolist() == [[[2, 2, 3, 3, 3]]]


def test_tiles_outside_a_document_or_window_are_skipped(monkeypatch):
    """No mask of the whole matrix is made, and no tile is computed of which no row sees a key."""
    monkeypatch.setattr("isotherm.ops.tiles.KEYS", 16)
    q, k, v = Case("", batch=1, heads=1, queries=160, keys=160).tensors(torch.float32)
    computed, logits = [], Chunk.logits
    monkeypatch.setattr(Chunk, "logits", lambda self, *given: (computed.append(given[2]), logits(self, *given))[1])
    monkeypatch.setattr(Visibility, "matrix", None)
    for options, tiles in (({}, 100), ({"documents": [0, 32, 96, 160]}, 4 + 16 + 16), ({"window": 17}, 10 + 18)):
        computed.clear()
        attention(q, k, v, stats=True, impl="blockwise", **options)
        assert len(computed) == tiles


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("impl", ["blockwise", "sdpa"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_low_precision_error_is_at_most_twice_eagers(dtype, impl, causal):
    """Output and statistics against float64 on the same rounded inputs; eager at that precision sets the budget."""
    q, k, v = (3 * x for x in Case("", queries=67, keys=67, dim=32, value_dim=32).tensors(dtype))
    exact = attention(*(x.double() for x in (q, k, v)), causal=causal, stats=True, impl="reference")
    s = (q @ k.mT * 32**-0.5).masked_fill(
        ~torch.ones(67, 67, dtype=torch.bool).tril() if causal else torch.tensor(False), -torch.inf
    )
    p = torch.softmax(s, -1)
    eager = (p @ v).double()
    got = attention(q, k, v, causal=causal, stats=True, impl=impl)
    assert got.output.dtype == dtype
    budget = 2 * (eager - exact.output).abs().max() + torch.finfo(dtype).eps
    assert (got.output.double() - exact.output).abs().max() <= budget
    log_p = torch.where(p > 0, p.double().log(), 0)
    for name, low in (
        ("entropy", -(p * log_p).sum(-1)),
        ("collision", p.double().square().sum(-1)),
        ("lse", s.double().logsumexp(-1)),
    ):
        want = getattr(exact.stats, name)
        assert (getattr(got.stats, name) - want).abs().max() <= 2 * (low - want).abs().max() + 1e-6, name


@given(st.integers(0, 2**16), st.integers(0, 3), st.sampled_from([1, 7, 100, 10_000]))
def test_float32_statistics_are_within_1e5_nats_for_logits_up_to_1e4(seed, kind, size):
    """q and k lie on a grid on which float32 dot products are exact, so only the statistics can err.

    The other part of the error, rounding of q·k itself, is `test_rounding_of_the_dot_product_is_the_only_other_error`.
    """
    g = torch.Generator().manual_seed(seed)
    d, n = 4, 37
    q = torch.randint(-8, 9, (1, 2, 11, d), generator=g) / 8
    k = torch.randint(-256, 257, (1, 2, n, d), generator=g) / 256 * (size / 4)
    k = (k * 64).round() / 64
    scale = 1.0
    options = [{}, {"causal": True}, {"window": 5}, {"mask": torch.rand(1, 1, 11, n, generator=g) > 0.3}][kind]
    exact = attention(q.double(), k.double(), k.double(), scale=scale, stats=True, impl="reference", **options)
    got = attention(q, k, k, scale=scale, stats=True, impl="blockwise", **options)
    assert exact.stats.max_logit.nan_to_num(0).abs().max() <= 1e4
    for name in ("lse", "max_logit", "logit_mean", "logit_std", "entropy"):
        torch.testing.assert_close(
            getattr(got.stats, name), getattr(exact.stats, name), rtol=0, atol=1e-5, equal_nan=True
        )
    for name in ("jacobian_trace", "collision", "top1", "sink", "jacobian_max"):
        torch.testing.assert_close(
            getattr(got.stats, name), getattr(exact.stats, name), rtol=1e-5, atol=1e-30, equal_nan=True
        )


@given(st.integers(0, 2**16), st.sampled_from([0.01, 1.0, 50.0, 2000.0]))
def test_rounding_of_the_dot_product_is_the_only_other_error(seed, scale):
    """Off the grid each logit is off by at most δ = (d + 2)·ε·scale·Σ|q_i k_i|, and entropy by a multiple of it."""
    q, k, v = Case("", keys=29, dim=7).tensors(torch.float32, seed)
    exact = attention(*(x.double() for x in (q, k, v)), scale=scale, stats=True, impl="reference").stats
    got = attention(q, k, v, scale=scale, stats=True, impl="blockwise").stats
    delta = (7 + 2) * torch.finfo(torch.float32).eps * scale * (q.abs() @ k.abs().mT).amax(-1).double()
    for name in ("lse", "max_logit", "logit_mean"):
        assert ((getattr(got, name) - getattr(exact, name)).abs() <= 1e-6 + delta).all(), name
    # dH = −Σ p (ln p + H) ds, so |dH| ≤ δ·√Var(ln p), and that variance is below (ln n)²/4 + 1.
    assert ((got.entropy - exact.entropy).abs() <= 1e-5 + 2 * delta * (log(29) / 2 + 1)).all()


@pytest.mark.parametrize("impl", ["reference", "blockwise", "sdpa"])
def test_grouped_queries_are_repeated_keys(impl):
    q, k, v = Case("", groups=2).tensors()
    repeated = (tensor.repeat_interleave(2, 1) for tensor in (k, v))
    assert_same(attention(q, k, v, stats=True, impl=impl), attention(q, *repeated, stats=True, impl=impl))


@pytest.mark.parametrize("impl", ["reference", "blockwise", "sdpa"])
def test_masked_keys_are_removed_keys(impl):
    q, k, v = Case("", keys=17).tensors()
    keep = torch.rand(17, generator=torch.Generator().manual_seed(3)) > 0.5
    masked = attention(q, k, v, mask=keep.expand(13, 17), stats=True, impl=impl)
    assert_same(masked, attention(q, k[:, :, keep], v[:, :, keep], stats=True, impl=impl))
    bias = torch.where(keep, 0.0, -torch.inf).double().expand(13, 17)
    if impl != "sdpa":
        assert_same(attention(q, k, v, bias=bias, stats=True, impl=impl), masked)


@given(st.integers(0, 1000), st.floats(-50, 50))
def test_a_bias_constant_along_a_row_changes_nothing_but_lse(seed, constant):
    q, k, v = Case("").tensors(seed=seed)
    still = attention(q, k, v, stats=True, impl="blockwise")
    moved = attention(
        q, k, v, bias=torch.full((1, 1, 1, 1), constant, dtype=torch.float64), stats=True, impl="blockwise"
    )
    torch.testing.assert_close(moved.output, still.output)
    torch.testing.assert_close(moved.stats.entropy, still.stats.entropy)
    torch.testing.assert_close(moved.lse, still.lse + constant)


@given(st.floats(0.01, 8.0), st.integers(0, 1000))
def test_scaling_the_rule_is_scaling_q(factor, seed):
    q, k, v = Case("").tensors(seed=seed)
    assert_same(
        attention(q, k, v, scale=factor, stats=True), attention(factor * q, k, v, scale=1.0, stats=True), budget=1e-9
    )
