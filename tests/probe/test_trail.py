"""What a trail says a tensor is, against the tensor: products however written, then operations in any order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from isotherm.probe.functions import known
from isotherm.probe.masks import NEVER
from isotherm.probe.products import of_einsum, of_outer, of_tensordot
from isotherm.probe.scores import Scores
from isotherm.probe.session import Session
from isotherm.probe.watch import Watch

B, H, T, S, D = 2, 3, 5, 7, 4


def rebuilt(scores: Scores) -> tuple[Tensor, Tensor]:
    """The tensor that a description describes, and where it says anything: not where entries are hidden or were set to 0."""
    full = scores.factor * (scores.a @ scores.b.mT).expand(scores.canonical_shape)
    for multiplier in scores.multipliers:
        full = full * multiplier
    full = full if scores.cap is None else scores.cap * full.tanh()
    told = torch.ones(scores.canonical_shape, dtype=torch.bool)
    for mask in (*scores.hidden, *scores.zeroed):
        told = told & ~mask
    for coefficient, term, _ in scores.added:
        told = told & ~((coefficient * term).expand(scores.canonical_shape) <= NEVER)
        full = full + coefficient * term
    turned = full.permute(scores.order), told.permute(scores.order)
    return tuple(one if scores.view is None else one.reshape(scores.view) for one in turned)  # type: ignore[return-value]


def agrees(scores: Scores, tensor: Tensor) -> None:
    assert scores.shape == tuple(tensor.shape)
    expected, told = rebuilt(scores)
    torch.testing.assert_close(torch.where(told, tensor.double(), 0.0), torch.where(told, expected, 0.0))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


EQUATIONS = [
    ("bhtd,bhsd->bhts", (B, H, T, D), (B, H, S, D)),
    ("bthd,bshd->bhts", (B, T, H, D), (B, S, H, D)),
    ("bthd,bshd->btsh", (B, T, H, D), (B, S, H, D)),
    ("bhsd,bhtd->bhst", (B, H, S, D), (B, H, T, D)),
    ("...td,...sd->...ts", (B, H, T, D), (B, H, S, D)),
    ("...td,...ds->...st", (B, H, T, D), (B, H, D, S)),
    ("bghtd,bgsd->bghts", (B, 2, H, T, D), (B, 2, S, D)),
    ("bhtd,bsd->bhts", (B, H, T, D), (B, S, D)),
    ("td,sd->ts", (T, D), (S, D)),
    ("td,sd", (T, D), (S, D)),
    ("bhtde,bhsde->bhts", (B, H, T, D, 2), (B, H, S, D, 2)),
    ("b h t d, b h s d -> b h t s", (B, H, T, D), (B, H, S, D)),
]


@pytest.mark.parametrize(("equation", "one", "other"), EQUATIONS, ids=[equation for equation, *_ in EQUATIONS])
def test_an_einsum_is_what_it_is(equation: str, one: tuple[int, ...], other: tuple[int, ...]):
    x, y = noise(*one), noise(*other, seed=1)
    scores = of_einsum(equation, (x, y))
    assert scores is not None
    agrees(scores, torch.einsum(equation, x, y))
    listed = of_einsum(equation, ([x, y],))
    assert listed is not None
    agrees(listed, torch.einsum(equation, [x, y]))


@pytest.mark.parametrize(
    ("equation", "one", "other"),
    [
        ("td,td->t", (T, D), (T, D)),
        ("td,sd->tsd", (T, D), (S, D)),
        ("td,s->ts", (T, D), (S,)),
        ("tt,st->s", (T, T), (S, T)),
        ("t,s->ts", (T,), (S,)),
        ("td,sd->t", (T, D), (S, D)),
        ("td,sd->ts", (T, 1), (S, 1)),
    ],
    ids=[
        "no columns",
        "nothing summed",
        "summed in one only",
        "a diagonal",
        "an outer product",
        "columns summed",
        "length 1",
    ],
)
def test_an_einsum_that_is_no_product_of_rows_and_columns(equation: str, one: tuple[int, ...], other: tuple[int, ...]):
    assert of_einsum(equation, (noise(*one), noise(*other))) is None


@pytest.mark.parametrize(
    "dims", [1, ([2], [1]), ([-1], [-2]), torch.tensor([[2], [1]])], ids=["one", "axes", "from the end", "tensor"]
)
def test_a_tensordot_is_what_it_is(dims: Any):
    x, y = noise(B, T, D), noise(D, S, seed=1) if isinstance(dims, int) else noise(S, D, 3, seed=1)
    scores = of_tensordot(x, y, dims)
    assert scores is not None
    agrees(scores, torch.tensordot(x, y, dims))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "over"),
    [((B, H, T, 1, D), (B, H, 1, S, D), -1), ((T, 1, D), (S, D), 2), ((B, D, T, 1), (B, D, 1, S), 1)],
)
def test_multiply_and_sum_is_a_product(one: tuple[int, ...], other: tuple[int, ...], over: int, kept: bool):
    x, y = noise(*one), noise(*other, seed=1)
    scores = of_outer(x, y, [over], kept=kept)
    assert scores is not None
    agrees(scores, (x * y).sum(over, keepdim=kept))


MASK = noise(T, S, seed=3) > 0
BIAS = noise(H, T, S, seed=4)
OPERATIONS: dict[str, Callable[[Tensor], tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]]] = {
    "half": lambda a: (torch.mul, (a, 0.5), {}),
    "by keyword": lambda a: (torch.mul, (), {"input": a, "other": 3.0}),
    "reversed": lambda a: (torch.mul, (torch.tensor(2.0), a), {}),
    "divided": lambda a: (torch.div, (a, 1.5), {}),
    "divided by a tensor": lambda a: (torch.div, (a, torch.tensor([4.0])), {}),
    "negative": lambda a: (torch.neg, (a,), {}),
    "per head": lambda a: (torch.mul, (a, noise(H, 1, 1, seed=5)), {}),
    "per query": lambda a: (torch.mul, (a, noise(T, 1, seed=6)), {}),
    "bias": lambda a: (torch.add, (a, BIAS), {"alpha": 0.3}),
    "bias first": lambda a: (torch.add, (BIAS, a), {"alpha": 2}),
    "less": lambda a: (torch.sub, (a, BIAS), {"alpha": 2}),
    "less the largest": lambda a: (torch.sub, (a, a.amax(-1, keepdim=True)), {}),
    "itself": lambda a: (torch.add, (a, a), {}),
    "number": lambda a: (torch.add, (a, 0.0), {}),
    "from a bias": lambda a: (torch.rsub, (a, BIAS), {"alpha": 2}),
    "from a bias by name": lambda a: (torch.Tensor.__rsub__, (a, BIAS), {}),
    "rounded": lambda a: (torch.div, (a, 0.1), {"rounding_mode": "floor"}),
    "divided by rows of a mask": lambda a: (torch.div, (a, noise(T, 1, seed=7)), {}),
    "part of itself": lambda a: (torch.sub, (a, a * 0.25), {}),
    "hidden": lambda a: (torch.masked_fill, (a, MASK, -1e30), {}),
    "hidden by keyword": lambda a: (torch.masked_fill, (a, MASK), {"value": -torch.inf}),
    "where": lambda a: (torch.where, (MASK, a, torch.tensor(-torch.inf, dtype=a.dtype)), {}),
    "elsewhere": lambda a: (torch.where, (MASK, torch.tensor(-1e9, dtype=a.dtype), a), {}),
    "zeros and ones": lambda a: (torch.mul, (a, MASK.double()), {}),
    "lower triangle": lambda a: (torch.tril, (a,), {}),
    "upper triangle": lambda a: (torch.triu, (a, 1), {}),
    "more of the lower triangle": lambda a: (torch.tril, (a,), {"diagonal": 2}),
    "clone": lambda a: (torch.clone, (a,), {}),
    "beyond all bounds": lambda a: (torch.clamp, (a,), {"min": -1e4, "max": 1e4}),
    "flat": lambda a: (torch.Tensor.reshape, (a, B * H, T, S), {}),
    "deep": lambda a: (torch.Tensor.reshape, (a, B, H, T, S), {}),
    "one more axis": lambda a: (torch.Tensor.unsqueeze, (a, 1), {}),
    "cut": lambda a: (torch.Tensor.reshape, (a, B, H, T, 1, S), {}),
}
WHOLE = {"flat", "deep", "one more axis", "cut"}


def watch() -> Watch:
    return Watch(Session(nn.Identity()))


def step(seen: Watch, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    result: Tensor = func(*args, **kwargs)
    seen.after(known(func).name, args, kwargs, result)
    return result


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=6), st.booleans())
def test_any_sequence_of_operations_is_described_truly(names: list[str], capped: bool):
    """A description may be lost, but never be wrong. Where nothing changes the shape, it is never lost."""
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    if capped:
        scores = step(seen, torch.tanh, (scores,), {})
    for name in names:
        if scores.dim() != 4 and name not in WHOLE:
            continue
        scores = step(seen, *OPERATIONS[name](scores))
        trail = seen._find(scores)
        assert trail is not None
        if trail.scores is not None and "less the largest" not in names:
            agrees(trail.scores, scores)
    trail = seen._find(scores)
    assert trail is not None
    fragile = {"itself", "less the largest", "per head", "per query", "zeros and ones", "one more axis", "cut", "rounded",
               "divided by rows of a mask", "part of itself"}  # fmt: skip
    if not capped and not fragile & {*names}:
        assert trail.scores is not None


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_one_operation_is_described_wherever_that_is_possible(name: str, capped: bool):
    """Numbers of heads or rows cannot be told from a cap's slope, and after rounding there is nothing to tell."""
    lost = {"rounded"} | ({"per head", "per query", "divided by rows of a mask"} if capped else set())
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    scores = step(seen, torch.tanh, (scores,), {}) if capped else scores
    trail = seen._find(step(seen, *OPERATIONS[name](scores)))
    assert trail is not None
    assert (trail.scores is None) is (name in lost)


