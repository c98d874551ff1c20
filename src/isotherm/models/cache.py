"""What decoding one more token need not compute again."""

from torch import Tensor, nn


class Cache:
    """For each module that keeps something, its tensors [B, …]: an attention its keys and values, a GRU its state.

    >>> cache = Cache()                                             # doctest: +SKIP
    >>> model.decode(first, memory, source, cache)                  # doctest: +SKIP
    >>> model.decode(next_token, memory, source, cache)             # only the new token is worked on  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self.length = 0
        """Tokens decoded so far."""
        self.kept: dict[nn.Module, tuple[Tensor, ...]] = {}

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch: a beam search keeps some hypotheses and drops others."""
        self.kept = {
            module: tuple(tensor.index_select(0, rows) for tensor in tensors) for module, tensors in self.kept.items()
        }
