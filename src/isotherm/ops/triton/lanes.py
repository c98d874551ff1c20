# mypy: ignore-errors
"""What the kernels do with the columns of a tile without moving them from the lanes that hold them."""

import triton
import triton.language as tl

LANES = tl.constexpr(8)
"""The columns that a quad of lanes holds side by side: sums are kept as [rows, 8] until all keys have been looked at."""
PAIRS = tl.constexpr(4)
"""Half as many, where sums are many: a lane then adds up both of its columns in one."""
HIDDEN = tl.constexpr(-512.0)
"""The exponent of a weight that is 0, small enough that its products are not lost in infinities."""


@triton.jit
def halves(x, BM: tl.constexpr, BN: tl.constexpr):
    """The first and the second half of a tile's columns; they stay in the registers they are in."""
    return tl.split(x.reshape(BM, 2, BN // 2).permute(0, 2, 1))


@triton.jit
def parted(x, BM: tl.constexpr, BN: tl.constexpr):
    """The same down to the eight columns of a quad: of these the even and the odd ones, each lane having one of both."""
    if BN > LANES:
        return halves(x, BM, BN)
    else:  # noqa: RET505 (as below)
        return tl.split(x.reshape(BM, BN // 2, 2))


@triton.jit
def first_columns(s, BM: tl.constexpr, BN: tl.constexpr):
    """The first 16 columns."""
    if BN == 16:
        return s
    else:  # noqa: RET505 (the compiler follows both ways out otherwise)
        s, _ = halves(s, BM, BN)
        return first_columns(s, BM, BN // 2)


@triton.jit
def ordered(t, u):
    """The lower and the higher; NaN if either is."""
    return tl.minimum(t, u, propagate_nan=tl.PropagateNan.ALL), tl.maximum(t, u, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def highest(top):
    """Which lane of each row holds its largest; one of them where several do."""
    return tl.arange(0, top.shape[1])[None, :] == tl.argmax(top, 1)[:, None]
