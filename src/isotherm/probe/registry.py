"""`transformers`: wrap its table of attention functions, and the eager function of each modelling file, in place.

The names stay the same, because a model chooses its mask by the name: a function under a new name would get another mask. The
eager function is a global of the file that defines the model, which looks it up at every call.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import nullcontext
from dataclasses import replace
from math import sqrt
from typing import Any

from torch import Tensor, nn

from isotherm.language import Text
from isotherm.ops import Problem
from isotherm.probe import replay
from isotherm.probe.call import Call
from isotherm.probe.masks import Terms
from isotherm.probe.members import modules_of
from isotherm.probe.mode import hidden, watched
from isotherm.probe.owner import Place
from isotherm.probe.sdpa import KernelCall
from isotherm.probe.session import Session

POSITIONAL = ("module", "query", "key", "value", "attention_mask")
PAGED = Text("its keys are in a paged cache, which only the kernel can read", "键存放在分页缓存中，只有内核能读取")


def places(model: nn.Module) -> Iterator[Place]:
    """Every attention function that the model may call. There is none if transformers is not in use."""
    spaces = list(_namespaces(model))
    for mapping in _tables(spaces):
        for key in [key for key, function in list(mapping.items()) if callable(function)]:
            yield Place.function(mapping, key, functools.partial(_attention_function, key))
    for space in spaces:
        for name, function in list(space.items()):
            if "eager" in name and inspect.isfunction(function) and _is_attention(inspect.unwrap(function)):
                yield Place.function(space, name, functools.partial(_attention_function, "eager"))


def _namespaces(model: nn.Module) -> Iterator[dict[str, Any]]:
    """The global names of the files that define the model's classes."""
    files = {cls.__module__ for kind in {type(module) for _, module in modules_of(model)} for cls in kind.__mro__}
    for name in sorted(files):
        if name in sys.modules and not name.startswith(("torch.", "builtins", "abc", "isotherm.")):
            yield vars(sys.modules[name])


def _tables(spaces: list[dict[str, Any]]) -> Iterator[MutableMapping[str, Any]]:
    """The table of attention functions that all models share, and those of single files. Plain dicts before 4.51."""
    utilities = sys.modules.get("transformers.modeling_utils")
    known = [] if utilities is None else [vars(utilities)]
    found: dict[int, MutableMapping[str, Any]] = {}
    for space in [*known, *spaces]:
        table = space.get("ALL_ATTENTION_FUNCTIONS")
        parts = (
            [table]
            if isinstance(table, dict)
            else [getattr(table, n, None) for n in ("_global_mapping", "_local_mapping")]
        )
        found |= {id(part): part for part in parts if isinstance(part, dict)}
    yield from found.values()


@functools.cache
def _is_attention(function: Callable[..., Any]) -> bool:
    return tuple(inspect.signature(function).parameters)[:4] == POSITIONAL[:4]


