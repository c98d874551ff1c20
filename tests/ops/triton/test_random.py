"""Problems drawn at random, compared with float64."""

import random
from dataclasses import dataclass, replace

import pytest
import torch

from isotherm.ops import Problem, Visibility, arguments, reference
from isotherm.ops import triton as kernels
from isotherm.stats import STATISTICS

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy under the interpreter: exp2 of −inf
    pytest.mark.parametrize("seed", range(24 if torch.cuda.is_available() else 8)),
]
SIZES = (16, 17, 33, 67, 128, 143, 300, 391, 777, 1500) if torch.cuda.is_available() else (16, 17, 33, 67)
HALVES = (
    (torch.bfloat16, torch.float16) if torch.cuda.is_available() else (torch.float16,)
)  # the interpreter cuts bfloat16 off
KINDS = (
    "plain",
    "unscaled",
    "large",
    "one far key",
    "equal keys",
    "off centre",
    "zero queries",
    "growing",
    "negative",
    "tiny",
)
LEAST = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""The rounding error of an output of about 1 at the precision of the inputs."""


@dataclass(frozen=True)
class Drawn:
    """A problem, and the same problem at another precision or scale."""

    problem: Problem
    about: str

    def wide(self, scale: float | None = None) -> Problem:
        p = self.problem
        bias = None if p.bias is None else p.bias.double()
        return replace(
            p, q=p.q.double(), k=p.k.double(), v=p.v.double(), bias=bias, scale=p.scale if scale is None else scale
        )

    def leaves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        return [
            x.detach().to(dtype, copy=True).requires_grad_() for x in (self.problem.q, self.problem.k, self.problem.v)
        ]


def drawn(seed: int, device: str, *, plain: bool | None = None) -> Drawn:
    """Draw a problem of any shape and layout. The fast path takes plain ones."""
    r, g = random.Random(seed), torch.Generator(device).manual_seed(seed)
    plain = r.random() < 0.7 if plain is None else plain
    dtype = r.choice(HALVES if plain else (torch.float32, *HALVES))
    d = r.choice((32, 64, 128) if plain else (16, 40, 64, 80))
    b, heads, groups = r.choice(((1, 1, 1), (2, 1, 1), (1, 1, 3), (2, 2, 2), (1, 6, 1)))
    t = r.choice(SIZES)
    s, kind, causal = r.choice((t, t, r.choice(SIZES))), r.choice(KINDS), r.random() < 0.6
    shapes = (b, heads * groups, t, d), (b, heads, s, d), (b, heads, s, d if plain else r.choice((d, 64)))
    q, k, v = (torch.randn(shape, generator=g, device=device) for shape in shapes)
    scale = d**-0.5 * {"unscaled": d**0.5, "large": 60.0, "negative": -1.0, "tiny": 1e-4}.get(kind, 1.0)
    if kind == "one far key":
        k[:, :, r.randrange(s)] *= 20
    elif kind == "equal keys":
        k = k[:, :, :1].expand_as(k).clone()
    elif kind == "off centre":
        k = k / 8
        k[..., 3] += 4
    elif kind == "zero queries":
        q[:, :, ::3] = 0
    elif kind == "growing":
        k *= torch.linspace(0.1, 5, s, device=device)[:, None]
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if r.random() < 0.3:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    window = mask = bias = cap = None
    if not plain:
        window = r.choice((None, 7, 64)) if causal else None
        mask = r.choice((None, torch.rand(b, 1, 1, s, generator=g, device=device) > 0.4))
        bias = r.choice((None, torch.randn(1, heads * groups, t, s, generator=g, device=device).to(dtype)))
        cap = r.choice((None, None, 30.0))
    first = r.choice((0, s - t))
    documents = None
    if not plain and t <= s and r.random() < 0.4:
        ids = (torch.rand(r.choice((1, b)), s, generator=g, device=device) < 0.1).cumsum(1)
        documents = arguments._spans_by_id(ids)[..., first : first + t]
    seen = Visibility(torch.arange(first, first + t, device=device), s, causal, window, mask, documents)
    about = f"{kind}, {dtype}, {tuple(q.shape)} × {tuple(k.shape)}, causal {causal} from {first}, window {window}"
    return Drawn(Problem(q, k, v, seen, scale, bias, cap), about)


def size(problem: Problem) -> torch.Tensor:
    """The larger of Σ|qᵢkᵢ|·scale and the largest logit of each row. float32 rounds logits by 2⁻²⁴ of it, several times."""
    k = problem.k.abs().repeat_interleave(problem.groups, 1)
    return torch.maximum(
        (problem.q.abs() @ k.mT).amax(-1) * abs(problem.scale), reference.logits(problem).abs().amax(-1)
    )


def assert_close(got, want, problem: Problem, about: str):
    """Every statistic is within what rounded logits allow, and the gate of a frozen row has its digits."""
    rounding = size(problem) * 2e-6 + 2e-5
    assert torch.equal(got.n, want.n), about
    assert not got.invalid.any(), about
    for name in STATISTICS:
        a, b = getattr(got, name).double(), getattr(want, name).double()
        fine = ((a - b).abs() <= rounding * (1 + b.abs())) | (a.isnan() & b.isnan())
        assert fine.all(), f"{name}, {about}: {a[~fine][0]} instead of {b[~fine][0]}, in {(~fine).sum()} rows"
    gate = (got.jacobian_trace - want.jacobian_trace).abs() / want.jacobian_trace.clamp(min=1e-30)
    assert ((gate <= 5 * rounding + 1e-3) | want.empty).all(), about


@pytest.mark.usefixtures("poisoned_memory")
def test_output_and_statistics(seed, device):
    case = drawn(seed, device)
    wide = case.wide()
    want = reference.solve(wide, stats=True)
    budget = (LEAST[case.problem.v.dtype] + size(wide) * 1e-5).unsqueeze(-1)
    for stats in (True, False):
        got = kernels.solve(case.problem, stats=stats)
        assert ((got.output.double() - want.output).abs() <= budget * (1 + want.output.abs())).all(), case.about
        if stats:
            assert_close(got.stats, want.stats, wide, case.about)


@pytest.mark.usefixtures("poisoned_memory")
def test_statistics_of_some_rows(seed, device):
    case = drawn(seed, device)
    queries = case.problem.q.shape[2]
    few = torch.tensor(sorted(random.Random(seed).choices(range(queries), k=40)), device=device)
    for rows in (None, few):
        wide = case.wide() if rows is None else case.wide().take(rows)
        assert_close(kernels.statistics(case.problem, rows), reference.solve(wide, stats=True).stats, wide, case.about)


@pytest.mark.parametrize(
    "ratios",
    [(1, 2, 4, 8), (1, 1.1, 1.3, 1.7, 2.3, 2.9, 3.1, 3.7), tuple(1.23**i for i in range(11))],
    ids=["octaves", "uneven", "between others"],
)
@pytest.mark.usefixtures("poisoned_memory")
def test_several_scales(seed, ratios, device):
    case = drawn(seed, device, plain=True)
    scales = [ratio * abs(case.problem.scale) / 3 for ratio in ratios]
    for scale, got in zip(scales, kernels.statistics_at(case.problem, scales), strict=True):
        wide = case.wide(scale)
        assert_close(got, reference.solve(wide, stats=True).stats, wide, f"{case.about}, scale {scale}")


@pytest.fixture(params=["ours", "cuDNN's where it can"] if torch.cuda.is_available() else ["ours"])
def way(request):
    """Poisoned memory needs deterministic algorithms, and those exclude cuDNN's kernel."""
    if request.param == "ours":
        request.getfixturevalue("poisoned_memory")


