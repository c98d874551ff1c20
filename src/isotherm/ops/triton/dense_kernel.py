# mypy: ignore-errors
# ruff: noqa: PLR0912, PLR0915, SIM102
"""Output and every row statistic of plain attention (no mask, bias, cap or window), as fast as the softmax allows.

What keeps the softmax small beside the two matrix products:

- Weights are 2^(t − r) for a reference r that stays put: the row's largest logit in the first block of keys. No running
  maximum, so no rescaling of the output and no exchange between lanes until the row is done. float32 and bfloat16 have
  room for weights up to 2^50; a row that needs more is flagged and done again by the kernel of `attend_kernel`.
- The largest key is left out of the sums by subtraction at the end (`finish_kernel`). That would cost a nearly frozen row
  its digits (`RowStats.rest` is all there is to such a row), so these are flagged and done again, too.
- Weights are never negative, so the largest is found among their bits as whole numbers: Hopper compares three at a time.
- Sums stay in the lanes ([rows, 8]: the eight columns a quad of lanes holds) until the last block.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

HIDDEN = tl.constexpr(-16384.0)


@triton.jit
def _weigh(s, column, limit, factor, reference, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr):
    """A block's weights, and per lane: the largest, Σw, Σw², Σwt, Σt, Σt²; each [BM, 8]."""
    t = s * factor - reference[:, None]
    u = t
    if MASKED:
        seen = column[None, :] <= limit[:, None]
        t = tl.where(seen, t, HIDDEN)
        u = tl.where(seen, t, 0.0)
    w = tl.exp2(t)
    w3 = w.reshape(BM, BN // 8, 8)
    t3 = t.reshape(BM, BN // 8, 8)
    u3 = u.reshape(BM, BN // 8, 8)
    big = tl.max(w3.to(tl.int32, bitcast=True), 1)
    total, total2, cross = tl.sum(w3, 1), tl.sum(w3 * w3, 1), tl.sum(w3 * t3, 1)
    return w, big, total, total2, cross, tl.sum(u3, 1), tl.sum(u3 * u3, 1)


@triton.jit
def with_sums(q_desc, parts, centre, b, h, block, place, BM: tl.constexpr, D: tl.constexpr):
    """q·k̄, Σ|qᵢ|√Σkᵢ² and Σ(q·k − q·k̄)² of the keys whose sums (`gram_kernel`) lie at `place`."""
    wide = tl.arange(0, D)
    at = parts + place * (3 * D * D) + wide[:, None] * D + wide[None, :]
    mean, root = tl.load(centre + place * (2 * D) + wide), tl.load(centre + place * (2 * D) + D + wide)
    if D <= 64:  # all at once, to wait once; larger ones would crowd out other programs
        low, middle, high = tl.load(at + 2 * D * D), tl.load(at + D * D), tl.load(at)
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
        product = tl.dot(q, high, tl.dot(q, middle, tl.dot(q, low)))
    else:
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
        product = tl.dot(q, tl.load(at + 2 * D * D))
        product = tl.dot(q, tl.load(at + D * D), product)
        product = tl.dot(q, tl.load(at), product)
    q = q.to(tl.float32)
    return tl.sum(q * mean[None, :], 1), tl.sum(tl.abs(q) * root[None, :], 1), tl.sum(product * q, 1)


@triton.jit
def _keep(raw, n, pair: tl.constexpr, first, second, inside):
    """Two values of a row, where `finish_kernel` looks for them."""
    half = tl.arange(0, 2)[None, :]
    tl.store(raw[:, None] + 2 * pair * n + half, tl.join(first, second), mask=inside[:, None] & (half < 2))


@triton.jit(
    do_not_specialize=[
        "split_tiles",
        "chunk",
        "kept",
        "queries",
        "keys",
        "blocks",
        "heads",
        "section",
        "hq",
        "groups",
        "total_rows",
    ]
)
def dense(q_desc, k_desc, v_desc, out_desc, q_ptr, rows_ptr, q_sb, q_sh, q_st, k_ptr, k_sb, k_sh, k_st,
          raw, positions, parts, centre, queries, keys, blocks, heads, section, hq, groups,
          factor, total_rows, split_tiles, chunk, kept,
          D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
          OUTPUT: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """One block of BM rows of one head, over the keys of split `program_id(1)`; its sums go to `raw`, for `finish_kernel`."""
    index = tl.program_id(0)
    if CAUSAL:  # heads in sections that fit the cache; in each the longest rows first
        lead = index // (section * blocks) * section
        left, within = index - lead * blocks, tl.minimum(section, heads - lead)
        block = left // within
        block, head = blocks - 1 - block, lead + left - block * within
    else:
        head = index // blocks
        block = index - head * blocks
    b = head // hq
    h = head - b * hq
    hk = h // groups
    rows = block * BM + tl.arange(0, BM)
    inside = rows < queries
    limit = tl.full([BM], 0, tl.int32) + (keys - 1)
    seen, whole = keys, keys // BN
    source = tl.minimum(rows, queries - 1).to(tl.int64)
    if ROWS:
        source = tl.load(rows_ptr + source)
    if CAUSAL:
        limit = tl.minimum(limit, tl.load(positions + source).to(tl.int32))
        seen = tl.maximum(tl.max(limit, 0) + 1, 1)
        whole = tl.maximum(tl.min(limit, 0) + 1, 0) // BN
    split = tl.program_id(1)
    start_tile = split * split_tiles
    tiles = tl.minimum((seen + BN - 1) // BN, start_tile + split_tiles)
    whole = tl.minimum(tl.maximum(whole, start_tile), start_tile + split_tiles)
    ahead = tl.arange(0, BN)
    n = total_rows.to(tl.int64)
    raw += split.to(tl.int64) * 16 * n + 2 * (head.to(tl.int64) * queries + rows)
    if CAUSAL and ROWS:
        if start_tile >= tiles:  # these rows end before this split begins
            nothing = tl.zeros([BM], tl.float32)
            _keep(raw, n, 2, nothing, nothing, inside)
            _keep(raw, n, 3, nothing, nothing, inside)
            _keep(raw, n, 4, (nothing.to(tl.int32) - 1).to(tl.float32, bitcast=True), nothing, inside)
            return

    # The first 16 keys give the reference, and the first of them the sink's logit.
    few, wide = tl.arange(0, 16), tl.arange(0, D)
    at = k_ptr + b.to(tl.int64) * k_sb + hk.to(tl.int64) * k_sh
    first_keys = tl.load(at + tl.minimum(few, keys - 1)[:, None] * k_st + wide[None, :])
    if ROWS:
        q_at = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + source[:, None] * q_st + wide[None, :]
        q = tl.load(q_at)
    else:
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
    start = tl.dot(q, first_keys.T)
    sink = tl.sum(tl.where(few[None, :] == 0, start, 0.0), 1)
    reference = tl.max(tl.where(few[None, :] <= limit[:, None], start, float("-inf")), 1)
    reference = tl.where(reference > float("-inf"), reference, 0.0) * factor
    big, total = tl.zeros([BM, 8], tl.int32), tl.zeros([BM, 8], tl.float32)
    total2, cross, sums, squares = total, total, total, total
    o = tl.zeros([BM, D], tl.float32)
    # Whole chunks of keys first, whose moments `gram_kernel` has; then whole blocks; then blocks some rows see part of.
    known = start_tile
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = start_tile if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            w, more, a, c, d, e, f = _weigh(s, i * BN + ahead, limit, factor, reference, BM, BN, part == 2)
            big = tl.maximum(big, more)
            total, total2, cross = total + a, total2 + c, cross + d
            if part > 0:
                sums, squares = sums + e, squares + f
            if OUTPUT:
                v = v_desc.load([b, hk, i * BN, 0]).reshape(BN, D)
                o = tl.dot(w.to(v.dtype), v, o)

    total = tl.sum(total, 1)
    if OUTPUT:
        o = o * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
        out_desc.store([b, h, block * BM, 0], o.to(q.dtype).reshape(1, 1, BM, D))
    # Of the keys of this split alone: `limit` is the index of the last seen among them.
    limit = tl.minimum(limit, (start_tile + split_tiles) * BN - 1) - start_tile * BN
    if CHUNKS and EARLY:
        gdc_wait()  # the sums of the keys lay where the values go
    direct = limit + 1 - (known - start_tile) * BN
    _keep(raw, n, 0, reference, tl.max(big, 1).to(tl.float32, bitcast=True), inside)
    _keep(raw, n, 1, total, tl.sum(total2, 1), inside)
    _keep(raw, n, 2, tl.sum(cross, 1), sink, inside)
    _keep(raw, n, 3, tl.sum(sums, 1), tl.sum(squares, 1), inside)
    _keep(raw, n, 4, limit.to(tl.float32, bitcast=True), direct.to(tl.float32, bitcast=True), inside)
    if CHUNKS:
        along, reach, square = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
        if known > 0:
            kv = (b * (hq // groups) + hk).to(tl.int64)
            place = kv * kept + tl.minimum(known * BN // chunk, kept) - 1
            along, reach, square = with_sums(q_desc, parts, centre, b, h, block, place, BM, D)
        _keep(raw, n, 5, along, reach, inside)
        _keep(raw, n, 6, square, square, inside)