@pytest.mark.parametrize(
    "turned",
    [
        lambda a: a.transpose(-1, -2), lambda a: a.permute(2, 0, 3, 1), lambda a: a.mT, lambda a: a.movedim(1, -1),
        lambda a: a.permute(0, 2, 3, 1).permute(0, 3, 1, 2), lambda a: a.swapaxes(0, 3),
    ],
    ids=["transpose", "permute", "mT", "movedim", "there and back", "swapaxes"],
)  # fmt: skip
def test_axes_in_another_order(turned: Callable[[Tensor], Tensor]):
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    other = turned(scores)
    seen.after("permute", (scores,), {}, other)
    trail = seen._find(other)
    assert trail is not None
    assert trail.scores is not None
    agrees(trail.scores, other)
    agrees(trail.scores.turned(), other)
    biased = step(seen, torch.add, (other, noise(*other.shape, seed=9)), {})
    found = seen._find(biased)
    assert found is not None
    assert found.scores is not None
    agrees(found.scores, biased)


def test_two_products_of_one_factor_are_one_of_longer_vectors():
    seen = watch()
    one = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    other = step(seen, torch.matmul, (noise(B, H, T, 3, seed=2), noise(B, 1, 3, S, seed=3)), {})
    both = step(seen, torch.add, (one, other), {})
    trail = seen._find(both)
    assert trail is not None
    assert trail.scores is not None
    assert trail.scores.a.shape[-1] == D + 3
    agrees(trail.scores, both)


