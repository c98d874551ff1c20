"""QK-clip, σReparam and z-loss."""

from math import log

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isotherm.errors import ArgumentError
from isotherm.scale import QKNorm, SigmaReparam, Site, qk_clip, z_loss

HEADS, DIM, WIDTH, TOKENS = 6, 5, 7, 11


def head_logits(w_q: Tensor, w_k: Tensor, x: Tensor) -> Tensor:
    """[H, T, T]"""
    q = (x @ w_q.T).view(TOKENS, -1, DIM).transpose(0, 1)
    k = (x @ w_k.T).view(TOKENS, -1, DIM).transpose(0, 1)
    return q @ k.repeat_interleave(q.shape[0] // k.shape[0], 0).mT


def weights(key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    w_q = torch.randn(HEADS * DIM, WIDTH, generator=generator, dtype=torch.float64)
    w_k = torch.randn(key_heads * DIM, WIDTH, generator=generator, dtype=torch.float64)
    return w_q, w_k, x


@pytest.mark.parametrize("key_heads", [6, 3, 2, 1], ids=["own-keys", "groups-of-2", "groups-of-3", "one-key-head"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.7, 1.0])
def test_each_head_is_clipped_by_its_own_gamma(key_heads: int, alpha: float) -> None:
    w_q, w_k, x = weights(key_heads)
    before = head_logits(w_q, w_k, x)
    largest = before.amax((1, 2))
    tau = largest.median().item()
    after = head_logits(*qk_clip(w_q, w_k, largest, tau=tau, alpha=alpha), x)
    gamma = (tau / largest).clamp(max=1)
    assert 0 < (gamma < 1).sum() < HEADS, "some heads must be clipped and some left"
    torch.testing.assert_close(after, before * gamma[:, None, None])


def test_split_between_q_and_k_by_hand() -> None:
    """max 400 against τ = 100: γ = ¼; α = ½ puts ½ on each; a head below τ is untouched."""
    w_q, w_k = torch.ones(2 * 3, 5), torch.ones(2 * 3, 5)
    clipped_q, clipped_k = qk_clip(w_q, w_k, torch.tensor([400.0, 99.0]))
    for clipped in (clipped_q, clipped_k):
        assert clipped[:3].unique().tolist() == [0.5]
        assert clipped[3:].unique().tolist() == [1.0]


def test_shared_keys_are_left_alone() -> None:
    w_q, w_k = torch.ones(4 * 3, 5), torch.ones(2 * 3, 5)
    clipped_q, clipped_k = qk_clip(w_q, w_k, torch.tensor([400.0, 1.0, 1.0, 200.0]))
    assert torch.equal(clipped_k, w_k)
    assert clipped_q.view(4, -1).amax(1).tolist() == [0.25, 1, 1, 0.5]


def test_negative_and_empty_maxima_clip_nothing() -> None:
    """min(1, τ/S) with S < 0 would flip the sign of the weights."""
    w = torch.ones(2 * 3, 5)
    clipped_q, clipped_k = qk_clip(w, w, torch.tensor([-400.0, -float("inf")]))
    assert torch.equal(clipped_q, w)
    assert torch.equal(clipped_k, w)


def test_inputs_are_not_changed_and_dtype_is_kept() -> None:
    w = torch.ones(3, 5, dtype=torch.bfloat16, requires_grad=True)
    clipped, _ = qk_clip(w, w, torch.tensor([400.0]))
    assert w.unique().tolist() == [1.0]
    assert clipped.dtype == torch.bfloat16
    assert not clipped.requires_grad


def test_biases_are_weights_of_shape_heads_times_dim() -> None:
    clipped, _ = qk_clip(torch.ones(2 * 3), torch.ones(2 * 3), torch.tensor([400.0, 1.0]))
    assert clipped.tolist() == [0.5, 0.5, 0.5, 1, 1, 1]


def test_under_qk_norm_clip_the_gain() -> None:
    """Clipping W_q changes no logit there; clipping the norm's gain does."""
    w_q, w_k, x = weights(HEADS)
    site = Site(DIM, HEADS, torch.arange(TOKENS), torch.full((1, 1, TOKENS), TOKENS))

    def logits(w_q: Tensor, w_k: Tensor, gain: Tensor) -> Tensor:
        q, k = ((x @ w.T).view(1, TOKENS, HEADS, DIM).transpose(1, 2) for w in (w_q, w_k))
        q, k = QKNorm(eps=1e-30, q_gain=gain.view(HEADS, DIM)).resolve(site).apply(q, k)
        return q @ k.mT

    gain = torch.full((HEADS * DIM,), 100.0, dtype=torch.float64)
    before = logits(w_q, w_k, gain)
    largest = before.amax((0, 2, 3))
    torch.testing.assert_close(logits(*qk_clip(w_q, w_k, largest), gain), before)
    clipped_gain, _ = qk_clip(gain, gain, largest, alpha=1.0)
    torch.testing.assert_close(logits(w_q, w_k, clipped_gain).amax(), torch.tensor(100.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        pytest.param({"tau": 0.0}, "tau", id="tau"),
        pytest.param({"alpha": 1.5}, "alpha", id="alpha"),
        pytest.param({"alpha": float("nan")}, "alpha", id="alpha-nan"),
        pytest.param({"max_logit": torch.tensor([1.0, float("nan")])}, "max_logit", id="nan"),
        pytest.param({"max_logit": torch.tensor([1.0, float("inf")])}, "max_logit", id="inf"),
        pytest.param({"max_logit": torch.ones(2, 2)}, "max_logit", id="two-dimensional"),
        pytest.param({"w_q": torch.ones(7, 5)}, "w_q", id="w_q-rows"),
        pytest.param({"w_k": torch.ones(7, 5)}, "w_k", id="w_k-rows"),
        pytest.param({"w_k": torch.ones(9, 5)}, "max_logit", id="more-key-heads-than-heads"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], argument: str) -> None:
    call = {"w_q": torch.ones(6, 5), "w_k": torch.ones(6, 5), "max_logit": torch.ones(2)} | change
    with pytest.raises(ArgumentError) as caught:
        qk_clip(**call)  # type: ignore[arg-type]
    assert caught.value.argument == argument


def reparametrised(gamma: float = 1.0) -> nn.Linear:
    torch.manual_seed(0)
    linear = nn.Linear(7, 5, dtype=torch.float64)
    parametrize.register_parametrization(linear, "weight", SigmaReparam(linear.weight, gamma=gamma))
    return linear


def test_spectral_norm_is_gamma() -> None:
    linear = reparametrised(gamma=3.0)
    for _ in range(50):
        weight = linear.weight
    assert torch.linalg.matrix_norm(weight, 2).item() == pytest.approx(3.0, rel=1e-6)


def test_a_weight_may_contain_zeros() -> None:
    weight = torch.eye(3) * 2
    torch.testing.assert_close(SigmaReparam(weight)(weight), torch.eye(3))
    weight[:, 0] = 0  # a column of zeros would be no start for the power iteration
    assert SigmaReparam(weight)(weight).isfinite().all()


def test_power_iteration_follows_a_weight_that_moves_but_only_in_training() -> None:
    linear = reparametrised()
    original = linear.parametrizations.weight.original  # type: ignore[union-attr, index]
    with torch.no_grad():
        original.copy_(torch.randn_like(original))
    linear.eval()
    still = [torch.linalg.matrix_norm(linear.weight, 2).item() for _ in range(60)]
    assert len(set(still)) == 1
    assert abs(still[0] - 1) > 0.01
    linear.train()
    for _ in range(200):
        weight = linear.weight
    assert torch.linalg.matrix_norm(weight, 2).item() == pytest.approx(1.0, rel=1e-6)


def test_gamma_and_weight_learn_and_two_reads_in_a_step_do_not_clash() -> None:
    linear = reparametrised()
    x = torch.randn(3, 7, dtype=torch.float64)
    (linear(x).sum() + linear(x).square().sum()).backward()
    for name, parameter in linear.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_gradient_of_the_weight_is_that_of_the_formula() -> None:
    """Along W itself Ŵ does not change, so the gradient is orthogonal to W."""
    linear = reparametrised()
    linear.eval()
    linear(torch.randn(3, 7, dtype=torch.float64)).square().sum().backward()
    original = linear.parametrizations.weight.original  # type: ignore[union-attr, index]
    assert (original.grad * original).sum().item() == pytest.approx(0, abs=1e-12)


def test_attaching_uses_no_random_numbers() -> None:
    weight = torch.randn(5, 7)
    state = torch.get_rng_state()
    SigmaReparam(weight)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("weight", "gamma", "argument"),
    [(torch.ones(5), 1.0, "weight"), (torch.ones(5, 7), 0.0, "gamma"), (torch.zeros(5, 7), 1.0, "weight")],
    ids=["1-d", "gamma-0", "all-0"],
)
def test_sigma_reparam_arguments(weight: Tensor, gamma: float, argument: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        SigmaReparam(weight, gamma=gamma)
    assert caught.value.argument == argument


def test_z_loss_by_hand() -> None:
    """Two layers, heads, positions. Over layers the heads sum to (3, 5) and (7, 9): mean(9 + 49, 25 + 81) = 82."""
    layers = [torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[2.0, 3.0], [4.0, 5.0]]])]
    assert z_loss(layers, weight=1.0).item() == 82
    assert z_loss(layers).item() == pytest.approx(82e-4)
    assert z_loss(layers[0], weight=1.0).item() == (1 + 9 + 4 + 16) / 2


