# mypy: ignore-errors
# ruff: noqa: PLR0915
"""The fast pass with Hopper's own scheduling, in Gluon: for head dimension 128, where the matrix products dominate.

Two warpgroups work on 64 rows each, and share the keys and values that one more warp fetches by TMA. The warpgroups take
turns at the matrix units: while one turns logits into weights, the products of the other run. Programs are persistent: each
computes one block of rows after another, and the end of a block overlaps with fetching the next. Tiles of keys are visited
from the last to the first. `fast_kernel` explains the arithmetic, `fast_finish_kernel` the raw sums.

Tiles in flight live in rings of two buffers. Each buffer has two barriers, `full` and `empty`, and a phase bit.
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
def _block_count(blocks, heads, CAUSAL: gl.constexpr):
    """Return how many blocks of rows this program computes."""
    units = (blocks + 1) // 2 * heads if CAUSAL else blocks * heads
    mine = (units - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)
    return 2 * mine if CAUSAL else mine


@gluon.jit
def _block(i, blocks, CAUSAL: gl.constexpr):
    """Return block and head of the program's i-th turn. Under causality long and short blocks alternate, for equal loads."""
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
def _tile_counts(positions, row, queries, keys, CAUSAL: gl.constexpr):
    """Return how many tiles of keys some of these rows see (at least one), and how many every row sees in full."""
    key_count, full_tiles = keys, keys // BN
    if CAUSAL:
        last = gl.load(positions + gl.minimum(row + BM, queries) - 1).to(gl.int32)
        first = gl.load(positions + row).to(gl.int32)
        key_count = gl.maximum(gl.minimum(last + 1, keys), 1)
        full_tiles = gl.maximum(gl.minimum(first + 1, keys), 0) // BN
    return (key_count + BN - 1) // BN, full_tiles


@gluon.jit
def _summed_tiles(full_tiles, chunk):
    """Return how many tiles lie in whole chunks of keys, whose moments `fast_key_sums_kernel` has."""
    return full_tiles * BN // chunk * (chunk // BN)


@gluon.jit
def _await_key_sums():
    """Wait until the kernel before this one, which sums the keys, has ended."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], gl.int32, False, 1)


@gluon.jit
def _release_next_kernel():
    """Let the next kernel start. Its programs wait until all programs of this one have ended."""
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], gl.int32, False, 1)


@gluon.jit
def _next_slot(slot, phase):
    """Return the next buffer of a ring of two, and its phase, which flips with every round."""
    return slot ^ 1, gl.where(slot == 1, phase ^ 1, phase)


@gluon.jit
def _weights(s, column, exp2_scale, reference, last_key, MASKED: gl.constexpr):
    """Return a tile's weights [64, keys] and, per lane [64, 8], the largest weight's bits, Σw, Σw², Σwt, Σt and Σt²."""
    t = s * exp2_scale - reference[:, None]
    visible_t = t
    if MASKED:
        visible = column[None, :] <= last_key[:, None]
        t = gl.where(visible, t, HIDDEN)
        visible_t = gl.where(visible, t, 0.0)
    w = gl.exp2(t)
    w3, t3 = w.reshape([64, BN // 8, 8]), t.reshape([64, BN // 8, 8])
    visible_t3 = visible_t.reshape([64, BN // 8, 8])
    return (
        w,
        gl.max(w3.to(gl.int32, bitcast=True), 1),
        gl.sum(w3, 1),
        gl.sum(w3 * w3, 1),
        gl.sum(w3 * t3, 1),
        gl.sum(visible_t3, 1),
        gl.sum(visible_t3 * visible_t3, 1),
    )


@gluon.jit
def _pack_weights(w, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the weights as the matrix units take them.

    This is assembly because the compiler would move a plain conversion between two products and so serialise them. Weights
    cross the loop's edge as float32, because pairs of 16 bits would be unpacked there.
    """
    if gl.bfloat16 == DTYPE:
        p = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [w], gl.bfloat16, False, 2)
    else:
        p = gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [w], gl.float16, False, 2)
    return gl.convert_layout(p, LAYOUT)


