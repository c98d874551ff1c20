# mypy: ignore-errors
# ruff: noqa: PLR0912, PLR0915, SIM102
"""Output and every row statistic of plain attention (no mask, bias, cap or window), as fast as the softmax allows.

What keeps the softmax small beside the two matrix products:

- Weights are 2^(t − r) for a reference r that stays put: the row's largest logit among the first 16 keys. No running
  maximum, so no rescaling of the output and no exchange between lanes until the row is done. float32 and bfloat16 have
  room for weights up to 2^50; a row that needs more is marked, and done again by `careful_kernel`.
- The largest key is left out of the sums by subtraction at the end (`finish_kernel`). That would cost a nearly frozen row
  its digits (`RowStats.rest` is all there is to such a row), so these are done again, too.
- Weights are never negative, so the largest is found among their bits as whole numbers: Hopper compares three at a time.
- Sums stay in the lanes ([rows, 8]: the eight columns a quad of lanes holds) until the last block.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from isotherm.ops.triton.lanes import HIDDEN, LANES, first_columns, halves


@triton.jit
def _weigh(s, column, limit, factor, reference, MASKED: tl.constexpr):
    """Weights, their exponents, and the same with hidden keys at 0."""
    t = s * factor - reference[:, None]
    u = t
    if MASKED:
        seen = column[None, :] <= limit[:, None]
        t = tl.where(seen, t, HIDDEN)
        u = tl.where(seen, t, 0.0)
    return tl.exp2(t), t, u


@triton.jit
def _add(w, t, u, big, total, total2, cross, sums, squares, BM: tl.constexpr, BN: tl.constexpr, MOMENTS: tl.constexpr):
    """The sums with a tile's part added, eight columns after another: one instruction each, with no sum of the tile alone."""
    w, x = halves(w, BM, BN)
    t, y = halves(t, BM, BN)
    u, z = halves(u, BM, BN)
    if BN == 16:
        big = tl.maximum(big, tl.maximum(w.to(tl.int32, bitcast=True), x.to(tl.int32, bitcast=True)))
        total = total + w + x
        total2 = tl.fma(x, x, tl.fma(w, w, total2))
        cross = tl.fma(x, y, tl.fma(w, t, cross))
        if MOMENTS:
            sums = sums + u + z
            squares = tl.fma(z, z, tl.fma(u, u, squares))
    else:
        big, total, total2, cross, sums, squares = _add(
            w, t, u, big, total, total2, cross, sums, squares, BM, BN // 2, MOMENTS
        )
        big, total, total2, cross, sums, squares = _add(
            x, y, z, big, total, total2, cross, sums, squares, BM, BN // 2, MOMENTS
        )
    return big, total, total2, cross, sums, squares


@triton.jit
def _look(s, column, limit, factor, reference, big, total, total2, cross, sums, squares, BM: tl.constexpr,
          BN: tl.constexpr, PIECE: tl.constexpr, MASKED: tl.constexpr, MOMENTS: tl.constexpr):  # fmt: skip
    """A tile's weights, and the sums with its part added; PIECE columns after another."""
    if BN > PIECE:
        s, rest = halves(s, BM, BN)
        w, big, total, total2, cross, sums, squares = _look(
            s, column, limit, factor, reference, big, total, total2, cross, sums, squares, BM, BN // 2, PIECE, MASKED,
            MOMENTS,
        )  # fmt: skip
        x, big, total, total2, cross, sums, squares = _look(
            rest, column + BN // 2, limit, factor, reference, big, total, total2, cross, sums, squares, BM, BN // 2,
            PIECE, MASKED, MOMENTS,
        )  # fmt: skip
        w = tl.join(w, x).permute(0, 2, 1).reshape(BM, BN)
    else:
        w, t, u = _weigh(s, column + tl.arange(0, BN), limit, factor, reference, MASKED)
        big, total, total2, cross, sums, squares = _add(
            w, t, u, big, total, total2, cross, sums, squares, BM, BN, MOMENTS
        )
    return w, big, total, total2, cross, sums, squares


@triton.jit
def _walk(q, k_desc, v_desc, b, hk, begin, end, start, limit, factor, state, D: tl.constexpr, BM: tl.constexpr,
          BN: tl.constexpr, PIECE: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr, MOMENTS: tl.constexpr,
          OUTPUT: tl.constexpr):  # fmt: skip
    """The state with blocks `begin` to `end` of BN keys added; from block `start`, the first, it takes the reference."""
    reference, sink, big, total, total2, cross, sums, squares, o = state
    for i in tl.range(begin, end, num_stages=STAGES):
        s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
        if i == start:
            reference, sink = reference_of(s, start * BN, limit, factor, BM, BN)
        w, big, total, total2, cross, sums, squares = _look(
            s,
            i * BN,
            limit,
            factor,
            reference,
            big,
            total,
            total2,
            cross,
            sums,
            squares,
            BM,
            BN,
            PIECE,
            MASKED,
            MOMENTS,
        )
        if OUTPUT:
            v = v_desc.load([b, hk, i * BN, 0]).reshape(BN, D)
            o = tl.dot(w.to(v.dtype), v, o)
    return reference, sink, big, total, total2, cross, sums, squares, o


