"""Where in a model the queries of a layer can be multiplied: the output of the projection or of the norm that makes them, or
the parameters that a function projects with."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotherm.checkup.changes import Members
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.probe import Capture, Factor, Part
from isotherm.scale import Rule
from isotherm.setting.at_call import AtCall
from isotherm.setting.scaled import Change, OnOutput, OnParameter

REACHED = Text(
    "a model whose layer {layer} makes its queries by a projection or norm of their own ({why})",
    "层 {layer} 的查询由其自己的投影或归一化产生的模型（{why}）",
)
UNTRACED = Text("the projection of its q was not found", "没有找到其 q 的投影")
SHARED = Text("{source} makes its k as well", "{source} 同时产生其 k")
NO_ROWS = Text("it is not known which features of {source} are which head", "不知道 {source} 的哪些特征属于哪个头")
NO_AXIS = Text("the heads in the output of {source} were not found", "没有在 {source} 的输出中找到各个头")
PUT_TOGETHER = Text(
    "the bias beside {source} is put together from several tensors", "与 {source} 相加的偏置由多个张量拼成"
)
OTHER_USE = Text("what makes its queries is used for something else, too", "产生其查询的部分还另有用途")
SCRIPTED = Text("{source} is scripted code, which Python cannot change", "{source} 是脚本化的代码，Python 无法改动")
NO_CALL = Text(
    "its attention, {what}, takes no number for each query; set_attn_implementation('sdpa') may help",
    "其注意力 {what} 不能按查询取不同的数；可尝试 set_attn_implementation('sdpa')",
)
BY_QUERY = Text("its queries are multiplied by numbers of their own already", "其查询已各自乘有不同的数")
SEEN_INTO = frozenset({"sdpa", "eager", "hand-written"})
NEAR = 2e-2
NO_MODULE = Text("{source} is neither a module nor a parameter of the model", "{source} 不是模型的模块或参数")


@dataclass(frozen=True)
class Held:
    """A module, and the factor that it is to multiply by."""

    module: nn.Module
    by: Change


def places(members: Members, capture: Capture, factor: float | Tensor, outputs: dict[str, Tensor]) -> list[Held]:
    """Where to multiply so that q·k of the captured layer is multiplied by a factor, one number or one for each head. `outputs`
    are what the modules of `where_told` gave, by name."""
    q = capture.q_factor
    of_all = not isinstance(factor, Tensor) or factor.numel() == 1
    if q.kind == "untraced" or q.source is None or (q.kind == "normalised" and q.norm is None):
        raise refused(capture, UNTRACED)
    if q.kind == "normalised":
        if q.norm == capture.k_factor.norm:
            raise refused(capture, SHARED.format(source=q.norm))
        module = _module(members, capture, q.norm)
        return [Held(module, OnOutput(factor) if of_all else _by_head(capture, factor, outputs.get(q.norm or "")))]
    output = outputs.get(q.source)
    if output is not None:
        module = _module(members, capture, q.source)
        if q.source == capture.k_factor.source:
            raise refused(capture, SHARED.format(source=q.source))
        if output.numel() != capture.problem.q.numel():
            raise refused(capture, NO_ROWS.format(source=q.source))
        return [Held(module, OnOutput(factor) if of_all else _by_head(capture, factor, output))]
    heads_of = _heads_of(capture, q, capture.problem.q.shape[1])
    if any(not part.name for part in q.parts):
        raise refused(capture, PUT_TOGETHER.format(source=q.source))
    if q.parts:
        return [_on_part(members, capture, part, factor, heads_of) for part in q.parts]
    module = _module(members, capture, q.source)
    return [Held(module, OnOutput(factor) if of_all and -1 not in heads_of else _spread(capture, factor, heads_of))]


def place_name(capture: Capture) -> str:
    """A name for what makes the queries of a layer: layers that share it have the same one."""
    q = capture.q_factor
    return f"{q.norm or ''}|{q.source or capture.name}|{q.layout}"


def where_told(capture: Capture, factor: float | Tensor) -> str | None:
    """The module whose output says which head is which: a norm, for factors of heads; a module that makes each head by itself,
    as a norm after the rotation does. None if the weights say it."""
    q = capture.q_factor
    if q.kind == "normalised":
        return q.norm if isinstance(factor, Tensor) and factor.numel() > 1 else None
    alone = q.layout is not None and not q.layout.starts and capture.problem.q.shape[1] > 1
    return q.source if alone and not q.parts else None


def _on_part(members: Members, capture: Capture, part: Part, factor: float | Tensor, heads_of: list[int]) -> Held:
    """A parameter that a function projects with, or a part of one."""
    owner, _, leaf = part.name.rpartition(".")
    shape = members.parameters[part.name].shape
    along = [-1] * shape[part.axis]
    along[part.first : part.first + len(heads_of)] = heads_of
    spread = _spread(capture, factor, along, part.axis - len(shape))
    return Held(_module(members, capture, owner), OnParameter(spread.factor, spread.axis, spread.heads_of, leaf))


def _spread(capture: Capture, factor: float | Tensor, heads_of: list[int], axis: int = -1) -> OnOutput:
    """A factor for each head, along the features."""
    heads, device = capture.problem.q.shape[1], capture.problem.q.device
    if not isinstance(factor, Tensor):
        precision = torch.promote_types(capture.problem.q.dtype, torch.float32)
        factor = torch.tensor(factor, dtype=precision, device=device)
    return OnOutput(factor.reshape(-1).expand(heads), axis, torch.tensor(heads_of, device=device))


def _module(members: Members, capture: Capture, name: str | None) -> nn.Module:
    module = members.modules.get(name or "")
    if module is None or name is None:
        raise refused(capture, NO_MODULE.format(source=name))
    if isinstance(module, torch.jit.ScriptModule):
        raise refused(capture, SCRIPTED.format(source=name))
    return module


def _heads_of(capture: Capture, q: Factor, heads: int) -> list[int]:
    """Which head each feature of the projection belongs to, −1 for none."""
    layout, k = q.layout, capture.k_factor
    if layout is None:
        raise refused(capture, NO_ROWS.format(source=q.source))
    if _features(q) & _features(k):
        raise refused(capture, SHARED.format(source=q.source))
    if heads == 1 and not layout.starts:
        return [0] * layout.width
    if len(set(layout.starts)) != heads:
        raise refused(capture, NO_ROWS.format(source=q.source))
    found = [-1] * layout.width
    for head in range(heads):
        for feature in layout.features([head]):
            found[feature] = head
    return found


def _features(factor: Factor) -> set[tuple[str | None, int]]:
    """The features that make q (or k), by the name of what makes them and their index in it."""
    name, first = (factor.parts[0].name, factor.parts[0].first) if factor.parts else (factor.source, 0)
    return {(name, first + feature) for feature in (factor.layout.features() if factor.layout else ())}


def _by_head(capture: Capture, factor: float | Tensor, output: Tensor | None) -> OnOutput:
    """Each head's part of a norm's output, found by the lengths of its vectors: those of q, up to one number."""
    q = capture.problem.q
    batch, heads, length, dim = q.shape
    own = q.double().norm(dim=-1)
    shaped: list[tuple[Tensor, int, tuple[int, ...]]] = []
    if output is not None and output.dim() >= 2 and output.numel() == q.numel():
        if output.shape[-1] == heads * dim:
            of_features = tuple(head for head in range(heads) for _ in range(dim))
            shaped.append((output.reshape(batch, length, heads, dim).transpose(1, 2), -1, of_features))
        elif output.shape[-1] == dim and output.dim() == 4:
            for axis, turned in ((-3, output), (-2, output.transpose(1, 2))):
                if tuple(turned.shape) == tuple(q.shape):
                    shaped.append((turned, axis, tuple(range(heads))))
    for vectors, axis, heads_of in shaped:
        ratio = own / vectors.double().norm(dim=-1)
        if bool(((ratio / ratio.median() - 1).abs() < NEAR).all()):
            return OnOutput(factor, axis, torch.tensor(heads_of, device=q.device))
    raise refused(capture, NO_AXIS.format(source=capture.q_factor.norm or capture.q_factor.source))


def at_call(
    members: Members, capture: Capture, by: Rule | float | Tensor, heads: tuple[int, ...] | None = None
) -> Held:
    """Where to multiply by a number for each query, or by what nothing before the call can be multiplied by."""
    module = members.modules.get(capture.name)
    if isinstance(module, torch.jit.ScriptModule):
        raise refused(capture, SCRIPTED.format(source=capture.name))
    if module is None or not capture.name or capture.implementation not in SEEN_INTO or not capture.affine:
        raise unreachable(capture)
    if isinstance(by, Rule) and capture.q_factor.kind == "per-query":
        raise refused(capture, BY_QUERY)
    if capture.multiplied is not None:
        raise refused(capture, BY_QUERY)
    problem = capture.problem
    counts = problem.visibility.counts().expand(-1, -1, problem.q.shape[2])
    causal = bool((counts[..., 0] < counts[..., -1]).any()) and capture.kind == "self"
    return Held(module, AtCall(by, capture.name, problem.q.shape[1], causal, problem.scale, problem.softcap, heads))


def unreachable(capture: Capture) -> ArgumentError:
    """The error for a layer in whose call nothing can be multiplied."""
    return refused(capture, NO_CALL.format(what=capture.implementation))


def refused(capture: Capture, why: Text) -> ArgumentError:
    """The error for a layer whose queries cannot be multiplied before the call."""
    return ArgumentError("model", REACHED.format(layer=capture.name or "-", why=why), got=capture.module)