@pytest.mark.usefixtures("way")
def test_gradients(seed, device):
    """Gradients are as accurate as those of plain PyTorch at the same precision."""
    case = drawn(seed, device)
    p = case.problem
    ours, exact, plainly = case.leaves(p.v.dtype), case.leaves(torch.float64), case.leaves(p.v.dtype)
    got = kernels.solve(replace(p, q=ours[0], k=ours[1], v=ours[2]), stats=True).output
    want = reference.solve(replace(case.wide(), q=exact[0], k=exact[1], v=exact[2]), stats=False).output
    eager = weights(p, *plainly[:2]) @ plainly[2].repeat_interleave(p.groups, 1)
    g = torch.randn_like(got)
    for output in (got, want, eager):
        output.backward(g.to(output.dtype))
    rounding = g.norm().double() * size(case.wide()).max().clamp(max=1e4) * (1e-5 * max(abs(p.scale), 0.05))
    for a, b, c in zip(ours, exact, plainly, strict=True):
        error, usual = ((x.grad.double() - b.grad).norm() for x in (a, c))
        assert error <= 2 * usual + LEAST[p.v.dtype] * b.grad.norm() + rounding, case.about


def weights(p: Problem, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return softmax(scale·q·kᵀ) as one matrix, at the inputs' precision."""
    s = q @ k.repeat_interleave(p.groups, 1).mT * p.scale
    s = s if p.softcap is None else torch.tanh(s / p.softcap) * p.softcap
    s = s if p.bias is None else s + p.bias
    seen = p.visibility.matrix()
    some = seen.any(-1, keepdim=True)
    return torch.softmax(torch.where(some, s.masked_fill(~seen, -torch.inf), 0.0), -1) * some
