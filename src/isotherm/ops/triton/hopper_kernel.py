# mypy: ignore-errors
# ruff: noqa: PLR0915
"""What `dense_kernel` does, with Hopper's own scheduling (Gluon): for head dimension 128, where the products dominate.

Two warpgroups work on 64 rows each and share the keys that one more warp fetches (TMA). They take turns at the matrix
units: while one's logits become weights, the other's products run. Programs stay and take one block of rows after
another, so that a block's last steps overlap with the fetching of the next.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared as fence
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

HIDDEN = gl.constexpr(-16384.0)
BM = gl.constexpr(128)
BN = gl.constexpr(128)
D = gl.constexpr(128)
STAGES = gl.constexpr(2)


@gluon.jit
def _items(blocks, heads, CAUSAL: gl.constexpr):
    """How many blocks of rows this program does."""
    units = (blocks + 1) // 2 * heads if CAUSAL else blocks * heads
    mine = (units - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)
    return 2 * mine if CAUSAL else mine


@gluon.jit
def _item(i, blocks, CAUSAL: gl.constexpr):
    """Which rows and head come i-th. Under causality a long block and a short one in turn, so that all programs do alike."""
    if CAUSAL:
        half = (blocks + 1) // 2
        pair = gl.program_id(0) + (i // 2) * gl.num_programs(0)
        head, block = pair // half, pair % half
        block = gl.where(i % 2 == 0, blocks - 1 - block, block)
    else:
        index = gl.program_id(0) + i * gl.num_programs(0)
        head, block = index // blocks, index % blocks
    return block, head


@gluon.jit
def _bounds(positions, row, queries, keys, CAUSAL: gl.constexpr):
    """Blocks of keys these rows see in all (at least one), and those that every row sees whole."""
    seen, whole = keys, keys // BN
    if CAUSAL:
        last = gl.load(positions + gl.minimum(row + BM, queries) - 1).to(gl.int32)
        first = gl.load(positions + row).to(gl.int32)
        seen = gl.maximum(gl.minimum(last + 1, keys), 1)
        whole = gl.maximum(gl.minimum(first + 1, keys), 0) // BN
    return (seen + BN - 1) // BN, whole


@gluon.jit
def _known(whole, chunk):
    """Blocks of keys that lie in whole chunks, whose moments `gram_kernel` has."""
    return whole * BN // chunk * (chunk // BN)


@gluon.jit
def _await_sums():
    """Until the kernel before this one, which makes the sums of the keys, is through."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], gl.int32, False, 1)


@gluon.jit
def _release():
    """The kernel after this one may begin: its programs then wait for the last of these."""
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], gl.int32, False, 1)


@gluon.jit
def _step(at, phase):
    """The next place in a ring of two buffers; the phase flips with every round."""
    return at ^ 1, gl.where(at == 1, phase ^ 1, phase)