def test_pieces_of_rows_and_columns_may_get_terms_of_their_own():
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, 6, D), noise(B, D, 8, seed=1)), {})
    cut = step(seen, torch.Tensor.reshape, (scores, B, 2, 3, 2, 4), {})
    added = step(seen, torch.add, (cut, noise(B, 2, 3, 2, 1, seed=2)), {})
    whole = step(seen, torch.Tensor.reshape, (added, B, 6, 8), {})
    trail = seen._find(whole)
    assert trail is not None
    assert trail.scores is not None
    assert trail.scores.view is None
    agrees(trail.scores, whole)


POSITIVE = noise(T, S, seed=8).exp()
OF_WEIGHTS: dict[str, Callable[[Tensor], tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]]] = {
    "times rows": lambda w: (torch.mul, (w, noise(T, 1, seed=6).exp()), {}),
    "zeros and ones": lambda w: (torch.mul, (w, MASK.double()), {}),
    "zeros and ones first": lambda w: (torch.mul, (MASK.double(), w), {}),
    "filled with 0": lambda w: (torch.masked_fill, (w, MASK, 0.0), {}),
    "where": lambda w: (torch.where, (MASK, w, torch.tensor(0.0, dtype=w.dtype)), {}),
    "elsewhere": lambda w: (torch.where, (MASK, torch.tensor(0.0, dtype=w.dtype), w), {}),
    "halved": lambda w: (torch.mul, (w, 0.5), {}),
    "divided": lambda w: (torch.div, (w, 3.0), {}),
    "clone": lambda w: (torch.clone, (w,), {}),
}
LOSING: dict[str, Callable[[Tensor], tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]]] = {
    "filled with 1": lambda w: (torch.masked_fill, (w, MASK, 1.0), {}),
    "times anything": lambda w: (torch.mul, (w, POSITIVE), {}),
    "divided by anything": lambda w: (torch.div, (w, POSITIVE), {}),
    "one more": lambda w: (torch.add, (w, 1.0), {}),
    "exponentiated again": lambda w: (torch.exp, (w,), {}),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted({**OF_WEIGHTS, **LOSING})), max_size=4))
