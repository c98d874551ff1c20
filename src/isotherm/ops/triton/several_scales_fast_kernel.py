# mypy: ignore-errors
# ruff: noqa: PLR0915
"""The fast pass at several scales: statistics of plain attention without output (see `several_scales_sums_kernel`)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.fast_finish_kernel import add_chunk_moments, direct_moments
from isotherm.ops.triton.fast_kernel import block_of_program, chunk_moments, last_keys_of_block
from isotherm.ops.triton.several_scales_sums_kernel import add_weights, no_sums, store_scales
from isotherm.ops.triton.shared_kernel import (
    HALF_LANES,
    HIDDEN,
    LANES,
    batch_and_heads,
    first_16_columns,
    is_row_max,
    low_high,
    split_columns,
)


@triton.jit
def _add_tile(s, column, last_key, exp2_scale, reference, ratios, state, BM: tl.constexpr, BN: tl.constexpr,
              MASKED: tl.constexpr, MOMENTS: tl.constexpr, FACTORS: tl.constexpr, DOUBLES: tl.constexpr):  # fmt: skip
    """Add a tile of q·k to the state of the lanes, each part of it [rows, 4]: largest t; sums of the other keys; Σt; Σt²."""
    if BN > HALF_LANES:
        s, later = split_columns(s, BM, BN)
        state = _add_tile(s, column, last_key, exp2_scale, reference, ratios, state,
                          BM, BN // 2, MASKED, MOMENTS, FACTORS, DOUBLES)  # fmt: skip
        column += BN // 2 if BN > LANES else 1
        state = _add_tile(later, column, last_key, exp2_scale, reference, ratios, state,
                          BM, BN // 2, MASKED, MOMENTS, FACTORS, DOUBLES)  # fmt: skip
    else:
        max_t, sum_w, sum_w2, sum_wt, sum_t, sum_t2 = state
        t = s * exp2_scale - reference[:, None]
        visible_t = t
        if MASKED:
            visible = column + 2 * tl.arange(0, HALF_LANES)[None, :] <= last_key[:, None]
            t = tl.where(visible, t, HIDDEN)
            visible_t = tl.where(visible, t, 0.0)
        low_t, max_t = low_high(max_t, t)
        sum_w, sum_w2, sum_wt = add_weights(low_t, ratios, sum_w, sum_w2, sum_wt, FACTORS, DOUBLES)
        if MOMENTS:
            sum_t, sum_t2 = sum_t + visible_t, tl.fma(visible_t, visible_t, sum_t2)
        state = max_t, sum_w, sum_w2, sum_wt, sum_t, sum_t2
    return state


@triton.jit
def _summarise(s, column, last_key, BM: tl.constexpr, BN: tl.constexpr):
    """Return, per lane [rows, 4]: its first q·k, and the largest, smallest and sum of its visible ones."""
    if BN > HALF_LANES:
        s, later = split_columns(s, BM, BN)
        first, largest, smallest, total = _summarise(s, column, last_key, BM, BN // 2)
        _, high, low, more = _summarise(later, column + (BN // 2 if BN > LANES else 1), last_key, BM, BN // 2)
        largest, smallest, total = tl.maximum(largest, high), tl.minimum(smallest, low), total + more
    else:
        visible = column + 2 * tl.arange(0, HALF_LANES)[None, :] <= last_key[:, None]
        first, total = s, tl.where(visible, s, 0.0)
        largest, smallest = tl.where(visible, s, float("-inf")), tl.where(visible, s, float("inf"))
    return first, largest, smallest, total


@triton.jit
def _reference_of(s, last_key, exp2_scale, room, BM: tl.constexpr, BN: tl.constexpr, INTERPOLATE: tl.constexpr):
    """Return, each [rows]: the reference in log₂ units, and q·k of the first key.

    The reference is the largest of the first 16 logits, as in `fast_kernel`, or above it. Where logits are as large as
    without 1/√d, the largest of thousands of logits is so far above the first 16 that squares of its weights overflow. The
    first 16 logits predict that: the distance from their mean down to their smallest estimates the distance from the
    reference up to the row's largest. If it exceeds a quarter of the room, the reference rises by it, by 4/5 of the room at
    most. With INTERPOLATE, the reference is instead the largest logit that another lane holds: the very largest is kept out
    of the sums and may be far above all that is summed.

    The code works in the lanes of the sums; otherwise tiles would move between lanes.
    """
    first, largest, smallest, total = _summarise(first_16_columns(s, BM, BN), 0, last_key, BM, 16)
    first_qk = tl.sum(tl.where(tl.arange(0, HALF_LANES)[None, :] == 0, first, 0.0), 1)
    count = tl.minimum(tl.maximum(last_key + 1, 1), 16).to(tl.float32)
    rise = (tl.sum(total, 1) / count - tl.min(smallest, 1)) * exp2_scale
    rise = tl.where(rise > 0.25 * room, tl.minimum(rise, 0.8 * room), 0.0)
    second = tl.max(tl.where(is_row_max(largest), float("-inf"), largest), 1)
    largest = tl.max(largest, 1)
    if INTERPOLATE:
        largest = tl.where(second > float("-inf"), second, largest)
    return tl.where(largest > float("-inf"), largest * exp2_scale + rise, 0.0), first_qk


@triton.jit(do_not_specialize=["queries", "keys", "blocks", "heads", "hq", "groups", "total_rows", "chunk", "stored",
                               "scales"])  # fmt: skip
def fast_scales(
        q_desc, k_desc, fields, first_key, broken, flags, positions, scatter, key_means, table,
        queries, keys, blocks, heads, hq, groups, exp2_scale, ln2_high, ln2_low, ratios, ratios_low, room, total_rows,
        chunk, stored, scales, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
        CAUSAL: tl.constexpr, KEY_SUMS: tl.constexpr, OVERLAP: tl.constexpr, INTERPOLATE: tl.constexpr,
        FACTORS: tl.constexpr, DOUBLES: tl.constexpr):  # fmt: skip
    """Compute BM rows of one head at `scales` scales, and flag the block if it must be computed again.

    `exp2_scale` and `ln2` are those of the lowest scale, whose ratio is 1.
    """
    head, block = block_of_program(CAUSAL)
    if head >= heads:
        return
    b, h, hk = batch_and_heads(head, hq, groups)
    rows = block * BM + tl.arange(0, BM)
    row_exists, last_key = rows < queries, tl.full([BM], 0, tl.int32) + (keys - 1)
    key_count, full_tiles = keys, keys // BN
    if CAUSAL:
        last_key = tl.minimum(last_key, tl.load(positions + tl.minimum(rows, queries - 1)).to(tl.int32))
        first, last = last_keys_of_block(block, positions, queries, keys, BM)
        key_count = tl.maximum(last + 1, 1)
        full_tiles = tl.maximum(first + 1, 0) // BN
    tiles = (key_count + BN - 1) // BN
    q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)  # [rows, d]
    reference, first_qk = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    z = tl.zeros([BM, HALF_LANES], tl.float32)
    state = no_sums(z, DOUBLES) + (z, z)  # noqa: RUF005
    summed_tiles = 0
    if KEY_SUMS:
        summed_tiles = full_tiles * BN // chunk * (chunk // BN)
    # Part 0: tiles in whole chunks, whose moments come from the key sums. Part 1: other full tiles. Part 2: edge tiles.
    for part in tl.static_range(0 if KEY_SUMS else 1, 3):
        begin = 0 if part == 0 else (summed_tiles if part == 1 else full_tiles)
        end = summed_tiles if part == 0 else (full_tiles if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)  # [rows, keys]
            if i == 0:
                reference, first_qk = _reference_of(s, last_key, exp2_scale, room, BM, BN, INTERPOLATE)
            state = _add_tile(
                s, i * BN, last_key, exp2_scale, reference, ratios, state, BM, BN, part == 2, part > 0, FACTORS, DOUBLES
            )

    max_t, sum_w, sum_w2, sum_wt, sum_t, sum_t2 = state
    ln2 = tl.full([BM], 0.0, tl.float64) + ln2_high + ln2_low
    base, direct_keys = reference.to(tl.float64), last_key + 1 - summed_tiles * BN
    mean, m2, blurred = direct_moments(tl.sum(sum_t, 1), tl.sum(sum_t2, 1), direct_keys, base, ln2, KEY_SUMS)
    if KEY_SUMS:
        if OVERLAP:
            gdc_wait()  # the key sums of each chunk lie in the memory of the fields until their kernel ends
        chunk_mean, chunk_error, chunk_m2 = (
            tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
        )  # fmt: skip
        if summed_tiles > 0:
            kv = (b * (hq // groups) + hk).to(tl.int64)
            place = kv * stored + tl.minimum(summed_tiles * BN // chunk, stored) - 1
            chunk_mean, chunk_error, chunk_m2 = chunk_moments(q_desc, scatter, key_means, b, h, block, place, BM, D)
        mean, m2, doubtful = add_chunk_moments(
            mean, m2, direct_keys, last_key + 1, chunk_mean, chunk_error, chunk_m2, ln2 * exp2_scale
        )
        blurred |= doubtful
    field_stride, at = total_rows.to(tl.int64), head.to(tl.int64) * queries + rows
    has_keys, row_max_t = last_key >= 0, tl.max(max_t, 1)
    count = tl.where(has_keys, last_key + 1, 0).to(tl.float64)
    peak = (base + tl.where(has_keys, row_max_t, 0.0).to(tl.float64)) * ln2
    first_logit, key = first_qk.to(tl.float64) * ln2 * exp2_scale, tl.zeros([BM], tl.int64)
    fine = store_scales(
        fields, first_key, broken, 1, 0, field_stride, at, row_exists, count, mean, m2, peak, first_logit, key,
        (max_t, sum_w, sum_w2, sum_wt), ln2, ratios, ratios_low, table, scales, INTERPOLATE, FACTORS, DOUBLES,
    )  # fmt: skip
    if not INTERPOLATE:  # weights can be too small only if the reference was raised above all logits
        fine = (fine | (row_max_t > -room / 16)) & (tl.abs(row_max_t) <= room)
    fine &= (blurred & (last_key > 0)) == 0
    flag = tl.max(tl.where(fine | (has_keys == 0) | (row_exists == 0), 0, 1), 0).to(tl.int8)
    tl.store(flags + head.to(tl.int64) * blocks + block, flag)