def test_z_loss_leaves_out_masked_and_empty_positions() -> None:
    lse = torch.tensor([[[1.0, 2.0, -float("inf")], [3.0, 4.0, 5.0]]], requires_grad=True)
    assert z_loss(lse, weight=1.0).item() == 15
    loss = z_loss(lse, weight=1.0, mask=torch.tensor([[False, True, True]]))
    assert loss.item() == 20
    loss.backward()
    assert lse.grad is not None
    assert lse.grad.tolist() == [[[0, 4, 0], [0, 8, 0]]]


def test_z_loss_of_nothing_is_zero() -> None:
    assert z_loss(torch.full((2, 3, 5), -float("inf"))).item() == 0


def test_z_loss_is_least_where_the_normaliser_is_one() -> None:
    logits = torch.zeros(1, 1, 1, 7)
    assert z_loss((logits - log(7)).logsumexp(-1)).item() == pytest.approx(0, abs=1e-12)
    assert z_loss(logits.logsumexp(-1), weight=1.0).item() == pytest.approx(log(7) ** 2)


@pytest.mark.parametrize(
    ("lse", "mask", "argument"),
    [
        pytest.param([], None, "lse", id="no-layers"),
        pytest.param(torch.ones(3, 5), None, "lse", id="two-dimensional"),
        pytest.param([torch.ones(2, 3, 5), torch.ones(2, 3, 7)], None, "lse", id="two-shapes"),
        pytest.param(torch.ones(2, 3, 5), torch.ones(2, 3, dtype=torch.bool), "mask", id="mask-shape"),
        pytest.param(torch.ones(2, 3, 5), torch.ones(2, 5), "mask", id="mask-dtype"),
    ],
)
def test_z_loss_arguments(lse: Tensor, mask: Tensor | None, argument: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        z_loss(lse, mask=mask)
    assert caught.value.argument == argument
