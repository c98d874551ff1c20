"""What a computation costs, counted and not timed: a count is the same on every machine and reproduces bit for bit.

`Tally` looks at every operation PyTorch dispatches; `depth` walks the autograd graph, whose longest path is the number of
operations that must wait for one another however many processors there are. Adding up m numbers takes ⌈log₂ m⌉ additions one
after another, so `rounds` charges a sum, and a matrix product for its inner dimension, that many more. (The
largest logit, which a softmax subtracts, is not in the graph: it would add as many again.)
"""

from collections.abc import Callable
from math import prod
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot")


class Tally(TorchDispatchMode):
    """Counts while it is entered: `multiply_adds` of matrix products, `tanhs`, `elementwise` results of anything else that
    makes a new tensor, `written` bytes, and the `largest` tensor made, in bytes.

    >>> import torch
    >>> with Tally() as tally:
    ...     _ = torch.ones(3, 5) @ torch.ones(5, 7)
    >>> tally.multiply_adds
    105
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.multiply_adds = self.tanhs = self.elementwise = self.written = self.largest = 0

    def __enter__(self) -> "Tally":
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, Tensor) and not func.is_view:
                self._count(func.overloadpacket.__name__, args, made)
        return result

    def _count(self, name: str, args: Any, made: Tensor) -> None:
        size = made.numel() * made.element_size()
        self.written += size
        self.largest = max(self.largest, size)
        if name in PRODUCTS:
            factor = args[1] if name in ("addmm", "baddbmm") else args[0]
            self.multiply_adds += made.numel() * int(factor.shape[-1])
        elif name.startswith("tanh"):
            self.tanhs += made.numel()
        else:
            self.elementwise += made.numel()


def rounds(node: Any) -> int:
    """What one operation of the autograd graph costs in sequence: 1, and ⌈log₂ m⌉ more where it adds up m numbers.

    >>> import torch
    >>> [rounds((torch.ones(4, n, requires_grad=True) @ torch.ones(n, 3)).grad_fn) for n in (1, 8, 9)]
    [1, 4, 5]
    """
    name = node.name()
    if name.startswith(("BmmBackward", "MmBackward", "BaddbmmBackward")):
        # PyTorch keeps only the factors it needs; the inner dimension is the last but one of the second, the last of the first.
        first, second = (_saved(node, it) for it in _FACTORS[name.split("Backward")[0]])
        return 1 + _log2(int(second.shape[-2] if second is not None else first.shape[-1]))
    if name.startswith("SumBackward"):
        sizes = node._saved_self_sym_sizes
        summed = getattr(node, "_saved_dim", tuple(range(len(sizes))))
        return 1 + _log2(prod(sizes[_signed(dim)] for dim in summed))
    return 1


_FACTORS = {"Bmm": ("self", "mat2"), "Mm": ("self", "mat2"), "Baddbmm": ("batch1", "batch2")}


def _saved(node: Any, factor: str) -> Any:
    return getattr(node, f"_saved_{factor}", None)


def _log2(count: int) -> int:
    """⌈log₂ count⌉, exactly."""
    return (count - 1).bit_length()


def _signed(number: int) -> int:
    """A dimension as the graph keeps it, where −1 is 2⁶⁴ − 1."""
    return number - (1 << 64) if number >= 1 << 63 else number


def depth(output: Tensor, start: Tensor, cost: Callable[[Any], int] = lambda _: 1) -> int:
    """Operations on the longest path from the leaf `start` to `output` in the autograd graph, each at its `cost`; 0 if there
    is none."""
    root = output.grad_fn
    longest: dict[Any, int] = {}
    order, stack = [], [(root, False)]
    while stack:
        node, done = stack.pop()
        if node is None or (node in longest and not done):
            continue
        if done:
            order.append(node)
            continue
        longest[node] = -1
        stack.append((node, True))
        stack.extend((following, False) for following, _ in node.next_functions if following not in longest)
    for node in order:
        if getattr(node, "variable", None) is start:
            longest[node] = 0
            continue
        after = [longest[following] for following, _ in node.next_functions if following is not None]
        reached = max((steps for steps in after if steps >= 0), default=-1)
        longest[node] = reached + cost(node) if reached >= 0 else -1
    return max(longest.get(root, 0), 0)
