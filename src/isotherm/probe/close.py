"""Look at a module more closely: below Python, where scripted, traced and compiled code calls PyTorch's operators too.

This costs more than a torch function mode, so it is done only for TorchScript, and in a second look at modules in which the
first one saw nothing although they have projections like those of attention. It also follows which tensor was computed from
which: if the result of a module does not come from its projections, something between them cannot be seen.
"""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isotherm.probe import opaque, sdpa
from isotherm.probe.frames import Frame
from isotherm.probe.functions import SOFTMAXES, known
from isotherm.probe.keep import storage_of
from isotherm.probe.session import Session
from isotherm.probe.watch import Watch

KERNEL = "scaled_dot_product_"
EMPTY = frozenset(
    {f"{what}_like" for what in ("empty", "zeros", "ones", "full", "rand", "randn")}
    | {f"new_{what}" for what in ("empty", "zeros", "ones", "full", "empty_strided")}
)
"""Operators that take no more from a tensor than its shape."""


class CloseLook(TorchDispatchMode):
    """Passes every operator on unchanged, and looks at its arguments and its result."""

    def __init__(self, session: Session) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._session, self._watch = session, Watch(session)
        self._made_from: dict[int, set[int]] = {}
        self._alive: list[Tensor] = []

    def __enter__(self) -> "CloseLook":
        """Begin to look."""
        self._session.close_look = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop looking."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._session.close_look = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass one operator on."""
        kwargs = {} if kwargs is None else kwargs
        name, writes, _ = known(func)
        session = self._session
        if not session.awake:
            return func(*args, **kwargs)
        if writes or "out" in kwargs or name in SOFTMAXES:
            with session.own_work():
                self._watch.before(name, args, kwargs)
        result = func(*args, **kwargs)
        with session.own_work():
            self._remember(name, args, kwargs, result)
            if name == opaque.NAME:
                opaque.look(session, func, args, kwargs, result)
            elif name.startswith(KERNEL) and "backward" not in name:
                sdpa.look(session, _kernel_call(func, args, kwargs, result))
            else:
                self._watch.after(name, args, kwargs, result)
        return result

    def _remember(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Note what the results were computed from. Their memory is kept, so that no other tensor can take it."""
        given = {storage_of(tensor) for tensor in _tensors((args, kwargs))} if name not in EMPTY else set()
        for tensor in _tensors(result):
            own = storage_of(tensor)
            self._made_from.setdefault(own, set()).update(given - {own})
            self._alive.append(tensor)

    def reaches(self, frame: Frame, result: Any) -> bool:
        """Whether the module's result was computed from its projections, as far as could be seen: from two of them at least,
        if it has more than one."""
        projected = {record.made for record in frame.inputs_of_attention() or frame.records}
        found: set[int] = set()
        left = [storage_of(tensor) for tensor in _tensors(result)]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self._made_from.get(one, ())
        return len(found & projected) >= min(2, len(projected))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (tuple, list)) else []


def _kernel_call(func: Any, args: Any, kwargs: Any, result: Any) -> sdpa.KernelCall:
    """What one of PyTorch's fused kernels was passed, by the names in its schema."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    given["attn_mask"] = given.pop("attn_bias", given.get("attn_mask"))
    wanted = {name: given[name] for name in sdpa.ARGUMENTS if name in given}
    return sdpa.KernelCall.of((), wanted, result[0] if isinstance(result, (tuple, list)) else result)
