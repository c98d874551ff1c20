"""Other ways to compute attention on a GPU, the inputs for all of them, and the float64 reference for all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from isotherm.ops import Problem, Visibility
from isotherm.stats import RowStats

HALF = torch.bfloat16
CHECKED = 32
"""How many rows of one head are compared with float64 before anything is timed."""
SAMPLED = 256
Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """One head per (batch, head) pair, `n` queries and keys of dimension `d`."""

    d: int
    n: int
    heads: int
    causal: bool

    @property
    def flops(self) -> float:
        """Floating-point operations of the two matrix products; half as many under causality."""
        return 4.0 * self.heads * self.n * self.n * self.d / (2 if self.causal else 1)


class Inputs:
    """Random q, k, v and output gradient of a shape, with the float64 reference for chosen rows."""

    def __init__(self, shape: Shape) -> None:
        g = torch.Generator("cuda").manual_seed(shape.n + shape.d)
        size = (shape.heads // 16, 16, shape.n, shape.d)
        self.shape, self.scale = shape, shape.d**-0.5
        self.q, self.k, self.v, self.d_out = (torch.randn(size, generator=g, device="cuda").to(HALF) for _ in range(4))
        for x in (self.q, self.k, self.v):
            x.requires_grad_()
        seen = Visibility(torch.arange(shape.n, device="cuda"), shape.n, shape.causal)
        self.problem = Problem(self.q, self.k, self.v, seen, self.scale)
        self.few = torch.linspace(0, shape.n - 1, CHECKED, device="cuda").long()
        self.rows = torch.arange(SAMPLED, device="cuda") * (shape.n // SAMPLED) + 7

    def logits(self, rows: Tensor, scale: float) -> Tensor:
        """Return the logits of these rows of the first head in float64, −inf where a key is hidden."""
        s = self.q[0, 0, rows].detach().double() @ self.k[0, 0].detach().double().T * scale
        after = torch.arange(self.shape.n, device="cuda") > rows.view(-1, 1)
        return s.masked_fill(after, -torch.inf) if self.shape.causal else s

    def truth(self, rows: Tensor, scale: float) -> Numbers:
        """Return output and statistics of these rows of the first head in float64."""
        s = self.logits(rows, scale)
        stats = RowStats.from_logits(torch.where(s.isfinite(), s, 0.0), s.isfinite())
        names = ("lse", "max_logit", "entropy", "collision", "logit_mean", "logit_std", "sink", "jacobian_trace")
        return {"output": torch.softmax(s, -1) @ self.v[0, 0].detach().double()} | {n: getattr(stats, n) for n in names}


def numbers(stats: RowStats, pick: Callable[[Tensor], Tensor], output: Tensor | None = None) -> Numbers:
    """Return statistics by name, for the rows that `pick` selects."""
    names = ("lse", "max_logit", "entropy", "collision", "logit_mean", "logit_std", "sink", "jacobian_trace")
    found = {name: pick(getattr(stats, name)) for name in names}
    return found if output is None else found | {"output": pick(output).double()}


def wrong(found: Numbers, truth: Numbers) -> dict[str, float]:
    """Return the largest error of each number. Raise above 1e-3 for statistics, above 2e-2 for outputs (bfloat16)."""
    errors = {name: (x.double() - truth[name]).abs().max().item() for name, x in found.items()}
    errors = {name: error if not math.isnan(error) else math.inf for name, error in errors.items()}
    limits = {"output": 2e-2}
    over = {name: error for name, error in errors.items() if error > limits.get(name, 1e-3)}
    if over:
        raise AssertionError(f"wrong numbers, not timed: {over}")
    return errors


def stock(x: Inputs, backend: SDPBackend) -> Callable[[], Tensor]:
    """PyTorch's own attention with one backend, without statistics."""

    def run() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(x.q, x.k, x.v, is_causal=x.shape.causal)

    return run


def eager(x: Inputs) -> Callable[[], tuple[Tensor, Numbers]]:
    """Weights held in memory, with softmax and statistics in float32 as eager implementations do it."""
    hidden = torch.ones(x.shape.n, x.shape.n, dtype=torch.bool, device="cuda").triu(1) if x.shape.causal else None

    def run() -> tuple[Tensor, Numbers]:
        s = (x.q @ x.k.mT).float() * x.scale
        if hidden is not None:
            s = s.masked_fill(hidden, -torch.inf)
        lse, p = s.logsumexp(-1), torch.softmax(s, -1)
        top = s.amax(-1)
        if hidden is not None:
            s = s.masked_fill(hidden, 0.0)
        n = torch.arange(1, x.shape.n + 1, device="cuda") if hidden is not None else x.shape.n
        mean = s.sum(-1) / n
        collision = p.square().sum(-1)
        return p.to(HALF) @ x.v, {
            "lse": lse,
            "max_logit": top,
            "entropy": lse - (p * s).sum(-1),
            "collision": collision,
            "logit_mean": mean,
            "logit_std": (s.square().sum(-1) / n - mean.square()).clamp(min=0).sqrt(),
            "sink": p[..., 0],
            "jacobian_trace": 1 - collision,
        }

    return run


def identities(x: Inputs) -> Callable[[], tuple[Tensor, Numbers]]:
    """Entropy and collision from three calls of a kernel that returns lse only.

    Σ p·s is an attention with v = k, Σp² an lse at twice the scale.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention

    def run() -> tuple[Tensor, Numbers]:
        out, lse, *_ = flash(x.q, x.k, x.v, 0.0, x.shape.causal, scale=x.scale)
        mean_key, *_ = flash(x.q, x.k, x.k, 0.0, x.shape.causal, scale=x.scale)
        _, sharper, *_ = flash(x.q, x.k, x.v, 0.0, x.shape.causal, scale=2 * x.scale)
        ps = (x.q.float() * mean_key.float()).sum(-1) * x.scale
        return out, {"lse": lse, "entropy": lse - ps, "collision": (sharper - 2 * lse).exp()}

    return run


def flex(x: Inputs) -> Callable[[], tuple[Tensor, Numbers]]:
    """FlexAttention, compiled. It returns lse and the largest logit on request."""
    from torch.nn.attention.flex_attention import AuxRequest

    mask = None
    if x.shape.causal:
        mask = create_block_mask(lambda _, __, i, j: i >= j, None, None, x.shape.n, x.shape.n, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def run() -> tuple[Tensor, Numbers]:
        out, aux = compiled(x.q, x.k, x.v, block_mask=mask, return_aux=AuxRequest(lse=True, max_scores=True))
        return out, {"lse": aux.lse, "max_logit": aux.max_scores}

    return run
