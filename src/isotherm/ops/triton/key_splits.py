# mypy: disable-error-code="import-untyped, import-not-found"
"""Splitting the keys of a row over several programs, where rows are too few to keep the GPU busy, and merging the results."""

from typing import NamedTuple

from isotherm.ops.triton import key_splits_kernel
from isotherm.ops.triton.attention_call import AttentionCall, ceil_div, power_of_2
from isotherm.ops.triton.fields import Fields
from isotherm.ops.triton.launch import launch

PROGRAMS = 512
"""Programs that keep a large GPU busy. Keys are split until there are about this many."""
LEAST_SPLIT = 1024
"""No split has fewer keys."""


class Split(NamedTuple):
    """The keys in `parts` runs of `keys` keys each."""

    parts: int
    keys: int


def split(call: AttentionCall, block_rows: int, block_keys: int, programs: int) -> Split:
    """Split the keys, in multiples of `block_keys`, until blocks of rows times splits reach `programs`."""
    b, h, t = call.shape
    blocks = ceil_div(t, block_rows) * b * h
    # Under causality only about 5/8 of the splits have keys, if the rows are four blocks of an even sample.
    wanted = programs * 8 // 5 if call.causal and call.rows is not None else programs
    parts = max(1, min(wanted // max(1, blocks), ceil_div(call.k.shape[2], LEAST_SPLIT)))
    run = ceil_div(ceil_div(max(1, call.k.shape[2]), parts), block_keys) * block_keys
    return Split(max(1, ceil_div(call.k.shape[2], run)), run)


def merge(parts: Fields, into: Fields, splits: int, scales: int = 1) -> None:
    """Merge fields of disjoint sets of keys, at each of `scales` scales."""
    total, size = into.first_key.numel() // scales, power_of_2(splits)
    block = max(1, min(32, 512 // size))
    launch(
        key_splits_kernel.merge_splits, (ceil_div(total, block), scales),
        parts.values, parts.first_key, into.values, into.first_key, into.broken, splits, total,
        PARTS=size, BLOCK=block, num_warps=4,
    )  # fmt: skip
