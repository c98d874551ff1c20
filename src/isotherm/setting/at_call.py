"""Multiply q·k by a number for each query, inside the attention call: a rule may depend on where a query stands and on how many
keys it sees, which only the call knows. With a cache, too: the mask covers the keys of earlier tokens.

A torch-function mode is on while the attention module runs. PyTorch's kernel gets a multiplied q. A softmax of logits that were
written out by hand, scale·q·k + bias, gets (f − 1)·scale·q·k added to them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.probe.functions import SOFTMAXES, known, positional
from isotherm.probe.masks import NEVER
from isotherm.probe.sdpa import ARGUMENTS
from isotherm.scale import Rule, Site

KERNEL = "scaled_dot_product_attention"
MATRICES = {"matmul": 0, "bmm": 0, "__matmul__": 0, "baddbmm": 1}
"""Products of q and kᵀ, and where q stands."""
MISSED = Text(
    "its attention no longer runs as it did when the rule was put on it (another implementation?), so the rule cannot act",
    "其注意力的运行方式已与设置规则时不同（换了实现？），规则无法生效",
)
NO_PRODUCT = Text(
    "no product of its q and kᵀ, in this order, leads to its softmax, so nothing in the call can be multiplied",
    "没有找到其 q 与 kᵀ 依此顺序相乘、再进入 softmax 的运算，调用中无法加入倍数",
)


@dataclass(eq=False)
class AtCall:
    """A rule with a number for each query, or a factor, one number or [heads], at the calls of one attention module with so
    many heads.

    Where the module is not told the positions of its queries, `causal` says where they stand: at the last key that each sees,
    or at its index. `scale` and `softcap` are those of logits that are written out by hand. `heads` are the heads that a rule
    is for, None for all.
    """

    by: Rule | float | Tensor
    layer: str
    count: int
    causal: bool
    scale: float
    softcap: float | None = None
    heads: tuple[int, ...] | None = None
    tried: tuple[Tensor, ...] | None = None

    def multiplier(self, q: Tensor, seen: Tensor, at: "Standing") -> Tensor:
        """[B or 1, H or 1, T, 1] for q [B, H, T, D] whose queries see these keys [B or 1, H or 1, T or 1, S]."""
        if not isinstance(self.by, Rule):
            precision = None if isinstance(self.by, Tensor) else torch.promote_types(q.dtype, torch.float32)
            return torch.as_tensor(self.by, dtype=precision, device=q.device).view(-1, 1, 1)
        visible = seen.sum(-1)
        positions, rows = at.positions, q.shape[-2]
        if positions is None or positions.shape[-1] != rows:
            first = 0 if at.length is None else at.length - rows
            positions = _last(seen) if self.causal else torch.arange(first, first + rows, device=q.device)
        site = Site(q.shape[-1], q.shape[1], positions, visible)
        found = torch.as_tensor(self.by.resolve(site).multiplier, device=q.device)
        if self.heads is None:
            return found
        mine = torch.zeros(q.shape[1], dtype=torch.bool, device=q.device)
        mine[list(self.heads)] = True
        return torch.where(mine.view(-1, 1, 1), found, torch.ones_like(found))


@dataclass(frozen=True)
class Standing:
    """Where an attention module is told that its queries stand: at these positions [B or 1, 1, T]; or at the end of so many
    tokens that its cache holds. A decoder's attention to an encoder is told no positions, and sees all of the encoder."""

    positions: Tensor | None
    length: int | None


