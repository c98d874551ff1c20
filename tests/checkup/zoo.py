"""Attention as strangers write it: one module whose middle part can be anything, and many middle parts.

Each takes q, k, v [B, H, T, D] and returns the output [B, H, T, D]. `WEIGHTS` holds the weights [B, H, T, S] that it used, for
the tests to compare with.
"""

import threading
import warnings
from math import sqrt

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

WIDTH, HEADS, DIM, TOKENS = 24, 3, 8, 11
SCALE = 1 / sqrt(DIM)
CAUSAL = torch.ones(TOKENS, TOKENS).tril().bool()
WEIGHTS = []


class Mixer(nn.Module):
    """Projections around a middle part. Nothing about its name says attention."""

    def __init__(self, middle):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.middle = middle

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for p in (self.a, self.b, self.c))
        return self.d(self.middle(q, k, v).transpose(1, 2).flatten(2))


class Net(nn.Module):
    """A block with a residual, so that the output does not depend on attention alone."""

    def __init__(self, *middles):
        super().__init__()
        self.mixers = nn.ModuleList(Mixer(middle) for middle in middles)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        for mixer in self.mixers:
            x = x + mixer(self.norm(x))
        return x


def net(*middles):
    """A trained-looking network of these parts, and its input."""
    torch.manual_seed(3)
    model = Net(*middles).eval()
    with torch.no_grad():
        model.norm.weight.mul_(1.1)
        for mixer in model.mixers:
            mixer.a.weight.mul_(4)
    return model, torch.randn(2, TOKENS, WIDTH)


def used(weights, v):
    WEIGHTS.append(weights.detach().clone())
    return weights @ v


def log_softmax(q, k, v):
    return used(F.log_softmax(q @ k.mT * SCALE, -1).exp(), v)


def exp_and_sum(q, k, v):
    e = (q @ k.mT * SCALE).exp()
    return used(e / e.sum(-1, keepdim=True), v)


def exp_and_sum_in_place(q, k, v):
    e = q @ k.mT
    e *= SCALE
    e -= e.amax(-1, keepdim=True)
    e.exp_()
    e /= e.sum(-1, keepdim=True)
    return used(e, v)


def normalised_afterwards(q, k, v):
    e = (q @ k.mT * SCALE - 3.0).exp()
    total = e.sum(-1, keepdim=True)
    WEIGHTS.append((e / total).detach())
    return (e @ v) / total


def normalised_afterwards_from_a_little_more(q, k, v):
    a = q @ k.mT * SCALE
    e = (a - a.logsumexp(-1, keepdim=True) + 0.3).exp()
    total = e.sum(-1, keepdim=True)
    WEIGHTS.append((e / total).detach())
    return (e @ v) / total


def logsumexp(q, k, v):
    a = q @ k.mT * SCALE
    return used((a - a.logsumexp(-1, keepdim=True)).exp(), v)


def one_in_the_denominator(q, k, v):
    e = (q @ k.mT * SCALE).exp()
    return used(e / (1 + e.sum(-1, keepdim=True)), v)


def by_reciprocal(q, k, v):
    e = torch.exp(torch.mul(torch.matmul(q, k.mT), SCALE))
    return used(e * e.sum(-1, keepdim=True).reciprocal(), v)


def normalize_l1(q, k, v):
    return used(F.normalize((q @ k.mT * SCALE).exp(), p=1, dim=-1), v)


def out_keyword(q, k, v):
    scores = torch.empty(2, HEADS, TOKENS, TOKENS)
    torch.matmul(q.detach(), k.mT.detach(), out=scores)
    weights = torch.empty_like(scores)
    torch.softmax(torch.mul(scores, SCALE), -1, out=weights)
    return used(weights, v)


def by_keywords(q, k, v):
    scores = torch.mul(input=torch.matmul(input=q, other=k.mT), other=SCALE)
    return used(torch.softmax(input=torch.masked_fill(input=scores, mask=~CAUSAL, value=-1e9), dim=-1), v)


def ellipsis_einsum(q, k, v):
    a = torch.einsum("...id,...jd->...ij", q, k) * SCALE
    return torch.einsum("...ij,...jd->...id", kept(a.softmax(-1)), v)


def kept(weights):
    WEIGHTS.append(weights.detach().clone())
    return weights


def key_first_einsum(q, k, v):
    a = torch.einsum("bhjd,bhid->bhji", k, q) * SCALE
    w = a.softmax(2)
    WEIGHTS.append(w.mT.detach())
    return torch.einsum("bhji,bhjd->bhid", w, v)


