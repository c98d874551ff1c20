"""Small pieces of the probe by themselves: finite numbers, folded heads, and rows computed again."""

from contextlib import suppress
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.ops import Problem, Visibility
from isotherm.probe import is_finite, probe, replay
from isotherm.probe.heads import HeadFold, reshape_lead
from isotherm.probe.session import Session


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.ones(3), True),
        (torch.tensor([1.0, nan]), False),
        (torch.tensor([inf, -inf]), False),
        (torch.full((2,), 3e38), True),  # the sum overflows
        (torch.arange(3), True),
        (torch.tensor([0.5, nan]).to(torch.float8_e4m3fn), False),
        ((torch.ones(2), {"a": [torch.tensor(nan)]}), False),
        ({"a": (torch.ones(2), None, "word", 3)}, True),
        (nan, True),  # not a tensor
        (torch.zeros(0), True),
        (torch.empty(2, device="meta"), True),
    ],
)
def test_whether_the_tensors_in_a_value_are_finite(value: Any, expected: bool):
    assert is_finite(value) is expected


@pytest.mark.parametrize(("depth", "expected"), [(6, False), (7, True)])
def test_containers_are_looked_into_six_deep(depth: int, expected: bool):
    value: Any = torch.tensor(nan)
    for _ in range(depth):
        value = [value]
    assert is_finite(value) is expected


@pytest.mark.parametrize(
    ("lead", "keys", "declared", "batch", "split"),
    [
        ((8,), (8,), 4, 1, 4),
        ((8,), (8,), 3, 1, 1),
        ((8,), (8,), None, 1, 1),
        ((2, 4), (2, 4), 4, 1, None),
        ((2, 3, 4), (2, 3, 4), 4, 2, None),
        ((2, 3, 4), (2, 3, 4), 12, 1, None),
        ((2, 3, 4), (2, 3, 4), 5, 1, None),
        ((2, 3, 4), (2, 3, 1), 4, 1, None),
        ((2, 3, 4), (2, 3, 4), None, 1, None),
    ],
)
def test_which_leading_dimensions_are_heads(lead, keys, declared, batch, split):
    module = nn.Identity()
    module.num_heads = declared
    assert HeadFold.of(lead, keys, module) == HeadFold(lead, batch, split)


@pytest.mark.parametrize("kernel", ["sdpa", "hand-written"])
@pytest.mark.parametrize(("shared", "shape"), [(False, (6, 4)), (True, (2, 12))], ids=["own keys", "shared keys"])
def test_heads_of_calls_with_three_leading_dimensions(kernel: str, shared: bool, shape: tuple[int, int]):
    """[B, N, H, T, D] is N windows of H heads each, unless one key head of size 1 says that N and H are groups of heads."""

    class Attention(nn.Module):
        num_heads = 4

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            k = k[:, :, :1] if shared else k
            return F.scaled_dot_product_attention(q, k, k) if kernel == "sdpa" else (q @ k.mT).softmax(-1) @ k

    q, k = (torch.randn(2, 3, 4, 5, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    with probe(model := Attention()) as seen:
        model(q, k)
    (capture,) = seen.captures
    assert tuple(capture.problem.q.shape) == (*shape, 5, 8)


def problem(mask: Tensor | None = None, **options: Any) -> Problem:
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(size, generator=g, dtype=torch.float64) for size in ((3, 5, 7, 4), (3, 5, 6, 4)))
    return Problem(q, k, k, Visibility(torch.arange(7), 6, mask=mask), **options)


def test_a_row_in_the_middle_is_computed_again_and_the_last_one_of_the_first_head():
    assert replay.sample(problem()) == [(1, 2, 3)]
    for more in ({"mask": torch.ones(1, 1, 1, 6).bool()}, {"bias": torch.zeros(1, 1, 1, 6)}, {"softcap": 2.0}):
        assert replay.sample(problem(**more)) == [(1, 2, 3), (0, 0, 6)]


@pytest.mark.parametrize("hidden", [inf, nan, 1e4])
def test_hidden_keys_do_not_disturb_the_weights_of_the_others(hidden: float):
    mask = torch.ones(1, 1, 7, 6, dtype=torch.bool)
    mask[..., 2] = False
    row = problem(mask)
    row.k[:, :, 2] = hidden
    row.q.abs_()
    seen = torch.tensor([0, 1, 3, 4, 5])
    expected = (row.k[0, 1, seen] @ row.q[0, 1, 3]).softmax(-1)
    weights = torch.from_numpy(replay.weights(row, None, 0, 1, 3))
    torch.testing.assert_close(weights[seen], expected)
    assert weights[2] == 0


def test_a_row_that_sees_nothing_proves_nothing():
    mask = torch.ones(1, 1, 7, 6, dtype=torch.bool)
    mask[:, :, 3] = False  # the row in the middle
    masked = problem(mask)
    logits = (masked.q @ masked.k.mT).masked_fill(~mask, -inf)
    assert replay.gives_softmax_of(masked, None, logits)
    assert replay.gives_output(masked, None, masked.v, logits.softmax(-1) @ masked.v)
    logits[0, 0, 6] = logits[0, 0, 6].flip(0)
    assert not replay.gives_softmax_of(masked, None, logits)


def test_compiled_code_runs_compiled_only_for_a_while():
    session = Session(nn.Identity())
    for error in (None, KeyError):
        with suppress(KeyError), session.compiling():
            assert session.may_compile
            if error:
                raise error
        assert not session.may_compile


@pytest.mark.parametrize("own", [(1, 1, 3), (2, 1, 1), (1, 1, 1), (2, 2, 3), (1, 3), (3,), ()], ids=str)
def test_a_term_follows_when_leading_axes_are_put_together(own: tuple[int, ...]):
    """[2, 2, 3, T, S] becomes [4, 3, T, S]; a term that is constant along some of the axes becomes what it was there."""
    term = torch.randn(*own, 5, 7, generator=torch.Generator().manual_seed(0))
    whole = term.broadcast_to(2, 2, 3, 5, 7).reshape(4, 3, 5, 7)
    assert torch.equal(reshape_lead(term, (2, 2, 3), (4, 3)).broadcast_to(4, 3, 5, 7), whole)