def _attention_function(key: str, session: Session, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if not session.awake:
        return function(*args, **kwargs)
    flex = key == "flex_attention"  # it compiles itself, and must continue to
    with (
        session.captured_call(),
        session.compiling() if flex else nullcontext(),
        hidden() if flex else watched(session),
    ):
        result = function(*args, **kwargs)
    given = dict(zip(POSITIONAL, args, strict=False)) | kwargs
    module = given.get("module")
    contradicted: list[Call] = []
    with session.own_work(module):
        call, check = _understood(session, key, given, result)
        inner = session.kernel_calls.pop() if len(session.kernel_calls) == 1 else None
        check = None if inner is not None and _passes_on(inner, given, call, result) else check
        other_scale = inner is not None and call is not None and _passes_another_scale(inner, call)
        if call is not None and (other_scale or not session.capture(call, module, check)):
            contradicted.append(call)
        session.kernel_calls.clear()
    for call in contradicted:
        _look_inside(session, call, module, lambda: function(*args, **kwargs))
    return result


def _understood(
    session: Session, key: str, given: dict[str, Any], result: Any
) -> tuple[Call | None, Callable[[Problem], bool] | None]:
    """The call as its arguments describe it, and a test of whether the function computed that."""
    module, q, k, value = (given[name] for name in POSITIONAL[:4])
    if key.startswith("paged") or type(given.get("cache")).__name__ == "PagedAttentionCache":
        session.miss(PAGED, session.frames.name_of(module), type(module).__name__)
        return None, None
    scaling, sink = given.get("scaling"), given.get("s_aux")
    flash = "flash" in key
    call = Call(
        implementation=key,
        q=q,
        k=k,
        scale=1 / sqrt(q.shape[-1]) if scaling is None else float(scaling),
        passed=None if scaling is None else float(scaling),
        terms=_terms(session, given, flash=flash),
        softcap=given.get("softcap"),
        sink=sink,
        **_geometry(given, key, flash=flash),
    )
    output = result[0].transpose(1, 2)
    if given.get("dropout"):
        return call, None
    return call, lambda problem: replay.gives_output(problem, sink, value, output)


def _look_inside(session: Session, call: Call, module: Any, again: Callable[[], Any]) -> None:
    """The function did not compute what its arguments say. Run it once more, watched this time, and capture what it calls.

    If only the scale differs, the call is kept as it was made (its heads not repeated), with the scale it really had.
    """
    before, noticed = len(session.seen.captures), session.noticed
    with session.rerun(module, call.q.device), watched(session):
        again()
    with session.own_work(module):
        inner = session.withdraw(*range(before, len(session.seen.captures)))
        if len(inner) == 1:
            ratio = _length(inner[0].problem.q) / _length(call.q) * _length(inner[0].problem.k) / _length(call.k)
            real = replace(call, scale=inner[0].problem.scale * ratio)
            if not session.capture(real, module, lambda problem: replay.same_weights(problem, inner[0].problem)):
                session.add(replace(inner[0], passed=call.passed, implementation=call.implementation))
        elif inner or session.noticed == noticed:
            session.mismatch(call, module)


def _passes_on(inner: KernelCall, given: dict[str, Any], call: Call | None, result: Any) -> bool:
    """Whether the function passed its own tensors, mask and scale to PyTorch's kernel and returned the kernel's result. Then no
    replay is needed."""
    if call is None or inner.scale != call.scale or inner.causal != call.causal or call.window or call.softcap:
        return False
    if inner.mask is not given.get("attention_mask") or call.sink is not None or "position_bias" in given:
        return False
    outer = (given["query"], given["key"], given["value"], result[0])
    return all(
        x.data_ptr() == y.data_ptr() and x.numel() == y.numel()
        for x, y in zip(outer, (inner.q, inner.k, inner.v, inner.output), strict=True)
    )


def _passes_another_scale(inner: KernelCall, call: Call) -> bool:
    """Whether the function passed another multiplier of q·k to PyTorch's kernel than it was given."""
    if call.scale == inner.scale and all(
        x.data_ptr() == y.data_ptr() for x, y in ((inner.q, call.q), (inner.k, call.k))
    ):
        return False
    real = inner.scale * _length(inner.q) / _length(call.q) * _length(inner.k) / _length(call.k)
    return abs(real / call.scale - 1) > 1e-3 if real and call.scale else False


def _length(vectors: Tensor) -> float:
    """The mean length of the vectors of q or k. Repeating heads does not change it."""
    return float(vectors.detach().double().norm(dim=-1).mean())


def _geometry(given: dict[str, Any], key: str, *, flash: bool) -> dict[str, Any]:
    """Causality and window, where they are arguments of the kernel and not part of the mask."""
    rows, keys = given["query"].shape[2], given["key"].shape[2]
    causal = given.get("is_causal")
    causal = bool(getattr(given["module"], "is_causal", True) if causal is None else causal)
    if flash:
        window = given.get("sliding_window")
        return {
            "causal": causal,
            "first": keys - rows,
            "window": window if window is not None and keys > window else None,
        }
    plain = key not in ("eager", "flex_attention") and given.get("attention_mask") is None
    return {"causal": plain and causal and rows > 1}


def _terms(session: Session, given: dict[str, Any], *, flash: bool) -> Terms:
    mask, bias, keys = given.get("attention_mask"), given.get("position_bias"), given["key"].shape[2]
    terms = Terms()
    if isinstance(mask, Tensor):
        mask = mask if mask.shape[-1] == keys else mask[..., :keys]
        padding = flash and mask.dim() == 2
        terms = Terms(mask.bool().view(mask.shape[0], 1, 1, -1)) if padding else session.masks.visible(mask)
    elif mask is not None:
        terms = Terms(_dense(mask, given))
    if isinstance(bias, Tensor):
        terms &= session.masks.added(bias if bias.shape[-1] == keys else bias[..., :keys])
    return terms


def _dense(block_mask: Any, given: dict[str, Any]) -> Tensor:
    """A flex BlockMask as a tensor."""
    from torch.nn.attention.flex_attention import create_mask

    query, keys = given["query"], given["key"].shape[2]
    batch, heads = block_mask.shape[:2]
    return create_mask(block_mask.mask_mod, batch, heads, query.shape[2], keys, device=str(query.device))
