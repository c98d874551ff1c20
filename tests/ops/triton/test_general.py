"""The general kernel over several tiles of keys: full tiles and edge tiles."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from isotherm.ops import Problem, Visibility, reference
from isotherm.ops import triton as kernels
from isotherm.ops.triton import fast, general, key_splits
from isotherm.stats import STATISTICS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy under the interpreter: exp2 of −inf


@pytest.fixture(autouse=True)
def small_blocks(device, monkeypatch):
    """Use the general kernel only, with several tiles of keys even under the interpreter."""
    monkeypatch.setattr(fast, "can", lambda call: False)
    if device == "cpu":
        monkeypatch.setattr(general, "tile_size", lambda call, backward=False: general.TileSize(16, 16, 4, 1))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    t=st.integers(1, 70),
    s=st.integers(1, 90),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 80),
    first=st.integers(-40, 60),
    split=st.booleans(),
)
@example(t=40, s=90, causal=True, window=None, first=14, split=False)  # a row that lacks a block's last key
@example(t=40, s=90, causal=False, window=17, first=32, split=False)
def test_every_row_meets_its_own_keys(t, s, causal, window, first, split, device):
    """Each logit is the index of its key, so count, first logit and mean tell which keys a row met."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_splits, "LEAST_SPLIT", 16 if split else 1 << 20)
        q = torch.ones(1, 1, t, 16, device=device)
        k = torch.zeros(1, 1, s, 16, device=device)
        k[0, 0, :, 0] = torch.arange(1, s + 1, device=device) / 64
        seen = Visibility(torch.arange(first, first + t, device=device), s, causal, window)
        got = kernels.statistics(Problem(q, k, k, seen, 1.0))
    visible = seen.matrix()[0, 0].cpu()
    assert torch.equal(got.n[0, 0].cpu(), visible.sum(-1).double())
    places = torch.arange(1, s + 1, dtype=torch.float64) / 64
    some = visible.any(-1)
    first_key = torch.where(visible, places, torch.inf).amin(-1)
    torch.testing.assert_close(got.first_logit[0, 0].cpu()[some], first_key[some], rtol=1e-6, atol=1e-6)
    mean = (visible * places).sum(-1) / visible.sum(-1).clamp(min=1)
    torch.testing.assert_close(got.logit_mean[0, 0].cpu()[some], mean[some], rtol=1e-6, atol=1e-6)


@dataclass(frozen=True)
class Made:
    """A problem with one special feature."""

    name: str
    causal: bool = False
    window: int | None = None
    mask: str = ""
    bias: str = ""
    softcap: float | None = None
    grow: tuple[float, float] = (1.0, 1.0)
    dim: int = 24
    dtype: torch.dtype = torch.float32

    def problem(self, device, dtype):
        g = torch.Generator().manual_seed(3)
        t, s, heads = 38, 58, 1
        q, k, v = (
            torch.randn(1, h, n, d, generator=g)
            for h, n, d in ((2 * heads, t, self.dim), (heads, s, self.dim), (heads, s, 20))
        )
        k = (k * torch.linspace(*self.grow, s)[:, None]).to(self.dtype)
        masks = {
            "": None,
            "padding": (torch.arange(s) < 37).view(1, 1, 1, s),
            "late keys": (torch.arange(s) >= 37).view(1, 1, 1, s),
            "every row": torch.rand(1, 1, t, s, generator=g) > 0.6,
            "some rows hidden": (torch.arange(t) % 3 > 0).view(1, 1, t, 1).expand(1, 1, t, s),
        }
        biases = {
            "": None,
            "keys": torch.randn(1, 2 * heads, 1, s, generator=g),
            "every row": 5 * torch.randn(1, 1, t, s, generator=g),
            "hiding keys": torch.where(torch.arange(s) < 37, 0.0, -torch.inf).expand(1, 1, t, s),
            "far below 0": torch.randn(1, 1, t, s, generator=g) - 300,
        }
        mask, bias = masks[self.mask], biases[self.bias]
        positions = torch.arange(t, device=device) + s - t
        seen = Visibility(positions, s, self.causal, self.window, None if mask is None else mask.to(device))
        q, k, v = (x.to(self.dtype).to(device, dtype) for x in (q, k, v))
        bias = None if bias is None else bias.to(self.dtype).to(device, dtype)
        return Problem(q, k, v, seen, self.dim**-0.5, bias, self.softcap)


