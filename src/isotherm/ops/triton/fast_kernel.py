# mypy: ignore-errors
# ruff: noqa: PLR0912, PLR0915, SIM102
"""The fast pass: output and raw sums of plain attention (no mask, bias, cap or window) in half precision.

The softmax must cost little beside the two matrix products. Four decisions see to that:

- Weights are w = 2^t with t = s − reference, in log₂ units. The reference of a row is fixed: the largest logit among its
  first 16 keys. So there is no running maximum, no rescaling of the output, and no exchange between lanes until the end of
  the row. float32 and bfloat16 have room for weights up to 2^50; `fast_finish_kernel` marks a row that needs more, and
  `fast_recompute_kernel` computes it again.
- The largest key is subtracted from the sums at the end (in `fast_finish_kernel`) instead of being left out. A nearly
  frozen row loses its digits by that, so such rows are marked, too.
- Weights are never negative, so their bits order them as integers do: Hopper finds the largest of three integers at once.
- Sums stay in the lanes, as [rows, 8], until the last block of keys.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from isotherm.ops.triton.shared_kernel import HIDDEN, LANES, batch_and_heads, first_16_columns, split_halves


@triton.jit
def _weights(s, column, last_key, exp2_scale, reference, MASKED: tl.constexpr):
    """Return, each [rows, keys]: w, t, and t with 0 for hidden keys."""
    t = s * exp2_scale - reference[:, None]
    visible_t = t
    if MASKED:
        visible = column[None, :] <= last_key[:, None]
        t = tl.where(visible, t, HIDDEN)
        visible_t = tl.where(visible, t, 0.0)
    return tl.exp2(t), t, visible_t


@triton.jit
def _add_columns(w, t, visible_t, sums, BM: tl.constexpr, BN: tl.constexpr, MOMENTS: tl.constexpr):
    """Add a tile to the sums [rows, 8], eight columns after another: one instruction each, without a sum of the tile alone."""
    w, w_later = split_halves(w, BM, BN)
    t, t_later = split_halves(t, BM, BN)
    visible_t, visible_later = split_halves(visible_t, BM, BN)
    if BN == 16:
        max_w_bits, sum_w, sum_w2, sum_wt, sum_t, sum_t2 = sums
        max_w_bits = tl.maximum(
            max_w_bits, tl.maximum(w.to(tl.int32, bitcast=True), w_later.to(tl.int32, bitcast=True))
        )
        sum_w = sum_w + w + w_later
        sum_w2 = tl.fma(w_later, w_later, tl.fma(w, w, sum_w2))
        sum_wt = tl.fma(w_later, t_later, tl.fma(w, t, sum_wt))
        if MOMENTS:
            sum_t = sum_t + visible_t + visible_later
            sum_t2 = tl.fma(visible_later, visible_later, tl.fma(visible_t, visible_t, sum_t2))
        sums = max_w_bits, sum_w, sum_w2, sum_wt, sum_t, sum_t2
    else:
        sums = _add_columns(w, t, visible_t, sums, BM, BN // 2, MOMENTS)
        sums = _add_columns(w_later, t_later, visible_later, sums, BM, BN // 2, MOMENTS)
    return sums


@triton.jit
def _add_tile(s, column, last_key, exp2_scale, reference, sums, BM: tl.constexpr, BN: tl.constexpr, PIECE: tl.constexpr,
              MASKED: tl.constexpr, MOMENTS: tl.constexpr):  # fmt: skip
    """Return the weights [rows, keys] of a tile of logits, and the sums with the tile added, PIECE columns after another."""
    if BN > PIECE:
        s, s_later = split_halves(s, BM, BN)
        w, sums = _add_tile(s, column, last_key, exp2_scale, reference, sums, BM, BN // 2, PIECE, MASKED, MOMENTS)
        w_later, sums = _add_tile(
            s_later, column + BN // 2, last_key, exp2_scale, reference, sums, BM, BN // 2, PIECE, MASKED, MOMENTS
        )
        w = tl.join(w, w_later).permute(0, 2, 1).reshape(BM, BN)
    else:
        w, t, visible_t = _weights(s, column + tl.arange(0, BN), last_key, exp2_scale, reference, MASKED)
        sums = _add_columns(w, t, visible_t, sums, BM, BN, MOMENTS)
    return w, sums


@triton.jit
def _add_tiles(q, k_desc, v_desc, b, hk, begin, end, first_tile, last_key, exp2_scale, state, D: tl.constexpr,
               DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PIECE: tl.constexpr, STAGES: tl.constexpr,
               MASKED: tl.constexpr, MOMENTS: tl.constexpr, OUTPUT: tl.constexpr):  # fmt: skip
    """Add the tiles `begin` to `end` of BN keys to the state. `first_tile` of a row determines the reference."""
    reference, first_qk, sums, o = state
    for i in tl.range(begin, end, num_stages=STAGES):
        s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)  # [rows, keys]
        if i == first_tile:
            reference, first_qk = _reference_of(s, first_tile * BN, last_key, exp2_scale, BM, BN)
        w, sums = _add_tile(s, i * BN, last_key, exp2_scale, reference, sums, BM, BN, PIECE, MASKED, MOMENTS)
        if OUTPUT:
            v = v_desc.load([b, hk, i * BN, 0]).reshape(BN, DV)  # [keys, dv]
            o = tl.dot(w.to(v.dtype), v, o)  # [rows, dv]
    return reference, first_qk, sums, o


@triton.jit
def block_of_program(CAUSAL: tl.constexpr):
    """Return head and block of rows of this program from its place in the grid (`fast.grid`), without a division."""
    if CAUSAL:  # heads in sections that fit the cache; in each section the longest rows come first
        head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        block = tl.num_programs(1) - 1 - tl.program_id(1)
    else:
        head = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        block = tl.program_id(0)
    return head, block


@triton.jit
def last_keys_of_block(block, positions, queries, keys, BM: tl.constexpr):
    """Return the last keys that the first and the last row of a block see. Positions ascend."""
    first = tl.minimum(tl.load(positions + block * BM).to(tl.int32), keys - 1)
    last = tl.minimum(tl.load(positions + tl.minimum(block * BM + BM, queries) - 1).to(tl.int32), keys - 1)
    return first, last


@triton.jit
def _reference_of(s, begin, last_key, exp2_scale, BM: tl.constexpr, BN: tl.constexpr):
    """Return, each [rows]: the reference (the largest of the first 16 logits, in log₂ units), and q·k of the first key."""
    s, column = first_16_columns(s, BM, BN), tl.arange(0, 16)[None, :]  # [rows, 16]
    first_qk = tl.sum(tl.where(column == 0, s, 0.0), 1)
    largest = tl.max(tl.where(begin + column <= last_key[:, None], s, float("-inf")), 1)
    return tl.where(largest > float("-inf"), largest, 0.0) * exp2_scale, first_qk


@triton.jit
def chunk_moments(q_desc, scatter, key_means, b, h, block, place, BM: tl.constexpr, D: tl.constexpr):
    """Return, each [rows], chunk_mean, chunk_error and chunk_m2 of the keys whose sums lie at `place`.

    `fast_finish_kernel` defines the three; `fast_key_sums_kernel` makes the sums.
    """
    dims = tl.arange(0, D)
    at = scatter + place * (2 * D * D) + dims[:, None] * D + dims[None, :]  # [d, d]
    mean, root = tl.load(key_means + place * (2 * D) + dims), tl.load(key_means + place * (2 * D) + D + dims)  # [d]
    if D <= 64:  # load everything at once, to wait once; for larger D that would cost registers and so programs
        low, high = tl.load(at + D * D), tl.load(at)
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
        product = tl.dot(q, high, tl.dot(q, low))  # [rows, d]
    else:
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
        product = tl.dot(q, tl.load(at + D * D))
        product = tl.dot(q, tl.load(at), product)
    q = q.to(tl.float32)
    return tl.sum(q * mean[None, :], 1), tl.sum(tl.abs(q) * root[None, :], 1), tl.sum(product * q, 1)


@triton.jit
def _store_2(raw, first, second, row_exists):
    """Store two consecutive raw sums of each row."""
    half = tl.arange(0, 2)[None, :]
    tl.store(raw[:, None] + half, tl.join(first, second), mask=row_exists[:, None])


@triton.jit
def _store_8(raw, field_stride, a, b, c, d, e, f, g, h, row_exists):
    """Store eight consecutive raw sums of each row; all at once, to exchange lanes once."""
    ab_cd, ef_gh = tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h))
    half, pair, four = tl.arange(0, 2)[None, :, None, None], tl.arange(0, 2)[None, None, :, None], tl.arange(0, 2)
    at = raw[:, None, None, None] + half + (pair + 2 * four[None, None, None, :]) * (2 * field_stride)
    tl.store(at, tl.join(ab_cd, ef_gh), mask=row_exists[:, None, None, None])  # [rows, 2, 2, 2]


@triton.jit(do_not_specialize=["split_tiles", "chunk", "stored", "queries", "keys", "blocks", "heads", "hq",
                               "total_rows"])  # fmt: skip
def fast_pass(q_desc, k_desc, edge_desc, v_desc, out_desc, q_ptr, rows_ptr, q_sb, q_sh, q_st,
              raw, positions, scatter, key_means, queries, keys, blocks, heads, hq, groups,
              exp2_scale, total_rows, split_tiles, chunk, stored,
              WIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
              EDGE: tl.constexpr, PIECE: tl.constexpr,
              STAGES: tl.constexpr, CAUSAL: tl.constexpr, OUTPUT: tl.constexpr, SAMPLED: tl.constexpr,
              SPLIT: tl.constexpr, KEY_SUMS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Compute BM rows of one head over the keys of one split, and store their raw sums for `fast_finish_kernel`.

    D and DV are powers of two: the bulk copy fills a tile with zeros beyond the tensor's own WIDTH, and leaves them out again.
    """
    if OVERLAP:
        gdc_launch_dependents()
    head, block = block_of_program(CAUSAL)
    if head >= heads:
        return
    split = 0
    if SPLIT:
        split = block // blocks
        block -= split * blocks
    b, h, hk = batch_and_heads(head, hq, groups)
    rows = block * BM + tl.arange(0, BM)
    row_exists = rows < queries
    last_key = tl.full([BM], 0, tl.int32) + (keys - 1)  # the last key that each row sees
    key_count, full_tiles = keys, keys // BN  # seen by some row; tiles that every row sees in full
    query = tl.minimum(rows, queries - 1).to(tl.int64)
    if SAMPLED:
        query = tl.load(rows_ptr + query)
    if CAUSAL:
        last_key = tl.minimum(last_key, tl.load(positions + query).to(tl.int32))
        if SAMPLED:
            first, last = tl.min(last_key, 0), tl.max(last_key, 0)
        else:
            first, last = last_keys_of_block(block, positions, queries, keys, BM)
        key_count = tl.maximum(last + 1, 1)
        full_tiles = tl.maximum(first + 1, 0) // BN
    first_tile = split * split_tiles
    FINER: tl.constexpr = BN // EDGE  # tiles that some rows see in part have EDGE keys
    edge_end = tl.minimum((key_count + EDGE - 1) // EDGE, (first_tile + split_tiles) * FINER)
    full_tiles = tl.minimum(tl.maximum(full_tiles, first_tile), first_tile + split_tiles)
    field_stride = total_rows.to(tl.int64)
    raw += 2 * (head.to(tl.int64) * queries + rows)
    if SPLIT:
        raw += split.to(tl.int64) * 16 * field_stride
    zero = tl.zeros([BM], tl.float32)
    if CAUSAL and SAMPLED:
        if first_tile * FINER >= edge_end:  # these rows end before this split begins
            no_key = (zero.to(tl.int32) - 1).to(tl.float32, bitcast=True)
            _store_8(raw, field_stride, zero, zero, zero, zero, zero, zero, zero, zero, row_exists)
            _store_2(raw + 8 * field_stride, no_key, zero, row_exists)
            return
    max_w_bits, z = tl.zeros([BM, LANES], tl.int32), tl.zeros([BM, LANES], tl.float32)
    state = zero, zero, (max_w_bits, z, z, z, z, z), tl.zeros([BM, DV], tl.float32)
    if SAMPLED:
        dims = tl.arange(0, D)
        q_at = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + query[:, None] * q_st + dims[None, :]
        q = tl.load(q_at, mask=(dims < WIDTH)[None, :], other=0.0) if WIDTH < D else tl.load(q_at)  # [rows, d]
    else:
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)  # [rows, d]
    # Tiles in whole chunks come first: the key sums give their moments. Then the other full tiles, then the edge tiles.
    summed_tiles = first_tile
    if KEY_SUMS:
        summed_tiles = full_tiles * BN // chunk * (chunk // BN)
        state = _add_tiles(q, k_desc, v_desc, b, hk, first_tile, summed_tiles, first_tile, last_key, exp2_scale, state,
                           D, DV, BM, BN, PIECE, STAGES, False, False, OUTPUT)  # fmt: skip
    state = _add_tiles(q, k_desc, v_desc, b, hk, summed_tiles, full_tiles, first_tile, last_key, exp2_scale, state,
                       D, DV, BM, BN, PIECE, STAGES, False, True, OUTPUT)  # fmt: skip
    state = _add_tiles(q, edge_desc, v_desc, b, hk, full_tiles * FINER, edge_end, first_tile * FINER, last_key,
                       exp2_scale, state, D, DV, BM, EDGE, PIECE, STAGES, True, True, OUTPUT)  # fmt: skip
    reference, first_qk, sums, o = state
    max_w_bits, sum_w, sum_w2, sum_wt, sum_t, sum_t2 = sums

    sum_w = tl.sum(sum_w, 1)  # [rows]
    if OUTPUT:
        o = o * (1.0 / tl.where(sum_w > 0, sum_w, 1.0))[:, None]
        out_desc.store([b, h, block * BM, 0], o.to(q.dtype).reshape(1, 1, BM, DV))
    # From here on `last_key` counts from the first key of this split.
    last_key = tl.minimum(last_key, (first_tile + split_tiles) * BN - 1) - first_tile * BN
    if KEY_SUMS and OVERLAP:
        gdc_wait()  # the key sums of each chunk lie in the memory of `raw` until their kernel ends
    direct_keys = last_key + 1 - (summed_tiles - first_tile) * BN
    max_w, sum_w2, sum_wt = tl.max(max_w_bits, 1).to(tl.float32, bitcast=True), tl.sum(sum_w2, 1), tl.sum(sum_wt, 1)
    _store_8(raw, field_stride, reference, max_w, sum_w, sum_w2, sum_wt, first_qk, tl.sum(sum_t, 1), tl.sum(sum_t2, 1),
             row_exists)  # fmt: skip
    last_key, direct_keys = last_key.to(tl.float32, bitcast=True), direct_keys.to(tl.float32, bitcast=True)
    if KEY_SUMS:
        chunk_mean, chunk_error, chunk_m2 = zero, zero, zero
        if summed_tiles > 0:
            kv = (b * (hq // groups) + hk).to(tl.int64)
            place = kv * stored + tl.minimum(summed_tiles * BN // chunk, stored) - 1
            chunk_mean, chunk_error, chunk_m2 = chunk_moments(q_desc, scatter, key_means, b, h, block, place, BM, D)
        _store_8(raw + 8 * field_stride, field_stride, last_key, direct_keys, chunk_mean, chunk_error, chunk_m2,
                 zero, zero, zero, row_exists)  # fmt: skip
    else:
        _store_2(raw + 8 * field_stride, last_key, direct_keys, row_exists)