@gluon.jit
def _weigh(s, column, factor, reference, limit, MASKED: gl.constexpr):
    """A block's weights, and per lane: the largest, Σw, Σw², Σwt, Σt, Σt²; each [64, 8]."""
    t = s * factor - reference[:, None]
    u = t
    if MASKED:
        seen = column[None, :] <= limit[:, None]
        t = gl.where(seen, t, HIDDEN)
        u = gl.where(seen, t, 0.0)
    w = gl.exp2(t)
    w3, t3, u3 = w.reshape([64, BN // 8, 8]), t.reshape([64, BN // 8, 8]), u.reshape([64, BN // 8, 8])
    return (
        w,
        gl.max(w3.to(gl.int32, bitcast=True), 1),
        gl.sum(w3, 1),
        gl.sum(w3 * w3, 1),
        gl.sum(w3 * t3, 1),
        gl.sum(u3, 1),
        gl.sum(u3 * u3, 1),
    )


@gluon.jit
def _pack(w, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """Weights as the matrix units take them.

    Assembly, since the compiler would move a plain conversion between two products and so serialise them; and weights
    cross the loop's edge in float32, since pairs of 16 bits would be taken apart there.
    """
    if gl.bfloat16 == DTYPE:
        p = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [w], gl.bfloat16, False, 2)
    else:
        p = gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [w], gl.float16, False, 2)
    return gl.convert_layout(p, LAYOUT)


@gluon.jit
def _fetch(q_desc, k_desc, v_desc, g_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
           positions, queries, keys, blocks, heads, hq, groups, chunk, kept, CAUSAL: gl.constexpr,
           CHUNKS: gl.constexpr):  # fmt: skip
    at, phase = 0, 1
    v_at, v_phase = 0, 1
    slot, half = 0, 1
    for index in range(_items(blocks, heads, CAUSAL)):
        block, head = _item(index, blocks, CAUSAL)
        tiles, whole = _bounds(positions, block * BM, queries, keys, CAUSAL)
        b, h = head // hq, head % hq
        hk = h // groups
        for w in gl.static_range(2):
            place = slot * 2 + w
            mbarrier.wait(q_empty.index(place), half)
            mbarrier.expect(q_full.index(place), q_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(
                q_desc, [b, h, block * BM + w * 64, 0], q_full.index(place), q_smem.index(place)
            )
        slot, half = _step(slot, half)
        column = (tiles - 1) * BN
        while column >= 0:
            mbarrier.wait(k_empty.index(at), phase)
            mbarrier.expect(k_full.index(at), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [b, hk, column, 0], k_full.index(at), k_smem.index(at))
            at, phase = _step(at, phase)
            mbarrier.wait(v_empty.index(v_at), v_phase)
            mbarrier.expect(v_full.index(v_at), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [b, hk, column, 0], v_full.index(v_at), v_smem.index(v_at))
            v_at, v_phase = _step(v_at, v_phase)
            column -= BN
        if CHUNKS:
            # The two parts of the keys' sums, each as tall as a block of keys, take the way of the keys.
            known = _known(whole, chunk)
            if known > 0:
                _await_sums()
                kv, last = b * (hq // groups) + hk, gl.minimum(known * BN // chunk, kept) - 1
                for part in gl.static_range(2):
                    mbarrier.wait(k_empty.index(at), phase)
                    mbarrier.expect(k_full.index(at), g_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(
                        g_desc, [kv, last, (1 - part) * D, 0], k_full.index(at), k_smem.index(at)
                    )
                    at, phase = _step(at, phase)


@gluon.jit
def _work(WHICH: gl.constexpr, out_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
          turns, k_ptr, k_sb, k_sh, raw, positions, centre, queries, keys, blocks, heads, hq, groups,
          factor, total_rows, chunk, kept, CAUSAL: gl.constexpr, CHUNKS: gl.constexpr):  # fmt: skip
    DTYPE: gl.constexpr = k_smem.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16]), 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    ahead = gl.arange(0, BN, gl.SliceLayout(0, S_LAYOUT))
    none = gl.zeros([64, BN], gl.float32, S_LAYOUT)
    at, phase, turn = 0, 0, WHICH ^ 1
    v_at, v_phase = 0, 0
    slot, half = 0, 0
    for index in range(_items(blocks, heads, CAUSAL)):
        block, head = _item(index, blocks, CAUSAL)
        tiles, whole = _bounds(positions, block * BM, queries, keys, CAUSAL)
        rows = block * BM + WHICH * 64 + gl.arange(0, 64, ROW)
        limit = gl.full([64], 0, gl.int32, ROW) + (keys - 1)
        if CAUSAL:
            limit = gl.minimum(limit, gl.load(positions + gl.minimum(rows, queries - 1)).to(gl.int32))
        place = slot * 2 + WHICH
        mbarrier.wait(q_full.index(place), half)
        q = q_smem.index(place).reshape([64, D])
        mbarrier.wait(k_full.index(at), phase)
        mbarrier.wait(turns.index(WHICH), turn)
        turn = turn ^ 1
        s = warpgroup_mma(q, k_smem.index(at).reshape([BN, D]).permute((1, 0)), none, use_acc=False, is_async=True)
        mbarrier.arrive(turns.index(1 - WHICH), count=1)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_empty.index(at), count=1)
        column = (tiles - 1) * BN + ahead
        reference = gl.max(gl.where(column[None, :] <= limit[:, None], s, float("-inf")), 1)
        reference = gl.where(reference > float("-inf"), reference, 0.0) * factor
        w, big, total, total2, cross, sums, squares = _weigh(s, column, factor, reference, limit, True)
        o = gl.zeros([64, D], gl.float32, S_LAYOUT)
        # Blocks some rows see part of first; then whole blocks; then whole chunks of keys, whose moments `gram_kernel` has.
        known = 0
        if CHUNKS:
            known = _known(whole, chunk)
            told = gl.where(tiles == known, 0.0, 1.0)
            sums, squares = sums * told, squares * told
        for part in gl.static_range(3 if CHUNKS else 2):
            begin = 1 if part == 0 else gl.maximum(tiles - (whole if part == 1 else known), 1)
            end = gl.maximum(tiles - (whole if part == 0 else known), 1) if part < 2 else tiles
            for i in range(begin, end):
                at, phase = _step(at, phase)
                p = _pack(w, DTYPE, P_LAYOUT)
                mbarrier.wait(v_full.index(v_at), v_phase)
                mbarrier.wait(k_full.index(at), phase)
                mbarrier.wait(turns.index(WHICH), turn)
                turn = turn ^ 1
                k = k_smem.index(at).reshape([BN, D]).permute((1, 0))
                s = warpgroup_mma(q, k, none, use_acc=False, is_async=True)
                o = warpgroup_mma(p, v_smem.index(v_at).reshape([BN, D]), o, is_async=True)
                mbarrier.arrive(turns.index(1 - WHICH), count=1)
                s = warpgroup_mma_wait(1, deps=[s])
                mbarrier.arrive(k_empty.index(at), count=1)
                column = (tiles - 1 - i) * BN + ahead
                w, more, a, c, d, e, f = _weigh(s, column, factor, reference, limit, part == 0)
                big = gl.maximum(big, more)
                total, total2, cross = total + a, total2 + c, cross + d
                if part < 2:
                    sums, squares = sums + e, squares + f
                o = warpgroup_mma_wait(0, deps=[o])
                mbarrier.arrive(v_empty.index(v_at), count=1)
                v_at, v_phase = _step(v_at, v_phase)
        mbarrier.wait(v_full.index(v_at), v_phase)
        o = warpgroup_mma(_pack(w, DTYPE, P_LAYOUT), v_smem.index(v_at).reshape([BN, D]), o)
        mbarrier.arrive(v_empty.index(v_at), count=1)
        v_at, v_phase = _step(v_at, v_phase)
        at, phase = _step(at, phase)
        b, h = head // hq, head % hq
        total = gl.convert_layout(gl.sum(total, 1), ROW)
        sink = _sink(q, k_ptr, k_sb, k_sh, b, h // groups, ROW)
        zero = gl.zeros([64], gl.float32, ROW)
        along, reach, square = zero, zero, zero
        if CHUNKS:
            _await_sums()  # not only for them: they lay where the values go
            if known > 0:
                for part in gl.static_range(2):
                    mbarrier.wait(k_full.index(at), phase)
                    s = warpgroup_mma(q, k_smem.index(at).reshape([BN, D]).permute((1, 0)), s, use_acc=part > 0)
                    mbarrier.arrive(k_empty.index(at), count=1)
                    at, phase = _step(at, phase)
                last = gl.minimum(known * BN // chunk, kept) - 1
                to = centre + ((b * (hq // groups) + h // groups).to(gl.int64) * kept + last) * (2 * D) + ahead
                values = q.load(S_LAYOUT).to(gl.float32)
                square = gl.sum(s * values, 1)
                along = gl.sum(values * gl.load(to)[None, :], 1)
                reach = gl.sum(gl.abs(values) * gl.load(to + D)[None, :], 1)
        o = o * (1.0 / gl.where(total > 0, total, 1.0))[:, None]
        q.store(o.to(q_smem.dtype))
        fence()
        tma.async_copy_shared_to_global(out_desc, [b, h, block * BM + WHICH * 64, 0], q_smem.index(place))
        inside = rows < queries
        n = total_rows
        to = raw + 2 * (head.to(gl.int64) * queries + rows)
        _keep(to, n, 0, reference, inside, ROW)
        _keep(to, n, 1, gl.max(big, 1).to(gl.float32, bitcast=True), inside, ROW)
        _keep(to, n, 2, total, inside, ROW)
        _keep(to, n, 3, gl.sum(total2, 1), inside, ROW)
        _keep(to, n, 4, gl.sum(cross, 1), inside, ROW)
        _keep(to, n, 5, sink, inside, ROW)
        _keep(to, n, 6, gl.sum(sums, 1), inside, ROW)
        _keep(to, n, 7, gl.sum(squares, 1), inside, ROW)
        _keep(to, n, 8, limit.to(gl.float32, bitcast=True), inside, ROW)
        _keep(to, n, 9, (limit + 1 - known * BN).to(gl.float32, bitcast=True), inside, ROW)
        if CHUNKS:
            _keep(to, n, 10, along, inside, ROW)
            _keep(to, n, 11, reach, inside, ROW)
            _keep(to, n, 12, square, inside, ROW)
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(place), count=1)
        slot, half = _step(slot, half)
    _release()


@gluon.jit
def _keep(raw, n, i: gl.constexpr, value, inside, ROW: gl.constexpr):
    """Value i of a row, where `finish_kernel` looks for it."""
    gl.store(raw + (i // 2) * 2 * n + i % 2, gl.convert_layout(value, ROW), mask=inside)


@gluon.jit
def _sink(q, k_ptr, k_sb, k_sh, b, hk, ROW: gl.constexpr):
    """q·k of the first key: what the sink statistic wants."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    wide = gl.arange(0, D, gl.SliceLayout(0, FLAT))
    first = gl.load(k_ptr + b.to(gl.int64) * k_sb + hk.to(gl.int64) * k_sh + wide).to(gl.float32)
    return gl.convert_layout(gl.sum(q.load(FLAT).to(gl.float32) * first[None, :], 1), ROW)


NUMBERS = [
    "k_sb",
    "k_sh",
    "queries",
    "keys",
    "blocks",
    "heads",
    "hq",
    "groups",
    "total_rows",
    "chunk",
    "kept",
]


@gluon.jit(do_not_specialize=NUMBERS)
def hopper(q_desc, k_desc, v_desc, g_desc, out_desc, k_ptr, k_sb, k_sh, raw, positions, centre, queries, keys, blocks, heads,
           hq, groups, factor, total_rows, chunk, kept, CAUSAL: gl.constexpr,
           CHUNKS: gl.constexpr):  # fmt: skip
    """All blocks of 128 rows, shared out among the programs; their sums go to `raw`, for `finish_kernel`."""
    total_rows = gl.to_tensor(total_rows).to(gl.int64)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [4, 1, 1, 64, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BN, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, BN, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(4):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_empty.index(i), count=2)
        mbarrier.init(turns.index(i), count=1)
    # Constants stay constants only in a tuple written where it is used, hence the repetition.
    gl.warp_specialize([
        (_work, (gl.constexpr(0), out_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                 turns, k_ptr, k_sb, k_sh, raw, positions, centre, queries, keys, blocks, heads, hq,
                 groups, factor, total_rows, chunk, kept, CAUSAL, CHUNKS)),
        (_work, (gl.constexpr(1), out_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                 turns, k_ptr, k_sb, k_sh, raw, positions, centre, queries, keys, blocks, heads, hq,
                 groups, factor, total_rows, chunk, kept, CAUSAL, CHUNKS)),
        (_fetch, (q_desc, k_desc, v_desc, g_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                  positions, queries, keys, blocks, heads, hq, groups, chunk, kept, CAUSAL, CHUNKS)),
    ], [4, 1], [240, 24])  # fmt: skip