def heads_last_einsum(q, k, v):
    a = torch.einsum("bhid,bhjd->bijh", q, k) * SCALE
    w = a.softmax(2)
    WEIGHTS.append(w.permute(0, 3, 1, 2).detach())
    return torch.einsum("bijh,bhjd->bhid", w, v)


def keys_on_the_left(q, k, v):
    w = torch.softmax(k @ q.mT * SCALE, dim=-2)
    WEIGHTS.append(w.mT.detach())
    return (v.mT @ w).mT


def multiply_and_sum(q, k, v):
    a = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) * SCALE
    w = kept(a.softmax(-1))
    return (w.unsqueeze(-1) * v.unsqueeze(2)).sum(3)


def keys_first_multiply_and_sum(q, k, v):
    a = torch.sum(k.unsqueeze(3) * q.unsqueeze(2), -1) * SCALE
    w = a.softmax(2)
    WEIGHTS.append(w.mT.detach())
    return (w.unsqueeze(-1) * v.unsqueeze(3)).sum(2)


def mean_instead_of_sum(q, k, v):
    a = (q.unsqueeze(3) * k.unsqueeze(2)).mean(-1)
    return used(a.softmax(-1), v)


def tensordot(q, k, v):
    rows = [torch.tensordot(x, y, dims=([-1], [-1])) for x, y in zip(q.flatten(0, 1), k.flatten(0, 1), strict=True)]
    return used((torch.stack(rows) * SCALE).softmax(-1).view(2, HEADS, TOKENS, TOKENS), v)


def baddbmm(q, k, v):
    nothing = torch.empty(2 * HEADS, TOKENS, TOKENS)
    a = torch.baddbmm(nothing, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=SCALE)
    return used(a.softmax(-1).view(2, HEADS, TOKENS, TOKENS), v)


def multiplied_mask(q, k, v):
    m = CAUSAL.float()
    return used(torch.softmax(q @ k.mT * SCALE * m + (1 - m) * -1e9, -1), v)


def assigned_mask(q, k, v):
    a = q @ k.mT * SCALE
    a[:, :, ~CAUSAL] = -torch.inf
    return used(a.softmax(-1), v)


def masked_weights(q, k, v):
    e = (q @ k.mT * SCALE).exp() * CAUSAL
    return used(e / e.sum(-1, keepdim=True), v)


def upcast(q, k, v):
    a = torch.softmax((q.bfloat16() @ k.bfloat16().mT).float() * SCALE, -1, dtype=torch.float32)
    return used(a, v)


def softmax_module(q, k, v):
    return used(nn.Softmax(dim=-1)(q @ k.mT * SCALE), v)


def softmin(q, k, v):
    return used(F.softmin(q @ k.mT * -SCALE, -1), v)


def softmin_of_what_is_not_described(q, k, v):
    return used(F.softmin(-(q @ k.mT * SCALE).clamp(max=1e4).flip(-1).flip(-1), dim=-1), v)


def assigned_everywhere(q, k, v):
    a = q @ k.mT * SCALE
    a[~CAUSAL.expand_as(a)] = -torch.inf
    return used(a.softmax(-1), v)


def inner_products(q, k, v):
    rows = [torch.inner(x, y) for x, y in zip(q.flatten(0, 1), k.flatten(0, 1), strict=True)]
    return used((torch.stack(rows) * SCALE).softmax(-1).view(2, HEADS, TOKENS, TOKENS), v)


def twice_itself(q, k, v):
    a = q @ k.mT * SCALE
    return used((a + a).softmax(-1), v)


def less_a_half(q, k, v):
    a = q @ k.mT * SCALE
    return used((a - 0.5 * a).softmax(-1), v)


def talking_heads(q, k, v):
    mix = torch.eye(HEADS) * 0.7 + 0.3
    a = torch.einsum("gh,bhij->bgij", mix, q @ k.mT * SCALE)
    return used(a.softmax(-1), v)


def squashed(q, k, v):
    a = q @ k.mT * SCALE
    return used((a + a.tanh()).softmax(-1), v)


def topk_only(q, k, v):
    a = q @ k.mT * SCALE
    least = a.topk(4, -1).values[..., -1:]
    return used(torch.where(a >= least, a, -torch.inf).softmax(-1), v)


def sink_column(q, k, v):
    a = torch.cat([q @ k.mT * SCALE, torch.full((2, HEADS, TOKENS, 1), 0.5)], -1)
    return used(a.softmax(-1)[..., :-1], v)


def sink_row_first(q, k, v):
    a = torch.cat([torch.tensor([0.5, -0.5, 0.0]).view(HEADS, 1, 1).expand(2, -1, -1, TOKENS), k @ q.mT * SCALE], 2)
    w = a.softmax(2)[:, :, 1:].mT
    return used(w, v)