def test_what_is_done_to_exponentials_is_described_up_to_a_factor_for_each_row(names: list[str]):
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    weights = step(seen, torch.exp, (step(seen, torch.add, (scores, BIAS), {}),), {})
    for name in names:
        weights = step(seen, *{**OF_WEIGHTS, **LOSING}[name](weights))
    trail = seen._find(weights)
    assert trail is not None
    assert trail.exponential
    assert (trail.scores is None) is bool(LOSING.keys() & {*names})
    if trail.scores is not None:
        expected, told = rebuilt(trail.scores)
        assert torch.equal(weights > 0, told)
        shift, rows = weights.log() - expected, told.any(-1)
        high, low = torch.where(told, shift, -torch.inf).amax(-1), torch.where(told, shift, torch.inf).amin(-1)
        torch.testing.assert_close(high[rows], low[rows])


def test_a_captured_softmax_stays_captured_whatever_is_done_to_it():
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    weights = step(seen, torch.softmax, (scores, -1), {})
    for name in ("zeros and ones", "divided", "clone", "one more", "exponentiated again"):
        weights = step(seen, *{**OF_WEIGHTS, **LOSING}[name](weights))
        trail = seen._find(weights)
        assert trail is not None
        assert trail.captured
        assert trail.scores is None


@pytest.mark.parametrize("training", [None, True, False])
def test_dropout_is_noise_only_while_training(training: bool | None):
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    given = {} if training is None else {"training": training}
    for dropped in (
        step(seen, torch.nn.functional.dropout, (scores, 0.5), given),
        step(seen, torch.nn.functional.dropout, (scores,), {"p": 0.5, **given}),
        step(seen, torch.nn.functional.dropout, (scores, 0.5, True if training is None else training), {}),
    ):
        trail = seen._find(dropped)
        assert trail is not None
        assert trail.noisy is (training is not False)


@pytest.mark.parametrize("grown", [(B, 1, T, S), (B, H, T, S), (1, H, T, S), (1, 1, T, S)], ids=str)
def test_a_term_may_make_leading_axes_longer(grown: tuple[int, ...]):
    seen = watch()
    scores = step(seen, torch.matmul, (noise(1, 1, T, D), noise(1, 1, D, S, seed=1)), {})
    longer = step(seen, torch.add, (scores, noise(*grown, seed=2)), {})
    trail = seen._find(longer)
    assert trail is not None
    assert trail.scores is not None
    assert trail.scores.lead == grown[:2]
    agrees(trail.scores, longer)


