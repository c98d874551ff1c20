# mypy: ignore-errors
# ruff: noqa: RUF005, SIM102
"""What `attend_kernel` does, without output, bias and cap, at several scales from one pass over q·kᵀ.

All else is shared: the logits are those at the lowest scale, and so are the reference, the moments and the first logit.
The weights at all scales come about as `sums_kernel` says, in eight lanes a row. The reference has less room than with
one scale: weights must keep their range at the highest.
"""

import triton
import triton.language as tl

from isotherm.ops.triton.attend_kernel import (
    exponents,
    logits,
    no_moments,
    rows_of,
    seen_of,
    take_keys,
    take_query,
    tiles_of,
    with_moments,
)
from isotherm.ops.triton.fields_kernel import LN2, LOG2E
from isotherm.ops.triton.lanes import LANES, halves, ordered
from isotherm.ops.triton.sums_kernel import add, keep, no_sums, weigh


@triton.jit
def _look(t, state, ratios, BM: tl.constexpr, BN: tl.constexpr, MADE: tl.constexpr, TWICE: tl.constexpr):
    """Per lane, each [BM, LANES]: the largest exponent, and the sums of all others with a tile's part added."""
    if BN > LANES:
        t, rest = halves(t, BM, BN)
        state = _look(t, state, ratios, BM, BN // 2, MADE, TWICE)
        state = _look(rest, state, ratios, BM, BN // 2, MADE, TWICE)
    else:
        top, sums, squares, crosses = state
        under, top = ordered(top, t)
        sums, squares, crosses = add(under, ratios, sums, squares, crosses, MADE, TWICE)
        state = top, sums, squares, crosses
    return state


@triton.jit
def _moved(state, shift, ratios, MADE: tl.constexpr, TWICE: tl.constexpr):
    """The same relative to another reference."""
    top, sums, squares, crosses = state
    weights, shift = weigh(shift, ratios, MADE, TWICE), shift[:, None]
    new, new_squares, new_crosses = (), (), ()
    for i in tl.static_range(len(TWICE)):
        by = weights[i][:, None]
        new, new_crosses = new + (sums[i] * by,), new_crosses + (tl.fma(sums[i], shift, crosses[i]) * by,)
        new_squares = new_squares + (squares[i] * by * by if TWICE[i] < 0 else squares[i],)
    return top + shift, new, new_squares, new_crosses


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "split_keys", "splits", "total_rows", "hq", "groups",
                               "wanted"])  # fmt: skip
def scales(q_ptr, k_ptr, mask_ptr, positions, rows_ptr, flags, fields, first_key, broken,
           q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, m_sb, m_sh, m_st, m_ss,
           queries, keys, D, hq, groups, behind, ahead, scale, ratios, ratios_low, room, split_keys, splits, total_rows,
           table, wanted, BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr, MADE: tl.constexpr, TWICE: tl.constexpr,
           GEOMETRY: tl.constexpr, MASK: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, FLAGGED: tl.constexpr,
           BETWEEN: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """BM rows of one head over the keys of split `program_id(1)`; if FLAGGED, only if they are. `scale` is the lowest.

    If BETWEEN, they are flagged where some are to be done again.
    """
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    index, split = tl.program_id(0), tl.program_id(1).to(tl.int64)
    flags += split * tl.num_programs(0) + index
    if FLAGGED:
        if tl.load(flags) == 0:
            return
    b, h, hk, row, inside, source, place = rows_of(index, queries, hq, groups, rows_ptr, positions, BM, ROWS)
    wide, step = tl.arange(0, WIDE), tl.arange(0, BN)
    q_at = q_ptr + b * q_sb + h * q_sh + source[:, None] * q_st + wide[None, :] * q_sd
    q, q_low, size = take_query(q_at, inside[:, None], wide, D, K_DTYPE, PARTS)
    k_base = k_ptr + b * k_sb + hk * k_sh
    k_off = wide[:, None] * k_sd + step[None, :] * k_st
    mask_ptr += b * m_sb + h * m_sh
    mask_at = mask_ptr + source[:, None] * m_st

    begin, end, edges, wholes, where = tiles_of(inside, place, keys, behind, ahead, split_keys, BN, GEOMETRY, MASK)
    reference, moments = tl.full([BM], float("-inf"), tl.float32), no_moments(begin, MASK)
    state = no_sums(tl.zeros([BM, LANES], tl.float32), TWICE)
    for part in tl.static_range(1 if MASK else 2):
        for turn in range(edges if part == 0 else wholes):
            start, k = take_keys(turn, wholes, where, k_base, k_off, k_st, wide, keys, D, BN, part == 0)
            column = start + step
            seen = seen_of(column, column < keys, begin, end, mask_ptr, mask_at, m_ss, MASK)
            s = logits(q, q_low, k, size * scale, 0.0, 0.0, PARTS, 0, False, PRECISION)
            s, t, here, new, base = exponents(s, seen, reference, room, part == 0, MASK)
            shift = tl.where(reference == float("-inf"), 0.0, (reference - base) * LOG2E)
            state = _look(t, _moved(state, shift, ratios, MADE, TWICE), ratios, BM, BN, MADE, TWICE)
            moments = with_moments(moments, s, seen, start, here, begin, end, BN, part == 0, MASK)
            reference = new

    count, mean, m2, peak, first_s, first = moments
    n, at, unit = total_rows.to(tl.int64), (b * hq + h) * queries + row, tl.full([BM], LN2, tl.float64)
    count, mean, m2, key = count.to(tl.float64), mean.to(tl.float64), m2.to(tl.float64), first.to(tl.int64)
    peak, first_s = peak.to(tl.float64), first_s.to(tl.float64)
    fine = keep(
        fields, first_key, broken, splits, split, n, at, inside, count, mean, m2, peak, first_s, key, state, unit, ratios,
        ratios_low, table, wanted, BETWEEN, MADE, TWICE,
    )  # fmt: skip
    if BETWEEN:
        tl.store(flags, tl.max(tl.where(fine | (inside == 0), 0, 1), 0).to(tl.int8))