CASES = (
    Made("plain"),
    Made("causal", causal=True),
    Made("a narrow window", causal=True, window=5),
    Made("a wide window", causal=True, window=30),
    Made("a window to both sides", window=17),
    Made("padding", mask="padding"),
    Made("first blocks hidden, logits far below 0", mask="late keys", bias="far below 0"),
    Made("padding in a window", causal=True, window=25, mask="padding"),
    Made("a mask", causal=True, mask="every row"),
    Made("rows without keys", mask="some rows hidden"),
    Made("a bias of the keys", causal=True, bias="keys"),
    Made("a bias", bias="every row"),
    Made("a cap", causal=True, softcap=3.0),
    Made("logits that grow", grow=(0.1, 40.0)),
    Made("logits that fall", grow=(40.0, 0.1)),
    Made("half precision, frozen", causal=True, grow=(20.0, 20.0), dtype=torch.float16),
    Made("half precision, growing", window=33, grow=(0.1, 30.0), dtype=torch.float16),
)


@pytest.mark.parametrize("stats", [True, False], ids=["statistics", "output alone"])
@pytest.mark.parametrize("made", CASES, ids=lambda made: made.name)
@pytest.mark.usefixtures("poisoned_memory")
def test_several_blocks_of_keys(made, stats, device):
    got = kernels.solve(made.problem(device, made.dtype), stats=stats)
    want = reference.solve(made.problem("cpu", torch.float64), stats=True)
    size = want.stats.max_logit.abs().nan_to_num(0, 0, 0).amax().clamp(min=1).item()
    rough = 2e-3 if made.dtype is torch.float16 else 2e-5
    torch.testing.assert_close(got.output.double().cpu(), want.output, rtol=rough, atol=rough + 4e-6 * size)
    torch.testing.assert_close(got.lse.double().cpu(), want.lse, rtol=1e-6, atol=2e-6 * size)
    if stats:
        for name in STATISTICS:
            one, other = getattr(got.stats, name).double().cpu(), getattr(want.stats, name).double()
            torch.testing.assert_close(one, other, rtol=2e-5, atol=4e-6 * size, equal_nan=True, msg=name)
        trace = want.stats.jacobian_trace
        torch.testing.assert_close(
            got.stats.jacobian_trace.cpu(), trace, rtol=1e-4 + 4e-6 * size, atol=1e-30, equal_nan=True
        )


def test_a_visible_logit_of_minus_infinity_is_counted_under_a_mask(device):
    """The kernel marks hidden keys by −inf, and must not take a visible logit of −inf for one."""
    made = next(made for made in CASES if made.name == "padding")
    got, want = made.problem(device, torch.float32), made.problem("cpu", torch.float64)
    for problem in (got, want):
        problem.q[:, :, 7, 0], problem.k[:, :, 20, 0] = 1.0, -torch.inf
    got, want = kernels.statistics(got), reference.solve(want, stats=True).stats
    assert torch.equal(got.n.cpu(), want.n)
    assert torch.equal(got.invalid.cpu(), want.invalid)
    assert want.invalid[:, :, 7].all()


@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
def test_a_bias_of_minus_infinity_under_a_cap_leaves_finite_gradients(learned, device):
    made, found = Made("a cap, and a bias that hides keys", bias="hiding keys", softcap=3.0), []
    for solve, place, dtype in ((reference.solve, "cpu", torch.float64), (kernels.solve, device, torch.float32)):
        problem = made.problem(place, dtype)
        inputs = [problem.q, problem.k, problem.v, *([problem.bias] if learned else [])]
        for tensor in inputs:
            tensor.requires_grad_()
        solve(problem, stats=False).output.square().sum().backward()
        found.append([tensor.grad.double().cpu() for tensor in inputs])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
