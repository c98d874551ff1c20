"""QK-norm and cosine attention: lengths, gains, and what they make impossible."""

from math import log, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import ArgumentError
from isotherm.scale import Cosine, InverseSqrt, QKNorm, Rule, Site, value
from isotherm.scale.norms import Kind

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 2, 6, 3, 5, 7, 11
KINDS = ("rms", "layer", "l2")


def site() -> Site:
    return Site(DIM, HEADS, torch.arange(QUERIES), torch.full((1, 1, QUERIES), KEYS))


def tensors(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(BATCH, HEADS, QUERIES, DIM, generator=generator, dtype=torch.float64)
    k = torch.randn(BATCH, KEY_HEADS, KEYS, DIM, generator=generator, dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


def test_rms_by_hand() -> None:
    """(3, 4): mean square 12.5, so 3/√12.5 and 4/√12.5."""
    q = torch.tensor([3.0, 4.0], dtype=torch.float64).view(1, 1, 1, 2)
    normed, _ = QKNorm(eps=1e-30).resolve(Site.single(2, 3)).apply(q, q)
    assert normed.flatten().tolist() == pytest.approx([0.8485281374238570, 1.1313708498984760])


def test_layer_by_hand() -> None:
    """(1, 2, 6): mean 3, deviations (−2, −1, 3), mean square 14/3."""
    q = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64).view(1, 1, 1, 3)
    normed, _ = QKNorm("layer", eps=1e-30).resolve(Site.single(3, 3)).apply(q, q)
    root = sqrt(14 / 3)
    assert normed.flatten().tolist() == pytest.approx([-2 / root, -1 / root, 3 / root])


def test_l2_by_hand() -> None:
    q = torch.tensor([3.0, 4.0], dtype=torch.float64).view(1, 1, 1, 2)
    normed, _ = QKNorm("l2").resolve(Site.single(2, 3)).apply(q, q)
    assert normed.flatten().tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("kind", KINDS)
def test_over_the_width_every_head_shares_one_length(kind: Kind) -> None:
    q, k = tensors()
    normed, normed_k = QKNorm(kind, "width", eps=1e-30).resolve(site()).apply(q, k)
    assert (normed.shape, normed_k.shape) == (q.shape, k.shape)
    length = 1.0 if kind == "l2" else sqrt(HEADS * DIM)
    torch.testing.assert_close(normed.square().sum((1, 3)).sqrt(), torch.full_like(q[:, 0, :, 0], length))
    if kind != "layer":
        torch.testing.assert_close(normed[:, 2] / normed[:, 4], q[:, 2] / q[:, 4])
    assert normed.square().sum(3).std() > 0.01, "single heads keep their own lengths"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", ["head", "width"])
@settings(deadline=None)
@given(factor=st.floats(0.01, 100))
def test_rescaling_the_weights_does_nothing(kind: Kind, over: str, factor: float) -> None:
    """The trap of QK-clip under QK-norm: W_q times anything gives the same logits."""
    q, k = tensors()
    resolved = QKNorm(kind, over, eps=1e-30).resolve(site())  # type: ignore[arg-type]
    torch.testing.assert_close(resolved.apply(q * factor, k / factor), resolved.apply(q, k))


@pytest.mark.parametrize(
    ("over", "shape"),
    [("head", (DIM,)), ("head", (HEADS, DIM)), ("width", (HEADS * DIM,))],
    ids=["shared-by-heads", "per-head", "width"],
)
def test_gains(over: str, shape: tuple[int, ...]) -> None:
    q, k = tensors()
    gain = torch.rand(shape, dtype=torch.float64) + 0.5
    plain, plain_k = QKNorm(over=over).resolve(site()).apply(q, k)  # type: ignore[arg-type]
    gained, same_k = QKNorm(over=over, q_gain=gain).resolve(site()).apply(q, k)  # type: ignore[arg-type]
    full = gain.expand(HEADS, DIM) if over == "head" else gain.view(HEADS, DIM)
    torch.testing.assert_close(gained, plain * full[None, :, None, :])
    torch.testing.assert_close(same_k, plain_k)


def test_gradient_reaches_the_gains() -> None:
    q, k = tensors()
    q_gain, k_gain = (torch.nn.Parameter(torch.ones(DIM, dtype=torch.float64)) for _ in range(2))
    normed, normed_k = QKNorm(q_gain=q_gain, k_gain=k_gain).resolve(site()).apply(q, k)
    (normed.sum() + normed_k.sum()).backward()
    assert q_gain.grad is not None
    assert k_gain.grad is not None
    assert not torch.equal(q_gain.grad, k_gain.grad)


@pytest.mark.parametrize("argument", ["q_gain", "k_gain"])
@pytest.mark.parametrize(("over", "size"), [("head", DIM + 1), ("width", DIM)], ids=["head", "width"])
def test_wrong_gain_is_named(argument: str, over: str, size: int) -> None:
    rule = QKNorm(over=over, **{argument: torch.ones(size)})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=rf"^{argument}: .* got \[{size}\]"):
        rule.resolve(site()).apply(*tensors())