def sparsemax(q, k, v):
    a = q @ k.mT * SCALE
    top = a.sort(-1, descending=True).values
    steps = torch.arange(1, TOKENS + 1)
    sums = top.cumsum(-1) - 1
    count = (top * steps > sums).sum(-1, keepdim=True)
    return used((a - sums.gather(-1, count - 1) / count).clamp(min=0), v)


def one_number_for_all(q, k, v):
    return used((q @ k.mT * torch.full((HEADS, 1, 1), 0.25)).softmax(-1), v)


def one_number_for_each_head(q, k, v):
    return used((q @ k.mT * torch.tensor([0.2, 0.3, 0.4]).view(HEADS, 1, 1)).softmax(-1), v)


def one_number_for_each_query(q, k, v):
    return used((q @ k.mT * torch.sigmoid(q[..., :1])).softmax(-1), v)


def one_number_for_each_key(q, k, v):
    return used((q @ k.mT * torch.linspace(0.2, 0.5, TOKENS)).softmax(-1), v)


def in_double(q, k, v):
    return used((q.double() @ k.double().mT * SCALE).softmax(-1), v.double()).float()


def three_factors(q, k, v):
    return used(torch.einsum("bhid,bhjd,h->bhij", q, k, torch.tensor([0.2, 0.3, 0.4])).softmax(-1), v)


def linalg_matmul(q, k, v):
    return used((torch.linalg.matmul(q, k.mT) * SCALE).softmax(-1), v)


def matrix_and_vector(q, k, v):
    rows = [torch.mv(keys, one) for qs, keys in zip(q.flatten(0, 1), k.flatten(0, 1), strict=True) for one in qs]
    return used((torch.stack(rows).view(2, HEADS, TOKENS, TOKENS) * SCALE).softmax(-1), v)


def out_slices(q, k, v):
    a = torch.empty(2, HEADS, TOKENS, TOKENS)
    for head in range(HEADS):
        torch.matmul(q[:, head].detach(), k[:, head].mT.detach(), out=a[:, head])
    return used((a * SCALE).softmax(-1), v)


def log_of_exp(q, k, v):
    return used((q @ k.mT * SCALE).exp().log().softmax(-1), v)


def cosine_similarity(q, k, v):
    return used((F.cosine_similarity(q.unsqueeze(3), k.unsqueeze(2), -1) * 5).softmax(-1), v)


def normalised_over_all_blocks(q, k, v):
    parts = [q @ keys.mT * SCALE for keys in k.split(4, 2)]
    total = sum(scores.exp().sum(-1, keepdim=True) for scores in parts)
    return sum((scores.exp() / total) @ some for scores, some in zip(parts, v.split(4, 2), strict=True))


def merged_by_sums(q, k, v):
    parts = [q @ keys.mT * SCALE for keys in k.split(4, 2)]
    means = [scores.softmax(-1) @ some for scores, some in zip(parts, v.split(4, 2), strict=True)]
    share = torch.stack([scores.logsumexp(-1) for scores in parts], -1).softmax(-1)
    return (torch.stack(means, -1) * share.unsqueeze(-2)).sum(-1)


def by_convolution(q, k, v):
    a = [
        F.conv1d(keys.mT.reshape(1, -1, TOKENS), some.reshape(-1, DIM, 1), groups=HEADS)
        for some, keys in zip(q, k, strict=True)
    ]
    return used((torch.stack(a).view(2, HEADS, TOKENS, TOKENS) * SCALE).softmax(-1), v)


def complex_numbers(q, k, v):
    q, k = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k))
    return used(((q @ k.mH).real * SCALE).softmax(-1), v)


def additive(q, k, v):
    return used(torch.tanh(q.unsqueeze(3) + k.unsqueeze(2)).sum(-1).softmax(-1), v)


def chunked(q, k, v):
    parts = []
    for rows in q.split(4, 2):
        w = torch.softmax(rows @ k.mT * SCALE, -1)
        parts.append(w @ v)
    return torch.cat(parts, 2)


def flex(q, k, v):
    return flex_attention(q, k, v)


def flex_with_bias(q, k, v):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, TOKENS, TOKENS, device="cpu")
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 2 * s - 0.1 * (i - j), block_mask=mask, scale=0.2)


def flex_with_a_cap(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 3 * torch.tanh(s / 3))


def flex_with_a_cube(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + s * s * s)


def flex_grouped(q, k, v):
    return flex_attention(q[:, :2], k[:, :1], v[:, :1], enable_gqa=True).repeat(1, 2, 1, 1)[:, :HEADS]