@triton.jit
def block_of(CAUSAL: tl.constexpr):
    """Head and block of rows of this program by its place in the grid (`dense.grid`), without a division."""
    if CAUSAL:  # heads in sections that fit the cache; in each the longest rows first
        head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        block = tl.num_programs(1) - 1 - tl.program_id(1)
    else:
        head = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        block = tl.program_id(0)
    return head, block


@triton.jit
def heads_of(head, hq, groups):
    """Batch, query head and key head of the `head`-th of all query heads."""
    b = head // hq
    h = head - b * hq
    return b, h, h // groups


@triton.jit
def reach_of(block, positions, queries, keys, BM: tl.constexpr):
    """The last keys that the first and the last row of a block see; positions ascend."""
    first = tl.minimum(tl.load(positions + block * BM).to(tl.int32), keys - 1)
    last = tl.minimum(tl.load(positions + tl.minimum(block * BM + BM, queries) - 1).to(tl.int32), keys - 1)
    return first, last


@triton.jit
def reference_of(s, begin, limit, factor, BM: tl.constexpr, BN: tl.constexpr):
    """What weights are relative to: the largest of the first 16 logits; and the first of them, the sink's."""
    few, column = first_columns(s, BM, BN), tl.arange(0, 16)[None, :]
    sink = tl.sum(tl.where(column == 0, few, 0.0), 1)
    largest = tl.max(tl.where(begin + column <= limit[:, None], few, float("-inf")), 1)
    return tl.where(largest > float("-inf"), largest, 0.0) * factor, sink


@triton.jit
def with_sums(q_desc, parts, centre, b, h, block, place, BM: tl.constexpr, D: tl.constexpr):
    """Of the keys whose sums (`gram_kernel`) lie at `place`: q·k̄, what `finish_kernel` calls reach, and Σ(q·k − q·k̄)²."""
    wide = tl.arange(0, D)
    at = parts + place * (2 * D * D) + wide[:, None] * D + wide[None, :]
    mean, root = tl.load(centre + place * (2 * D) + wide), tl.load(centre + place * (2 * D) + D + wide)
    if D <= 64:  # all at once, to wait once; larger ones would crowd out other programs
        low, high = tl.load(at + D * D), tl.load(at)
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
        product = tl.dot(q, high, tl.dot(q, low))
    else:
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
        product = tl.dot(q, tl.load(at + D * D))
        product = tl.dot(q, tl.load(at), product)
    q = q.to(tl.float32)
    return tl.sum(q * mean[None, :], 1), tl.sum(tl.abs(q) * root[None, :], 1), tl.sum(product * q, 1)


@triton.jit
def _keep_pair(raw, first, second, inside):
    """Two values of a row, where `finish_kernel` looks for them."""
    half = tl.arange(0, 2)[None, :]
    tl.store(raw[:, None] + half, tl.join(first, second), mask=inside[:, None])


@triton.jit
def _keep(raw, n, a, b, c, d, e, f, g, h, inside):
    """Eight values of a row, where `finish_kernel` looks for them; all at once, to exchange lanes once."""
    ab_cd, ef_gh = tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h))
    half, pair, four = tl.arange(0, 2)[None, :, None, None], tl.arange(0, 2)[None, None, :, None], tl.arange(0, 2)
    at = raw[:, None, None, None] + half + (pair + 2 * four[None, None, None, :]) * (2 * n)
    tl.store(at, tl.join(ab_cd, ef_gh), mask=inside[:, None, None, None])


