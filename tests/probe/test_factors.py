"""What became of q and k on their way, whatever the projection looks like and whatever came after it."""

from collections.abc import Callable
from math import log, sqrt

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from isotherm.probe import Factor, probe
from isotherm.probe.frames import Frames
from isotherm.probe.keep import Keeper
from isotherm.probe.layouts import assignments
from tests.probe.architectures import widen
from tests.probe.traced import trace

BATCH, TOKENS, WIDTH, HEADS, DIM = 2, 11, 24, 3, 8


class Attention(nn.Module):
    """One fused projection; `cut` makes q, k, v [B, H, T, D] of its output, `change` is done to q and k."""

    def __init__(
        self, width: int, cut: Callable[[Tensor], tuple[Tensor, ...]], change: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.qkv, self.cut, self.change = nn.Linear(WIDTH, width), cut, change

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.cut(self.qkv(x))
        return F.scaled_dot_product_attention(self.change(q), self.change(k), v, scale=1.0, enable_gqa=True)


def side_by_side(y: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for part in y.chunk(3, -1))


def interleaved(y: Tensor) -> tuple[Tensor, ...]:
    return y.unflatten(-1, (HEADS, 3, DIM)).transpose(1, 2).unbind(3)


def value_first(y: Tensor) -> tuple[Tensor, ...]:
    v, q, k = side_by_side(y)
    return q, k, v


def grouped(y: Tensor) -> tuple[Tensor, ...]:
    """Two groups of [q q q k v]."""
    y = y.unflatten(-1, (2, 5, DIM)).permute(0, 2, 3, 1, 4)
    return y[:, :, :3].flatten(1, 2), y[:, :, 3], y[:, :, 4]


def repeated(y: Tensor) -> tuple[Tensor, ...]:
    q, k, v = grouped(y)
    return q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)


def one_key_head(y: Tensor) -> tuple[Tensor, ...]:
    y = y.unflatten(-1, (5, DIM)).transpose(1, 2)
    return y[:, :3], y[:, 3:4].expand(-1, 3, -1, -1), y[:, 4:].expand(-1, 3, -1, -1)


def nothing(x: Tensor) -> Tensor:
    return x


def rotate(x: Tensor) -> Tensor:
    """A rotation by a different angle at every position."""
    angle = torch.arange(x.shape[2]).view(-1, 1) * torch.tensor([1.0, 0.1, 0.01, 0.001])
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def states(batch: int = BATCH, tokens: int = TOKENS) -> Tensor:
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(6))


def factors(
    cut: Callable[..., tuple[Tensor, ...]], change: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Factor, Factor]:
    width = {grouped: 10, repeated: 10, one_key_head: 5}.get(cut, 9) * DIM
    model = widen(Attention(width, cut, change))
    with torch.no_grad(), probe(model) as seen:
        model(x)
    assert seen.unseen == []
    (capture,) = seen.captures
    return capture.q_factor, capture.k_factor


LAYOUTS = [side_by_side, interleaved, value_first, grouped, repeated, one_key_head]


@pytest.mark.parametrize("cut", LAYOUTS, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize(
    ("change", "value"),
    [
        (nothing, 1.0),
        (rotate, 1.0),
        (lambda x: x / sqrt(DIM), DIM**-0.5),
        (lambda x: rotate(x) * DIM**-0.25, DIM**-0.25),
        (lambda x: x * (0.1 * log(40) + 1), 0.1 * log(40) + 1),
    ],
    ids=["nothing", "rotation", "square-root", "quarter-root", "yarn"],
)
def test_one_number(cut: Callable[..., tuple[Tensor, ...]], change: Callable[[Tensor], Tensor], value: float):
    for factor in factors(cut, change, states()):
        assert (factor.kind, factor.source) == ("constant", "qkv")
        assert factor.value == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("cut", LAYOUTS, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("change", [nothing, rotate], ids=["view", "rotation"])
def test_the_layout_says_which_features_are_which_head(
    cut: Callable[..., tuple[Tensor, ...]], change: Callable[..., Tensor]
):
    width = {grouped: 10, repeated: 10, one_key_head: 5}.get(cut, 9) * DIM
    numbered = cut(torch.arange(width).view(1, 1, -1))
    for factor, expected in zip(factors(cut, change, states()), numbered, strict=False):
        assert factor.layout is not None
        assert factor.layout.width == width
        for head in range(expected.shape[1]):
            assert factor.layout.features([head]) == expected[0, head, 0].tolist()


@pytest.mark.parametrize("cut", [side_by_side, interleaved, grouped])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * torch.arange(1, TOKENS + 1).log().clamp(min=log(2)).view(-1, 1),
        lambda x: x * (1 + 0.1 * torch.log1p((torch.arange(TOKENS) / 4).floor())).view(-1, 1),
        lambda x: x * torch.arange(2.0, TOKENS + 2).view(-1, 1) * torch.arange(1.0, x.shape[1] + 1).view(-1, 1, 1),
    ],
    ids=["log-n", "steps", "per-head"],
)
def test_one_number_per_position(cut: Callable[..., tuple[Tensor, ...]], change: Callable[[Tensor], Tensor]):
    for factor in factors(cut, change, states()):
        assert (factor.kind, factor.value, factor.source) == ("per-query", None, "qkv")


