"""How large a model is: the numbers every model here is built from."""

from dataclasses import dataclass
from typing import Literal, get_args

from isotherm.errors import ArgumentError
from isotherm.language import Text

Norm = Literal["post", "pre"]


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, in the paper's own units (defaults: the base model of Vaswani et al. 2017).

    `width` is d_model; `head_dim` is d_k = d_v, width / heads unless given; `hidden` is the feed-forward layer's, 4·width
    unless given. `longest` is the longest sequence; `pad` is the id that fills a batch up, always on the right. `norm`
    says where LayerNorm stands: after the sum, as in the paper, or before each sublayer, as nearly everywhere since.
    """

    vocabulary: int
    width: int = 512
    heads: int = 8
    layers: int = 6
    hidden: int | None = None
    head_dim: int | None = None
    longest: int = 512
    pad: int = 0
    dropout: float = 0.0
    norm: Norm = "pre"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "heads", "layers", "longest", "hidden", "head_dim"):
            size = getattr(self, name)
            if size is not None and (not isinstance(size, int) or size < 1):
                raise ArgumentError(name, Text("a whole number, 1 or more", "不小于 1 的整数"), got=repr(size))
        if self.head_dim is None and self.width % self.heads:
            whole = Text(
                "a multiple of heads = {heads}, or head_dim as well", "heads = {heads} 的倍数，或同时给出 head_dim"
            )
            raise ArgumentError("width", whole.format(heads=self.heads), got=self.width)
        if not 0 <= self.dropout < 1:
            raise ArgumentError("dropout", Text("at least 0 and below 1", "不小于 0 且小于 1 的数"), got=self.dropout)
        if self.norm not in get_args(Norm):
            raise ArgumentError("norm", Text("post or pre", "post 或 pre"), got=repr(self.norm))

    @property
    def inside(self) -> int:
        """Units of the feed-forward layer."""
        return 4 * self.width if self.hidden is None else self.hidden

    @property
    def per_head(self) -> int:
        """Dimensions of one head's queries, keys and values."""
        return self.width // self.heads if self.head_dim is None else self.head_dim