def test_half_precision_is_normalised_in_float32() -> None:
    """60000² overflows float16; the norm must not."""
    q = torch.full((1, 1, 1, DIM), 60000.0, dtype=torch.float16)
    normed, _ = QKNorm().resolve(Site.single(DIM, 3)).apply(q, q)
    assert normed.dtype == torch.float16
    assert normed.flatten().tolist() == pytest.approx([1.0] * DIM)


def test_zero_vectors_stay_zero() -> None:
    zero = torch.zeros(1, 1, 1, DIM)
    for kind in KINDS:
        normed, _ = QKNorm(kind).resolve(Site.single(DIM, 3)).apply(zero, zero)  # type: ignore[arg-type]
        assert torch.equal(normed, zero)


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        pytest.param(lambda: QKNorm("batch"), "kind", id="kind"),  # type: ignore[arg-type]
        pytest.param(lambda: QKNorm(over="all"), "over", id="over"),  # type: ignore[arg-type]
        pytest.param(lambda: QKNorm(eps=0), "eps", id="eps"),
        pytest.param(lambda: QKNorm(q_gain=1.0), "q_gain", id="q_gain"),  # type: ignore[arg-type]
        pytest.param(lambda: Cosine(float("nan")), "logit_scale", id="logit_scale"),
    ],
)
def test_bad_arguments_are_named(build: type[Rule], argument: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("logit_scale", "expected"),
    [(None, 10.0), (log(3), 3.0), (log(100), 100.0), (9.0, 100.0)],
    ids=["initial", "ln3", "at-the-ceiling", "above-the-ceiling"],
)
def test_cosine_number(logit_scale: float | None, expected: float) -> None:
    rule = Cosine() if logit_scale is None else Cosine(logit_scale)
    assert value(rule, 5, 7) == pytest.approx(expected)


def test_cosine_logits_are_scaled_cosines() -> None:
    q, k = tensors()
    scales = torch.linspace(0, 5, HEADS, dtype=torch.float64)
    scaled, unit = Cosine(scales).resolve(site()).apply(q, k)
    logits = scaled @ unit.repeat_interleave(2, 1).mT
    cosine = torch.nn.functional.cosine_similarity(q[:, :, :, None], k.repeat_interleave(2, 1)[:, :, None], dim=-1)
    expected = cosine * torch.minimum(scales.exp(), torch.tensor(100.0))[None, :, None, None]
    torch.testing.assert_close(logits, expected)
    assert scales.exp()[-1] > 100, "the last head must meet the ceiling"


def test_norm_then_inverse_sqrt() -> None:
    q, k = tensors()
    normed, _ = QKNorm().resolve(site()).apply(q, k)
    scaled, _ = (QKNorm() * InverseSqrt()).resolve(site()).apply(q, k)
    torch.testing.assert_close(scaled, normed / sqrt(DIM))