def rms(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda x: F.normalize(x, dim=-1), 1.0),
        (lambda x: 1.5 * F.rms_norm(x, (DIM,)), 1.5),
        (lambda x: F.layer_norm(x, (DIM,), 1 + torch.arange(DIM) / 5), 1.0),
        (rms, None),
        (lambda x: rotate(rms(x)) * 1.2, None),
    ],
    ids=["cosine", "rms", "layer-norm", "by-hand", "by-hand-rotated"],
)
def test_normalised(change: Callable[[Tensor], Tensor], after: float | None):
    for factor in factors(side_by_side, change, states()):
        assert (factor.kind, factor.value) == ("normalised", None)
        assert factor.after_norm == (None if after is None else pytest.approx(after, rel=1e-5))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 1,
        lambda x: x * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1),
        lambda x: x * torch.arange(1.0, DIM + 1),
        lambda x: x.relu(),
        torch.zeros_like,
    ],
    ids=["shift", "per-head", "per-dim", "relu", "zero"],
)
def test_what_is_no_one_number_is_untraced(change: Callable[[Tensor], Tensor]):
    for factor in factors(side_by_side, change, states()):
        assert (factor.kind, factor.value) == ("untraced", None)


def test_a_projection_that_gives_zero_is_untraced():
    """Its lengths say nothing; only a view of it is known to be what it gave."""
    for change, kind in ((torch.clone, "untraced"), (nothing, "constant")):
        model = widen(Attention(9 * DIM, side_by_side, change))
        nn.init.zeros_(model.qkv.weight)
        nn.init.zeros_(model.qkv.bias)
        with probe(model) as seen:
            model(states())
        assert {capture.q_factor.kind for capture in seen.captures} == {kind}


def test_one_vector_alone_proves_nothing():
    """A single length has a constant ratio to anything, also after a norm."""
    factor, _ = factors(one_key_head, rms, states(1, 1))
    assert factor.kind != "constant"


def test_vectors_near_zero_do_not_count():
    x = states()
    x[0, 3] = 0
    model = widen(Attention(9 * DIM, side_by_side, lambda q: q * 0.5))
    nn.init.zeros_(model.qkv.bias)
    with probe(model) as seen:
        model(x)
    assert seen.captures[0].q_factor.value == pytest.approx(0.5, rel=1e-6)


def test_an_adapter_around_a_linear_is_the_projection():
    class LoraLinear(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.a, self.b = base, nn.Linear(WIDTH, 2), nn.Linear(2, base.out_features)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + 2 * self.b(self.a(x))

    model = Attention(9 * DIM, side_by_side, nothing)
    model.qkv = LoraLinear(model.qkv)
    with probe(widen(model)) as seen:
        model(states())
    assert seen.captures[0].q_factor == Factor(pytest.approx(1.0), "constant", "qkv")


def test_a_projection_without_a_module_is_named_after_its_weight():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(9 * DIM, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(*side_by_side(F.linear(x, self.w)))

    model = nn.ModuleDict({"layer": Bare()})
    with probe(model) as seen:
        model["layer"](states())
    assert seen.captures[0].k_factor.source == "layer.w"


def test_a_weight_that_stands_first_is_found():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(9 * DIM, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(*side_by_side(torch.einsum("oi,bti->bto", self.w, x)))

    with probe(model := Bare()) as seen:
        model(states())
    assert [(one.kind, one.source) for one in (seen.captures[0].q_factor, seen.captures[0].k_factor)] == [
        ("constant", "w"),
        ("constant", "w"),
    ]


def test_a_bias_before_the_weight_is_not_taken_for_it():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Parameter(torch.randn(9 * DIM))
            self.w = nn.Parameter(torch.randn(WIDTH, 9 * DIM))

        def forward(self, x: Tensor) -> Tensor:
            projected = torch.addmm(self.b, x.flatten(0, 1), self.w).unflatten(0, x.shape[:2])
            return F.scaled_dot_product_attention(*side_by_side(projected))

    with probe(model := Bare()) as seen:
        model(states())
    assert seen.captures[0].k_factor.source == "w"


def test_projections_one_module_up_are_found():
    class CoreAttention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.core = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 9 * DIM)), CoreAttention()

        def forward(self, x: Tensor) -> Tensor:
            return self.core(*side_by_side(self.qkv(x)))

    model = widen(Outer())
    with probe(model) as seen:
        model(states())
    (capture,) = seen.captures
    assert (capture.name, capture.q_factor.kind, capture.q_factor.source) == ("core", "constant", "qkv.1")


def test_tokens_first_projections():
    class TokensFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 9 * DIM)

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(*side_by_side(self.qkv(x).transpose(0, 1)))

    model = widen(TokensFirst())
    with probe(model) as seen:
        model(states().transpose(0, 1))
    assert seen.captures[0].q_factor.value == pytest.approx(1.0)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3), st.floats(0.01, 100))
def test_any_run_of_blocks_is_found(heads: int, repeats: int, before: int, value: float):
    """Heads cut from anywhere in a wider projection, each perhaps used several times, times any number."""
    generator = torch.Generator().manual_seed(heads * 100 + repeats * 10 + before)
    output = torch.randn(3, 5, (before + heads + 1) * 4, generator=generator)
    frames = Frames(nn.Linear(1, 1), Keeper())
    frames.push(nn.Linear(1, 1))
    frames.note(frames.stack[0], "there", "projection", (), output)
    used = output.unflatten(-1, (-1, 4))[:, :, before : before + heads].transpose(1, 2).repeat_interleave(repeats, 1)
    factor, record = trace(used * value, frames.stack)
    assert (factor.kind, factor.source, record.name) == ("constant", "there", "there")
    assert factor.value == pytest.approx(value, rel=1e-5)


@given(st.integers(1, 24), st.integers(1, 12))
def test_assignments_are_distinct_and_inside(blocks: int, heads: int):
    ways = assignments(blocks, heads)
    assert len({tuple(way) for way in ways.tolist()}) == len(ways)
    assert ways.numel() == 0 or (ways.min() >= 0 and ways.max() < blocks)
