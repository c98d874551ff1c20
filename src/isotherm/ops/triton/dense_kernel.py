# mypy: ignore-errors
# ruff: noqa: PLR0912, PLR0915
"""Output and every row statistic of plain attention (no mask, bias, cap or window), as fast as the softmax allows.

What keeps the softmax small beside the two matrix products:

- Weights are 2^(t − r) for a reference r that stays put: the row's largest logit in the first block of keys. No running
  maximum, so no rescaling of the output and no exchange between lanes until the row is done. float32 and bfloat16 have
  room for weights up to 2^50; a row that needs more is flagged and done again by the kernel of `attend_kernel`.
- The largest key is left out of the sums by subtraction at the end. That would cost a nearly frozen row its digits
  (`RowStats.rest` is all there is to such a row), so these are flagged and done again, too.
- Sums stay in the lanes ([rows, 8]: the eight columns a quad of lanes holds) until the last block.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
NOTHING = tl.constexpr(-1e300)
NO_KEY = tl.constexpr(9223372036854775807)
HIDDEN = tl.constexpr(-16384.0)
FROZEN = tl.constexpr(2.0**-9)
FEW = tl.constexpr(64)


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
    big = tl.max(w3, 1)
    total, total2, cross = tl.sum(w3, 1), tl.sum(w3 * w3, 1), tl.sum(w3 * t3, 1)
    return w, big, total, total2, cross, tl.sum(u3, 1), tl.sum(u3 * u3, 1)


@triton.jit(
    do_not_specialize=[
        "q_sb",
        "q_sh",
        "q_st",
        "split_tiles",
        "chunk",
        "k_sb",
        "k_sh",
        "k_st",
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
def dense(q_desc, k_desc, v_desc, out_desc, q_ptr, rows_ptr, q_sb, q_sh, q_st, k_ptr, k_sb, k_sh, k_st, lse_ptr,
          fields, first_key, broken, flags, positions, queries, keys, blocks, heads, section, hq, groups,
          factor, unit_high, unit_low, total_rows, split_tiles, chunk,
          D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
          OUTPUT: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, LIMIT: tl.constexpr):  # fmt: skip
    """One block of BM rows of one head, over the keys of split `program_id(1)`. `unit` turns log₂ units into nats."""
    # Heads in sections that fit the cache; in each the longest rows first.
    index = tl.program_id(0)
    lead = index // (section * blocks) * section
    left = index % (section * blocks)
    within = tl.minimum(section, heads - lead)
    if CAUSAL:
        block, head = blocks - 1 - left // within, lead + left % within
    else:
        block, head = left % blocks, lead + left // blocks
    b, h = head // hq, head % hq
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

    # The first 16 keys give the reference, and the first of them the sink's logit.
    few, wide = tl.arange(0, 16), tl.arange(0, D)
    if ROWS:
        q_at = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + source[:, None] * q_st + wide[None, :]
        q = tl.load(q_at)
    else:
        q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
    at = (
        k_ptr
        + b.to(tl.int64) * k_sb
        + hk.to(tl.int64) * k_sh
        + tl.minimum(few, keys - 1)[:, None] * k_st
        + wide[None, :]
    )
    start = tl.dot(q, tl.load(at).T)
    sink = tl.sum(tl.where(few[None, :] == 0, start, 0.0), 1)
    reference = tl.max(tl.where(few[None, :] <= limit[:, None], start, float("-inf")), 1)
    reference = tl.where(reference > float("-inf"), reference, 0.0) * factor
    big = tl.zeros([BM, 8], tl.float32)
    total, total2, cross, sums, squares = big, big, big, big, big
    o = tl.zeros([BM, D], tl.float32)
    # Whole chunks of keys first, whose moments `gram_kernel` has; then whole blocks; then blocks some rows see part of.
    known = start_tile
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = start_tile if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES if part < 2 or ROWS else 1):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            w, more, a, c, d, e, f = _weigh(s, i * BN + ahead, limit, factor, reference, BM, BN, part == 2)
            big = tl.maximum(big, more)
            total, total2, cross = total + a, total2 + c, cross + d
            if part > 0:
                sums, squares = sums + e, squares + f
            if OUTPUT:
                v = v_desc.load([b, hk, i * BN, 0]).reshape(BN, D)
                o = tl.dot(w.to(v.dtype), v, o)

    big, total, total2 = tl.max(big, 1), tl.sum(total, 1), tl.sum(total2, 1)
    cross, sums, squares = tl.sum(cross, 1), tl.sum(sums, 1), tl.sum(squares, 1)
    # From here on, of the keys of this split alone: `limit` is the index of the last seen among them.
    limit = tl.minimum(limit, (start_tile + split_tiles) * BN - 1) - start_tile * BN
    some = limit >= 0
    # A difference that keeps less than 1/512 of its terms is not to be trusted: a nearly frozen row, or logits far from
    # the reference for their spread (a few keys beside whole chunks of them weigh too little for that to matter).
    direct = limit + 1 - (known - start_tile) * BN
    far = (squares - sums * sums / direct < FROZEN * squares) & (direct > FEW if CHUNKS else direct > 1)
    blurred = (total - big < FROZEN * big) | far
    fine = ((big <= LIMIT) & (big > 0) | (some == 0)) & (tl.abs(cross) < float("inf")) & ((blurred & (limit > 0)) == 0)
    flag = tl.max(tl.where(fine | (inside == 0), 0, 1).reshape(BM // 64, 64), 1).to(tl.int8)
    sixty = block * (BM // 64) + tl.arange(0, BM // 64)
    sixties = tl.cdiv(queries, 64)
    tl.store(flags + (split * heads + head.to(tl.int64)) * sixties + sixty, flag, mask=sixty < sixties)
    if OUTPUT:
        o = o / tl.where(total > 0, total, 1.0)[:, None]
        out_desc.store([b, h, block * BM, 0], o.to(q.dtype).reshape(1, 1, BM, D))
    # float64 numbers cannot be passed to a kernel; two float32 parts can.
    unit = tl.full([BM], 0.0, tl.float64) + unit_high + unit_low
    big = tl.where(some, big, 1.0)
    top = tl.log2(big).to(tl.float64)
    share = 1.0 / big.to(tl.float64)
    count = tl.where(some, limit + 1, 0).to(tl.float64)
    mean = sums.to(tl.float64) / tl.maximum(direct, 1).to(tl.float64)
    spread = squares.to(tl.float64) - mean * sums.to(tl.float64)
    base = reference.to(tl.float64)
    others = tl.where(limit > 0, total.to(tl.float64) * share - 1.0, 0.0)
    peak = tl.where(some, (base + top) * unit, NOTHING)
    n = total_rows.to(tl.int64)
    at = head.to(tl.int64) * queries + rows
    fields += split.to(tl.int64) * 8 * n
    tl.store(fields + at, count, mask=inside)
    tl.store(fields + n + at, tl.where(direct > 0, (mean + base) * unit, 0.0), mask=inside)
    tl.store(fields + 2 * n + at, tl.maximum(spread, 0.0) * (unit * unit), mask=inside)
    tl.store(fields + 3 * n + at, peak, mask=inside)
    tl.store(fields + 4 * n + at, others, mask=inside)
    tl.store(fields + 5 * n + at, tl.where(limit > 0, total2.to(tl.float64) * share * share - 1.0, 0.0), mask=inside)
    tl.store(fields + 6 * n + at, (cross.to(tl.float64) * share - top * (1.0 + others)) * unit, mask=inside)
    first_logit = sink.to(tl.float64) * unit * factor
    tl.store(fields + 7 * n + at, tl.where(some, first_logit, NOTHING), mask=inside)
    tl.store(first_key + split * n + at, tl.where(some, (start_tile * BN).to(tl.int64), NO_KEY), mask=inside)
    tl.store(broken + split * n + at, inside == 0, mask=inside)
    lse = peak + tl.log2(1.0 + others.to(tl.float32)).to(tl.float64) * LN2
    if OUTPUT:
        tl.store(lse_ptr + at, tl.where(some, lse.to(tl.float32), float("-inf")), mask=inside)