@gluon.jit
def _fetch_tiles(q_desc, k_desc, v_desc, scatter_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full,
                 v_empty, positions, queries, keys, blocks, heads, hq, groups, chunk, stored, CAUSAL: gl.constexpr,
                 KEY_SUMS: gl.constexpr):  # fmt: skip
    """Fetch q, k and v of every block of this program into shared memory: the work of the third partition."""
    k_slot, k_phase = 0, 1
    v_slot, v_phase = 0, 1
    q_slot, q_phase = 0, 1
    for turn in range(_block_count(blocks, heads, CAUSAL)):
        block, head = _block(turn, blocks, CAUSAL)
        tiles, full_tiles = _tile_counts(positions, block * BM, queries, keys, CAUSAL)
        b, h = head // hq, head % hq
        hk = h // groups
        for warpgroup in gl.static_range(2):
            buffer = q_slot * 2 + warpgroup
            mbarrier.wait(q_empty.index(buffer), q_phase)
            mbarrier.expect(q_full.index(buffer), q_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(
                q_desc, [b, h, block * BM + warpgroup * 64, 0], q_full.index(buffer), q_smem.index(buffer)
            )
        q_slot, q_phase = _next_slot(q_slot, q_phase)
        column = (tiles - 1) * BN
        while column >= 0:
            mbarrier.wait(k_empty.index(k_slot), k_phase)
            mbarrier.expect(k_full.index(k_slot), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [b, hk, column, 0], k_full.index(k_slot), k_smem.index(k_slot))
            k_slot, k_phase = _next_slot(k_slot, k_phase)
            mbarrier.wait(v_empty.index(v_slot), v_phase)
            mbarrier.expect(v_full.index(v_slot), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [b, hk, column, 0], v_full.index(v_slot), v_smem.index(v_slot))
            v_slot, v_phase = _next_slot(v_slot, v_phase)
            column -= BN
        if KEY_SUMS:
            # The two parts of the scatter matrix, each as tall as a tile of keys, go through the ring of the keys.
            summed_tiles = _summed_tiles(full_tiles, chunk)
            if summed_tiles > 0:
                _await_key_sums()
                kv, last = b * (hq // groups) + hk, gl.minimum(summed_tiles * BN // chunk, stored) - 1
                for part in gl.static_range(2):
                    mbarrier.wait(k_empty.index(k_slot), k_phase)
                    mbarrier.expect(k_full.index(k_slot), scatter_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(
                        scatter_desc, [kv, last, (1 - part) * D, 0], k_full.index(k_slot), k_smem.index(k_slot)
                    )
                    k_slot, k_phase = _next_slot(k_slot, k_phase)


@gluon.jit
def _compute_rows(WARPGROUP: gl.constexpr, out_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full,
                  v_empty, turns, k_ptr, k_sb, k_sh, raw, positions, key_means, queries, keys, blocks, heads, hq, groups,
                  exp2_scale, total_rows, chunk, stored, CAUSAL: gl.constexpr, KEY_SUMS: gl.constexpr,
                  WIDTH: gl.constexpr):  # fmt: skip
    """Compute 64 rows of every block of this program: the work of one warpgroup, 0 or 1."""
    DTYPE: gl.constexpr = k_smem.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16]), 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    columns = gl.arange(0, BN, gl.SliceLayout(0, S_LAYOUT))
    zeros = gl.zeros([64, BN], gl.float32, S_LAYOUT)
    k_slot, k_phase, my_turn = 0, 0, WARPGROUP ^ 1
    v_slot, v_phase = 0, 0
    q_slot, q_phase = 0, 0
    for turn in range(_block_count(blocks, heads, CAUSAL)):
        block, head = _block(turn, blocks, CAUSAL)
        tiles, full_tiles = _tile_counts(positions, block * BM, queries, keys, CAUSAL)
        rows = block * BM + WARPGROUP * 64 + gl.arange(0, 64, ROW)
        last_key = gl.full([64], 0, gl.int32, ROW) + (keys - 1)
        if CAUSAL:
            last_key = gl.minimum(last_key, gl.load(positions + gl.minimum(rows, queries - 1)).to(gl.int32))
        buffer = q_slot * 2 + WARPGROUP
        mbarrier.wait(q_full.index(buffer), q_phase)
        q = q_smem.index(buffer).reshape([64, D])  # [rows, d]
        # The last tile determines the reference: its largest visible logit, or 0 for rows that see none of it.
        mbarrier.wait(k_full.index(k_slot), k_phase)
        mbarrier.wait(turns.index(WARPGROUP), my_turn)
        my_turn = my_turn ^ 1
        last_k = k_smem.index(k_slot).reshape([BN, D]).permute((1, 0))  # [d, keys]
        s = warpgroup_mma(q, last_k, zeros, use_acc=False, is_async=True)  # [rows, keys]
        mbarrier.arrive(turns.index(1 - WARPGROUP), count=1)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_empty.index(k_slot), count=1)
        column = (tiles - 1) * BN + columns
        reference = gl.max(gl.where(column[None, :] <= last_key[:, None], s, float("-inf")), 1)
        reference = gl.where(reference > float("-inf"), reference, 0.0) * exp2_scale
        w, max_w_bits, sum_w, sum_w2, sum_wt, sum_t, sum_t2 = _weights(s, column, exp2_scale, reference, last_key, True)
        o = gl.zeros([64, D], gl.float32, S_LAYOUT)  # [rows, d]
        summed_tiles = 0
        if KEY_SUMS:
            summed_tiles = _summed_tiles(full_tiles, chunk)
            direct = gl.where(tiles == summed_tiles, 0.0, 1.0)  # whether the last tile is beyond the whole chunks
            sum_t, sum_t2 = sum_t * direct, sum_t2 * direct
        # Part 0: edge tiles. Part 1: other full tiles. Part 2: tiles in whole chunks, whose moments come from the key sums.
        for part in gl.static_range(3 if KEY_SUMS else 2):
            begin = 1 if part == 0 else gl.maximum(tiles - (full_tiles if part == 1 else summed_tiles), 1)
            end = gl.maximum(tiles - (full_tiles if part == 0 else summed_tiles), 1) if part < 2 else tiles
            for i in range(begin, end):
                k_slot, k_phase = _next_slot(k_slot, k_phase)
                p = _pack_weights(w, DTYPE, P_LAYOUT)  # of the tile before
                mbarrier.wait(v_full.index(v_slot), v_phase)
                mbarrier.wait(k_full.index(k_slot), k_phase)
                mbarrier.wait(turns.index(WARPGROUP), my_turn)
                my_turn = my_turn ^ 1
                k = k_smem.index(k_slot).reshape([BN, D]).permute((1, 0))  # [d, keys]
                s = warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
                o = warpgroup_mma(p, v_smem.index(v_slot).reshape([BN, D]), o, is_async=True)
                mbarrier.arrive(turns.index(1 - WARPGROUP), count=1)
                s = warpgroup_mma_wait(1, deps=[s])
                mbarrier.arrive(k_empty.index(k_slot), count=1)
                column = (tiles - 1 - i) * BN + columns
                w, tile_bits, tile_w, tile_w2, tile_wt, tile_t, tile_t2 = _weights(
                    s, column, exp2_scale, reference, last_key, part == 0
                )
                max_w_bits = gl.maximum(max_w_bits, tile_bits)
                sum_w, sum_w2, sum_wt = sum_w + tile_w, sum_w2 + tile_w2, sum_wt + tile_wt
                if part < 2:
                    sum_t, sum_t2 = sum_t + tile_t, sum_t2 + tile_t2
                o = warpgroup_mma_wait(0, deps=[o])
                mbarrier.arrive(v_empty.index(v_slot), count=1)
                v_slot, v_phase = _next_slot(v_slot, v_phase)
        mbarrier.wait(v_full.index(v_slot), v_phase)
        o = warpgroup_mma(_pack_weights(w, DTYPE, P_LAYOUT), v_smem.index(v_slot).reshape([BN, D]), o)
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        v_slot, v_phase = _next_slot(v_slot, v_phase)
        k_slot, k_phase = _next_slot(k_slot, k_phase)
        b, h = head // hq, head % hq
        sum_w = gl.convert_layout(gl.sum(sum_w, 1), ROW)  # [rows]
        first_qk = _first_qk(q, k_ptr, k_sb, k_sh, b, h // groups, ROW, WIDTH)
        zero = gl.zeros([64], gl.float32, ROW)
        chunk_mean, chunk_error, chunk_m2 = zero, zero, zero
        if KEY_SUMS:
            _await_key_sums()  # also because the sums of each chunk lie in the memory of `raw` until their kernel ends
            if summed_tiles > 0:
                for part in gl.static_range(2):
                    mbarrier.wait(k_full.index(k_slot), k_phase)
                    scatter = k_smem.index(k_slot).reshape([BN, D]).permute((1, 0))  # [d, d], symmetric
                    s = warpgroup_mma(q, scatter, s, use_acc=part > 0)
                    mbarrier.arrive(k_empty.index(k_slot), count=1)
                    k_slot, k_phase = _next_slot(k_slot, k_phase)
                last = gl.minimum(summed_tiles * BN // chunk, stored) - 1
                kv = (b * (hq // groups) + h // groups).to(gl.int64)
                mean_at = key_means + (kv * stored + last) * (2 * D) + columns  # [d]
                q_values = q.load(S_LAYOUT).to(gl.float32)  # [rows, d]
                chunk_m2 = gl.sum(s * q_values, 1)
                chunk_mean = gl.sum(q_values * gl.load(mean_at)[None, :], 1)
                chunk_error = gl.sum(gl.abs(q_values) * gl.load(mean_at + D)[None, :], 1)
        o = o * (1.0 / gl.where(sum_w > 0, sum_w, 1.0))[:, None]
        q.store(o.to(q_smem.dtype))
        fence()
        tma.async_copy_shared_to_global(out_desc, [b, h, block * BM + WARPGROUP * 64, 0], q_smem.index(buffer))
        row_exists = rows < queries
        raw_at = raw + 2 * (head.to(gl.int64) * queries + rows)
        _store_raw(raw_at, total_rows, 0, reference, row_exists, ROW)
        _store_raw(raw_at, total_rows, 1, gl.max(max_w_bits, 1).to(gl.float32, bitcast=True), row_exists, ROW)
        _store_raw(raw_at, total_rows, 2, sum_w, row_exists, ROW)
        _store_raw(raw_at, total_rows, 3, gl.sum(sum_w2, 1), row_exists, ROW)
        _store_raw(raw_at, total_rows, 4, gl.sum(sum_wt, 1), row_exists, ROW)
        _store_raw(raw_at, total_rows, 5, first_qk, row_exists, ROW)
        _store_raw(raw_at, total_rows, 6, gl.sum(sum_t, 1), row_exists, ROW)
        _store_raw(raw_at, total_rows, 7, gl.sum(sum_t2, 1), row_exists, ROW)
        _store_raw(raw_at, total_rows, 8, last_key.to(gl.float32, bitcast=True), row_exists, ROW)
        direct_keys = last_key + 1 - summed_tiles * BN
        _store_raw(raw_at, total_rows, 9, direct_keys.to(gl.float32, bitcast=True), row_exists, ROW)
        if KEY_SUMS:
            _store_raw(raw_at, total_rows, 10, chunk_mean, row_exists, ROW)
            _store_raw(raw_at, total_rows, 11, chunk_error, row_exists, ROW)
            _store_raw(raw_at, total_rows, 12, chunk_m2, row_exists, ROW)
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(buffer), count=1)
        q_slot, q_phase = _next_slot(q_slot, q_phase)
    _release_next_kernel()


@gluon.jit
def _store_raw(raw_at, field_stride, i: gl.constexpr, value, row_exists, ROW: gl.constexpr):
    """Store raw sum i of each row."""
    gl.store(raw_at + (i // 2) * 2 * field_stride + i % 2, gl.convert_layout(value, ROW), mask=row_exists)


@gluon.jit
def _first_qk(q, k_ptr, k_sb, k_sh, b, hk, ROW: gl.constexpr, WIDTH: gl.constexpr):
    """Return q·k of the first key [rows]."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    dims = gl.arange(0, D, gl.SliceLayout(0, FLAT))
    first_at = k_ptr + b.to(gl.int64) * k_sb + hk.to(gl.int64) * k_sh + dims
    first = gl.load(first_at, mask=dims < WIDTH, other=0.0).to(gl.float32)
    return gl.convert_layout(gl.sum(q.load(FLAT).to(gl.float32) * first[None, :], 1), ROW)


@gluon.jit(do_not_specialize=["k_sb", "k_sh", "queries", "keys", "blocks", "heads", "hq", "groups", "total_rows", "chunk",
                              "stored"])  # fmt: skip
def hopper(q_desc, k_desc, v_desc, scatter_desc, out_desc, k_ptr, k_sb, k_sh, raw, positions, key_means, queries, keys,
           blocks, heads, hq, groups, exp2_scale, total_rows, chunk, stored, CAUSAL: gl.constexpr,
           KEY_SUMS: gl.constexpr, WIDTH: gl.constexpr):  # fmt: skip
    """Compute all blocks of 128 rows, shared out among the programs, and store their raw sums for `fast_finish_kernel`."""
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
    # Constants stay constants only in a tuple that is written in the call, hence the repetition.
    gl.warp_specialize([
        (_compute_rows, (
            gl.constexpr(0), out_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns,
            k_ptr, k_sb, k_sh, raw, positions, key_means, queries, keys, blocks, heads, hq, groups, exp2_scale, total_rows,
            chunk, stored, CAUSAL, KEY_SUMS, WIDTH)),
        (_compute_rows, (
            gl.constexpr(1), out_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns,
            k_ptr, k_sb, k_sh, raw, positions, key_means, queries, keys, blocks, heads, hq, groups, exp2_scale, total_rows,
            chunk, stored, CAUSAL, KEY_SUMS, WIDTH)),
        (_fetch_tiles, (
            q_desc, k_desc, v_desc, scatter_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
            positions, queries, keys, blocks, heads, hq, groups, chunk, stored, CAUSAL, KEY_SUMS)),
    ], [4, 1], [240, 24])  # fmt: skip
