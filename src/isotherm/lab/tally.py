"""What a computation costs, counted and not timed: a count is the same on every machine and reproduces bit for bit.

`Tally` looks at every operation PyTorch dispatches; `depth` walks the autograd graph, whose longest path is the number of
operations that must wait for one another however many processors there are.
"""

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


def depth(output: Tensor, start: Tensor) -> int:
    """Operations on the longest path from the leaf `start` to `output` in the autograd graph; 0 if there is none."""
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
        longest[node] = reached + 1 if reached >= 0 else -1
    return max(longest.get(root, 0), 0)