class Multiplying(TorchFunctionMode):
    """On while an attention module runs: multiplies q·k of its calls."""

    def __init__(self, rules: Sequence[AtCall], at: Standing) -> None:
        super().__init__()
        self._rules, self._at = rules, at
        self._products: list[tuple[Tensor, Tensor]] = []
        self.acted, self._strange = False, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass one call on, multiplied if it is attention's."""
        kwargs = {} if kwargs is None else kwargs
        name = known(func).name
        if name == KERNEL:
            self.acted = not self._strange
            return func(**self._kernel(dict(zip(ARGUMENTS, args, strict=False)) | kwargs))
        if name in MATRICES:
            args, kwargs = positional(name, args, kwargs)
            q, k = args[MATRICES[name] :][:2]
            if min(q.dim(), k.dim()) >= 3:
                self._products.append((q, k))
        elif name in SOFTMAXES and args and (product := self._product(args[0])) is not None:
            self._strange |= not all(one.tried is None or _among(product[0], one.tried) for one in self._rules)
            self.acted = not self._strange
            if self.acted:
                return func(self._logits(args[0], *product), *args[1:], **kwargs)
        return func(*args, **kwargs)

    def _kernel(self, given: dict[str, Any]) -> dict[str, Any]:
        q, k, mask = given["query"], given["key"], given.get("attn_mask")
        rows, keys = q.shape[-2], k.shape[-2]
        if mask is not None:
            seen = mask if mask.dtype is torch.bool else mask > NEVER
            seen = seen.expand(*seen.shape[:-1], keys)
        elif given.get("is_causal"):
            seen = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril()
        else:
            seen = torch.ones(1, keys, dtype=torch.bool, device=q.device).expand(rows, keys)
        return {**given, "query": self._multiplied(q, seen)}

    def _multiplied(self, q: Tensor, seen: Tensor) -> Tensor:
        """q [B, H, T, D], or [H, T, D], times the factor. The heads of a single query may be rows: [B, key heads, heads of each
        key head, D]."""
        heads = self._rules[0].count
        if q.dim() == 4 and q.shape[1] < heads == q.shape[1] * q.shape[2]:
            by_head = seen.dim() == 4 and seen.shape[1:3] == q.shape[1:3]
            seen = seen.reshape(-1, heads, 1, seen.shape[-1]) if by_head else seen[..., :1, :]
            return self._multiplied(q.reshape(-1, heads, 1, q.shape[-1]), seen).reshape(q.shape)
        working = torch.promote_types(q.dtype, torch.float32)
        factor = self._factor(q if q.dim() == 4 else q.unsqueeze(0), seen).to(working)
        return (q.to(working) * (factor if q.dim() == 4 else factor.squeeze(0))).to(q.dtype)

    def _factor(self, q: Tensor, seen: Tensor) -> Tensor:
        """The product of all rules' multipliers, for queries that see these keys [B or 1, H or 1, T, S]."""
        while seen.dim() < 4:
            seen = seen.unsqueeze(0)
        factor = torch.ones((), device=q.device)
        for one in self._rules:
            found = one.multiplier(q, seen, self._at)
            factor = factor * (found if one.tried is None else torch.ones_like(found))
        return factor

    def _product(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """The latest q and kᵀ whose product has the shape of these logits, perhaps with batch and heads in one dimension."""
        lead, (rows, keys) = logits.shape[:-2], logits.shape[-2:]
        for q, k in reversed(self._products):
            if q.shape[-2] == rows and k.shape[-1] == keys and q.shape[:-2].numel() == lead.numel():
                same = k.shape[:-2].numel() == lead.numel()
                return q.reshape(*lead, *q.shape[-2:]), k.reshape(*lead, *k.shape[-2:]) if same else k
        return None

    def _logits(self, logits: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = logits > NEVER
        heads = q if q.dim() == 4 else q.unsqueeze(0)
        factor = self._factor(heads, seen if seen.dim() == 4 else seen.unsqueeze(0)).to(logits.dtype)
        factor = factor if q.dim() == 4 else factor.squeeze(0)
        one = self._rules[0]
        plain = (q @ k).to(logits.dtype) * one.scale
        if one.softcap is None:
            more = (factor - 1) * plain
        else:
            more = one.softcap * ((factor * plain / one.softcap).tanh() - (plain / one.softcap).tanh())
        return torch.where(seen, logits + more, logits)


def _among(q: Tensor, tried: Sequence[Tensor]) -> bool:
    """Whether the first factor of a product is a q that a probe saw: were it k, the product would be turned later."""
    return any(q.numel() == one.numel() and torch.equal(q.reshape(one.shape), one) for one in tried)


def _standing(args: Sequence[Any], given: dict[str, Any]) -> Standing:
    """What an attention module is told. A cache that keeps only a window of keys does not show positions."""
    found = (given.get(name) for name in ("position_ids", "cache_position"))
    positions = next((one for one in found if isinstance(one, Tensor) and one.dim() <= 2), None)
    caches = (getattr(one, "self_attention_cache", None) for one in (*args, *given.values()))
    cache = next((one for one in caches if one is not None), None)
    return Standing(
        None if positions is None else positions.view(-1, 1, positions.shape[-1]),
        None if cache is None else int(cache.get_seq_length()),
    )


def _last(seen: Tensor) -> Tensor:
    """The index of the last key that each query sees; 0 if it sees none."""
    keys = seen.shape[-1]
    places = torch.arange(1, keys + 1, device=seen.device)
    last = (seen * places).amax(-1) - 1
    return last.clamp(min=0)


class Missed(InputError):
    """An attention module ran without the call that its rules were to act in."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run_under(rules: Sequence[AtCall], call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run an attention module under its rules. It runs uncompiled: compiled code leaves out what a mode changes."""
    with Multiplying(rules, _standing(args, kwargs)) as mode:
        result = call(*args, **kwargs)
    if not mode.acted:
        raise Missed(rules[0].layer, MISSED if all(one.tried is None for one in rules) else NO_PRODUCT)
    return result