@triton.jit(
    do_not_specialize=[
        "split_tiles",
        "chunk",
        "kept",
        "queries",
        "keys",
        "blocks",
        "heads",
        "hq",
        "total_rows",
    ]
)
def dense(q_desc, k_desc, edge_desc, v_desc, out_desc, q_ptr, rows_ptr, q_sb, q_sh, q_st,
          raw, positions, parts, centre, queries, keys, blocks, heads, hq, groups,
          factor, total_rows, split_tiles, chunk, kept,
          D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EDGE: tl.constexpr, PIECE: tl.constexpr,
          STAGES: tl.constexpr, CAUSAL: tl.constexpr, OUTPUT: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
          CHUNKS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """One block of BM rows of one head, over the keys of one split; its sums go to `raw`, for `finish_kernel`.

    Which one is told by the program's place in the grid, without a division: blocks of rows, heads and sections of heads.
    """
    if EARLY:
        gdc_launch_dependents()
    head, block = block_of(CAUSAL)
    if head >= heads:
        return
    split = 0
    if SPLIT:
        split = block // blocks
        block -= split * blocks
    b, h, hk = heads_of(head, hq, groups)
    rows = block * BM + tl.arange(0, BM)
    inside = rows < queries
    limit = tl.full([BM], 0, tl.int32) + (keys - 1)
    seen, whole = keys, keys // BN
    source = tl.minimum(rows, queries - 1).to(tl.int64)
    if ROWS:
        source = tl.load(rows_ptr + source)
    if CAUSAL:
        limit = tl.minimum(limit, tl.load(positions + source).to(tl.int32))
        if ROWS:
            first, last = tl.min(limit, 0), tl.max(limit, 0)
        else:
            first, last = reach_of(block, positions, queries, keys, BM)
        seen = tl.maximum(last + 1, 1)
        whole = tl.maximum(first + 1, 0) // BN
    start_tile = split * split_tiles
    FINER: tl.constexpr = BN // EDGE
    edges = tl.minimum((seen + EDGE - 1) // EDGE, (start_tile + split_tiles) * FINER)
    whole = tl.minimum(tl.maximum(whole, start_tile), start_tile + split_tiles)
    n = total_rows.to(tl.int64)
    raw += 2 * (head.to(tl.int64) * queries + rows)
    if SPLIT:
        raw += split.to(tl.int64) * 16 * n
    nothing = tl.zeros([BM], tl.float32)
    if CAUSAL and ROWS:
        if start_tile * FINER >= edges:  # these rows end before this split begins
            none = (nothing.to(tl.int32) - 1).to(tl.float32, bitcast=True)
            _keep(raw, n, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, inside)
            _keep_pair(raw + 8 * n, none, nothing, inside)
            return
    big, none = tl.zeros([BM, LANES], tl.int32), tl.zeros([BM, LANES], tl.float32)
    state = nothing, nothing, big, none, none, none, none, none, tl.zeros([BM, D], tl.float32)
    if ROWS:
        wide = tl.arange(0, D)
        q_at = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + source[:, None] * q_st + wide[None, :]
        q = tl.load(q_at)
    else:
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
    # Whole chunks of keys first, whose moments `gram_kernel` has; then whole blocks; then blocks some rows see part of.
    known = start_tile
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
        state = _walk(q, k_desc, v_desc, b, hk, start_tile, known, start_tile, limit, factor, state,
                      D, BM, BN, PIECE, STAGES, False, False, OUTPUT)  # fmt: skip
    state = _walk(q, k_desc, v_desc, b, hk, known, whole, start_tile, limit, factor, state,
                  D, BM, BN, PIECE, STAGES, False, True, OUTPUT)  # fmt: skip
    state = _walk(q, edge_desc, v_desc, b, hk, whole * FINER, edges, start_tile * FINER, limit, factor, state,
                  D, BM, EDGE, PIECE, STAGES, True, True, OUTPUT)  # fmt: skip
    reference, sink, big, total, total2, cross, sums, squares, o = state

    total = tl.sum(total, 1)
    if OUTPUT:
        o = o * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
        out_desc.store([b, h, block * BM, 0], o.to(q.dtype).reshape(1, 1, BM, D))
    # Of the keys of this split alone: `limit` is the index of the last seen among them.
    limit = tl.minimum(limit, (start_tile + split_tiles) * BN - 1) - start_tile * BN
    if CHUNKS and EARLY:
        gdc_wait()  # the sums of the keys lay where the values go
    direct = limit + 1 - (known - start_tile) * BN
    largest, total2, cross = tl.max(big, 1).to(tl.float32, bitcast=True), tl.sum(total2, 1), tl.sum(cross, 1)
    _keep(raw, n, reference, largest, total, total2, cross, sink, tl.sum(sums, 1), tl.sum(squares, 1), inside)
    limit, direct = limit.to(tl.float32, bitcast=True), direct.to(tl.float32, bitcast=True)
    if CHUNKS:
        along, reach, square = nothing, nothing, nothing
        if known > 0:
            kv = (b * (hq // groups) + hk).to(tl.int64)
            place = kv * kept + tl.minimum(known * BN // chunk, kept) - 1
            along, reach, square = with_sums(q_desc, parts, centre, b, h, block, place, BM, D)
        _keep(raw + 8 * n, n, limit, direct, along, reach, square, nothing, nothing, nothing, inside)
    else:
        _keep_pair(raw + 8 * n, limit, direct, inside)