@torch.library.custom_op("isotherm_zoo::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    return (torch.softmax(q @ k.mT * scale, -1) @ v).clone()


@torch.library.custom_op("isotherm_zoo::cubed", mutates_args=())
def cubed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (torch.softmax((q @ k.mT) ** 3, -1) @ v).clone()


def custom_op(q, k, v):
    return attend(q, k, v, 0.3)


def custom_op_by_overload(q, k, v):
    return torch.ops.isotherm_zoo.attend.default(q, k, v, 0.3)


@torch.library.custom_op("isotherm_zoo::attend_as_usual", mutates_args=())
def attend_as_usual(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(q @ k.mT / sqrt(q.shape[-1]), -1) @ v).clone()


def custom_op_with_the_usual_scale(q, k, v):
    return attend_as_usual(q, k, v)


def custom_op_on_three_axes(q, k, v):
    return attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), 0.3).unflatten(0, (2, HEADS))


def strange_custom_op(q, k, v):
    return cubed(q, k, v)


def in_numpy(q, k, v):
    out = torch.empty_like(q)
    a = q.detach().numpy() @ k.detach().numpy().swapaxes(-1, -2)
    out.numpy()[:] = torch.from_numpy(a).softmax(-1).numpy() @ v.detach().numpy()
    return out


def wholly_in_numpy(q, k, v):
    import numpy as np

    out = torch.empty_like(q)
    e = np.exp(q.detach().numpy() @ k.detach().numpy().swapaxes(-1, -2) * SCALE)
    out.numpy()[:] = (e / e.sum(-1, keepdims=True)) @ v.detach().numpy()
    return out


def _to_be_scripted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ v


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is deprecated, and in use
    scripted_function = torch.jit.script(_to_be_scripted)


def under_vmap(q, k, v):
    return torch.vmap(lambda q, k, v: torch.softmax(q @ k.mT * SCALE, -1) @ v)(q, k, v)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        return torch.softmax(q @ k.mT * SCALE, -1) @ v

    @staticmethod
    def backward(ctx, grad):
        return grad, grad, grad


def autograd_function(q, k, v):
    return Own.apply(q, k, v)


class Threaded(Mixer):
    """The forward runs the middle part in another thread."""

    def __init__(self, middle):
        super().__init__(middle)
        self.inner = Mixer(middle)

    def forward(self, x):
        found = []
        thread = threading.Thread(target=lambda: found.append(self.inner(x)))
        thread.start()
        thread.join()
        return found[0]


SEEN = {  # what it is → the scale in force, None where there is none
    log_softmax: SCALE, exp_and_sum: SCALE, exp_and_sum_in_place: SCALE, normalised_afterwards: SCALE,
    normalised_afterwards_from_a_little_more: SCALE, logsumexp: SCALE,
    one_in_the_denominator: SCALE, by_reciprocal: SCALE, normalize_l1: SCALE, out_keyword: SCALE, by_keywords: SCALE,
    ellipsis_einsum: SCALE, key_first_einsum: SCALE, heads_last_einsum: SCALE, keys_on_the_left: SCALE,
    multiply_and_sum: SCALE, keys_first_multiply_and_sum: SCALE, mean_instead_of_sum: 1 / DIM, tensordot: None,
    baddbmm: SCALE, multiplied_mask: SCALE,
    assigned_mask: SCALE, masked_weights: SCALE, upcast: SCALE, softmax_module: SCALE, softmin: SCALE,
    softmin_of_what_is_not_described: SCALE, assigned_everywhere: SCALE, inner_products: None, twice_itself: 2 * SCALE,
    less_a_half: SCALE / 2, talking_heads: None, squashed: None, topk_only: SCALE, sink_column: SCALE, sink_row_first: SCALE,
    sparsemax: None,
    flex: SCALE, flex_with_bias: 0.4, flex_with_a_cap: SCALE, flex_with_a_cube: None, custom_op: 0.3,
    custom_op_with_the_usual_scale: SCALE,
    custom_op_by_overload: 0.3, scripted_function: 0.3, autograd_function: SCALE, one_number_for_all: 0.25,
    one_number_for_each_head: None, one_number_for_each_query: None, one_number_for_each_key: None,
    in_double: SCALE, three_factors: None,
    linalg_matmul: SCALE, matrix_and_vector: None, out_slices: None, log_of_exp: SCALE, cosine_similarity: None,
    by_convolution: None, complex_numbers: None, additive: None,
}  # fmt: skip
LISTED = (strange_custom_op, in_numpy, wholly_in_numpy, under_vmap, normalised_over_all_blocks, merged_by_sums)  # fmt: skip