def test_a_term_that_makes_rows_or_columns_longer_is_not_described():
    for shape in ((B, H, 3, S), (B, H, 1, 3), (2, B, H, 1, S)):
        seen = watch()
        scores = step(seen, torch.matmul, (noise(B, H, 1, D), noise(B, H, D, 1, seed=1)), {})
        trail = seen._find(step(seen, torch.add, (scores, noise(*shape, seed=2)), {}))
        assert trail is not None
        assert trail.scores is None


def test_writing_low_numbers_at_a_mask_hides_entries_and_other_writes_lose_the_description():
    for index, value, described in (
        (MASK.expand(B, H, T, S), -torch.inf, True),
        (MASK.expand(B, H, T, S), 1.0, False),
        ((slice(None), 0), -torch.inf, False),
        (MASK.expand(B, H, T, S).long(), -torch.inf, False),
    ):
        seen = watch()
        scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
        if described:
            scores[index] = value
        seen.after("__setitem__", (scores, index, value), {}, None)
        trail = seen._find(scores)
        assert trail is not None
        assert (trail.scores is not None) is described
        if trail.scores is not None:
            agrees(trail.scores, scores)


def test_scores_written_into_a_larger_tensor_are_followed_there():
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    room = torch.zeros(2 * B, H, T, S)
    room[:B] = scores
    seen.after("__setitem__", (room, slice(0, B), scores), {}, None)
    trail, own = seen._find(room), seen._find(scores)
    assert trail is not None
    assert own is not None
    assert (trail.origins, trail.scores) == (own.origins, None)
    assert seen._find(torch.zeros(3)) is None


IN_PLACE: dict[str, Callable[[Tensor], tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]]] = {
    "times": lambda a: (torch.Tensor.mul_, (a, 0.5), {}),
    "divided": lambda a: (torch.Tensor.div_, (a, 1.5), {}),
    "plus": lambda a: (torch.Tensor.add_, (a, BIAS), {"alpha": 0.3}),
    "minus": lambda a: (torch.Tensor.sub_, (a, BIAS), {}),
    "negative": lambda a: (torch.Tensor.neg_, (a,), {}),
    "hidden": lambda a: (torch.Tensor.masked_fill_, (a, MASK, -1e30), {}),
    "lower triangle": lambda a: (torch.Tensor.tril_, (a,), {}),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_operation_in_place_is_described_too(name: str):
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    step(seen, *IN_PLACE[name](scores))
    trail = seen._find(scores)
    assert trail is not None
    assert trail.scores is not None
    agrees(trail.scores, scores)


@pytest.mark.parametrize("in_place", [False, True], ids=["", "in place"])
@pytest.mark.parametrize("bound", ["number", "tensor", "from below", "of hidden entries"])
@pytest.mark.parametrize("replaces", [False, True], ids=["nothing replaced", "some replaced"])
def test_scores_that_a_bound_has_replaced_are_not_described(replaces: bool, bound: str, in_place: bool):
    seen = watch()
    scores = step(seen, torch.matmul, (noise(B, H, T, D), noise(B, H, D, S, seed=1)), {})
    scores = step(seen, torch.masked_fill, (scores, MASK, -torch.inf), {})
    limit = 1.0 if replaces else 100.0
    clamp = torch.Tensor.clamp_ if in_place else torch.clamp
    given: dict[str, Any] = {
        "number": {"min": -limit, "max": limit},
        "tensor": {"max": torch.full((S,), limit, dtype=torch.float64)},
        "from below": {"min": -limit},
        "of hidden entries": {"min": -100.0},
    }[bound]
    if not replaces and bound != "tensor":
        given["min"] = -1e30
    trail = seen._find(step(seen, clamp, (scores,), given))
    assert trail is not None
    assert (trail.scores is None) is replaces
    if trail.scores is not None:
        agrees(trail.scores, scores)
