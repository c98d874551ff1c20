"""The numbers that the search for a projection returns, worked out by hand: spreads, tolerances, tie-breaks."""

from math import inf, log, nan, sqrt

import pytest
import torch
from torch import Tensor, nn

from isotherm.probe import Factor
from isotherm.probe.factors import Tracer
from isotherm.probe.frames import Frame, Frames, Record
from isotherm.probe.keep import Keeper, storage_of
from isotherm.probe.layouts import assignments, tokens
from isotherm.probe.lengths import ENOUGH, Match, Measure, by_position, is_monotonic, one_number, same_length
from isotherm.probe.lengths import matches as matches_of
from isotherm.probe.sampled import SEQUENCES, TOKENS, Sampler, lengths, read
from tests.probe.traced import trace


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matches(used: Tensor, records: list[Record], measure: Measure, enough: float = 0.0) -> list[Match]:
    """What fits `used`, beside these records in one frame."""
    sample = Sampler().take(used, [frame(*records)])
    assert sample is not None
    read([sample])
    return matches_of(sample.frames[0].pairs, measure, enough)


def test_samples_that_are_measured_at_once_keep_their_own_factors():
    """Layers of one shape, each with its own factor; vectors too short in the second, no projection that fits in the last."""
    outputs = [noise(2, 9, 24, seed=number) for number in range(5)]
    outputs[1][0, 3] *= 1e-9
    used = [split(output, 4) * factor for output, factor in zip(outputs, (0.5, 2.0, 3.0, 1.0, 1.0), strict=True)]
    used[4] = noise(2, 4, 9, 6, seed=9)
    frames = [frame(record(output, f"layer {number}")) for number, output in enumerate(outputs)]
    samples = [Sampler().take(q, [one]) for q, one in zip(used, frames, strict=True)]
    read([sample for sample in samples if sample is not None])
    alone = [Tracer().trace(sample) for sample in samples]
    together = Tracer()
    together.expect([sample for sample in samples if sample is not None])
    at_once = [together.trace(sample) for sample in samples]
    assert at_once == alone
    assert [found.value for found, _ in at_once[:4]] == pytest.approx([0.5, 2.0, 3.0, 1.0])
    assert at_once[4][0].kind != "constant"


def ways(*rows: list[float]) -> Tensor:
    """Ratios [1, T, W, 1], one row of numbers per way."""
    return torch.tensor(rows, dtype=torch.float64).T[None, :, :, None]


def record(output: Tensor, name: str = "there", kind: str = "projection", source: Tensor | None = None) -> Record:
    return Record(name, kind, output, source, storage_of(output))  # type: ignore[arg-type]


def frame(*records: Record, module: nn.Module | None = None) -> Frame:
    return Frame(module or nn.Identity(), "", list(records))


def split(output: Tensor, heads: int) -> Tensor:
    """[B, T, H·D] → [B, H, T, D], as a copy: a view would be recognised by its memory."""
    return output.unflatten(-1, (heads, -1)).transpose(1, 2).clone()


def test_same_length_is_the_relative_standard_deviation():
    spread = same_length(ways([1, 3, 1, 3], [2, 2, 2, 2], [nan, 1, nan, 3]), torch.ones(()))
    assert spread.tolist() == [0.5, 0.0, 0.5]
    assert same_length(ways([nan, nan]), torch.ones(())).tolist() == [inf]


@pytest.mark.parametrize(("different", "factor"), [(1, inf), (2, 100), (3, 10), (4, 1), (5, 1)])
def test_one_number_asks_for_more_agreement_from_fewer_lengths(different: int, factor: float):
    base = ways([1.0, 2.0, 4.0, 8.0, 16.0][:different] + [1.0] * (5 - different))
    ratio = ways([1, 1, 1, 1, 1.1])
    assert one_number(ratio, base).item() == pytest.approx(factor * same_length(ratio, base).item())


@pytest.mark.parametrize(("gap", "counts"), [(0.9e-3, 1), (1.2e-3, 2)])
def test_lengths_count_as_different_beyond_a_thousandth(gap: float, counts: int):
    spread = one_number(ways([1.0, 1.1]), ways([1.0, 1 + gap])).item()
    assert (spread == inf) == (counts == 1)


def test_one_number_ignores_lengths_without_a_ratio():
    assert one_number(ways([1, nan, nan]), ways([1, 2, 3])).tolist() == [inf]
    assert ENOUGH == 4


def test_by_position_is_the_largest_distance_in_logarithms():
    position, head = torch.tensor([1.0, 2, 4, 8]), torch.tensor([1.0, 3])
    ratio = (position[:, None] * head)[None, :, None].double()
    assert by_position(ratio, ratio).item() == pytest.approx(0, abs=1e-12)
    ratio[0, 0, 0, 0] *= torch.e
    # Of the extra 1, a quarter goes to the head's mean, and half of the rest to the position's.
    assert by_position(ratio, ratio).item() == pytest.approx(0.375)


def test_by_position_with_one_head_compares_sequences():
    position = torch.tensor([1.0, 2, 4, 8]).double()
    ratio = torch.stack([position, position])[:, :, None, None]
    assert by_position(ratio, ratio).item() == pytest.approx(0, abs=1e-12)
    ratio[0, 0] *= torch.e
    # The mean of all eight takes 1/8 from everything; the mean over the two sequences takes half of the extra 1.
    assert by_position(ratio, ratio).item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("batch", "length", "heads", "known"), [(1, 4, 2, True), (1, 3, 2, False), (2, 4, 1, True), (1, 4, 1, False)]
)
def test_by_position_needs_four_positions_and_two_vectors_at_each(batch: int, length: int, heads: int, known: bool):
    ratio = torch.ones(batch, length, 1, heads)
    assert (by_position(ratio, ratio).item() == 0) == known


@pytest.mark.parametrize(("missing", "known"), [(3, True), (4, False)])
def test_by_position_needs_more_than_half_of_the_ratios(missing: int, known: bool):
    ratio = torch.ones(1, 4, 1, 2)
    ratio.view(-1)[:missing] = nan
    assert (by_position(ratio, ratio).item() == 0) == known


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1, 2, 3, 4], True),
        ([4, 3, 2, 1], True),
        ([1, 1, 1, 1], False),
        ([1, 2, 3, 2.9], False),
        ([1, 2, 3, 2.99], True),
        ([1, 1.001, 1.003, 1.004], False),
        ([1, 1.004, 1.008, 1.012], True),
        ([1, nan, 2, 3], True),
    ],
)
def test_is_monotonic(numbers: list[float], expected: bool):
    """With a tolerance of 1 %: in one direction up to that, and by more than that in all."""
    assert is_monotonic(torch.tensor(numbers).view(1, -1, 1), 0.01) is expected


def test_every_sequence_must_be_monotonic():
    up, flat = torch.tensor([1.0, 2, 3, 4]), torch.ones(4)
    assert is_monotonic(torch.stack([up, up])[:, :, None], 0.01)
    assert not is_monotonic(torch.stack([up, flat])[:, :, None], 0.01)
    assert not is_monotonic(torch.stack([up, up.flip(0)])[:, :, None], 0.01)


def test_lengths_are_float64():
    found = lengths(torch.tensor([3.0, 4.0], dtype=torch.float16))
    assert (found.dtype, found.item()) == (torch.float64, 5.0)


def test_matches_come_latest_first_and_stop_when_one_is_good_enough():
    output = noise(1, 6, 8)
    first, last = record(output, "first"), record(output.clone(), "last")
    used = split(output, 2) * 0.5
    assert [match.record.name for match in matches(used, [first, last], one_number)] == ["last", "first"]
    assert [match.record.name for match in matches(used, [first, last], one_number, 1e-4)] == ["last"]
    (match,) = matches(used, [last], same_length)
    assert match.value == pytest.approx(0.5, rel=1e-6)
    assert match.ratio.shape == (1, 6, 2)
    assert match.spread < 1e-6


def test_only_some_tokens_and_sequences_are_compared():
    """They are spread over the sequence, ends included; what lies between them is not read."""
    output = noise(SEQUENCES + 2, 4 * TOKENS, 8)
    used = split(output, 2)
    chosen = torch.linspace(0, 4 * TOKENS - 1, TOKENS).round().long()
    (match,) = matches(used, [record(output)], same_length)
    assert match.ratio.shape == (SEQUENCES, TOKENS, 2)
    rest = torch.ones(4 * TOKENS, dtype=torch.bool)
    rest[chosen] = False
    used[:, :, rest] *= 7
    used[SEQUENCES:] *= 7
    assert matches(used, [record(output)], same_length)[0].spread < 1e-6
    used[0, 0, -1] *= 7
    assert matches(used, [record(output)], same_length)[0].spread > 0.1


@pytest.mark.parametrize("before", [0, 3])
def test_new_keys_are_found_at_either_end_of_a_cache(before: int):
    output = noise(1, 5, 8)
    used = noise(1, 2, 8, 4, seed=1)
    used[:, :, before : before + 5] = split(output, 2) * 2
    found = matches(used, [record(output)], one_number)
    assert len(found) == 2
    best = min(found, key=lambda match: match.spread)
    assert (best.value, best.spread < 1e-6) == (pytest.approx(2.0), True)
    assert found[1 if before == 0 else 0] is best, "the newest keys are tried first"


def test_a_vector_a_million_times_shorter_than_the_others_has_no_ratio():
    output = torch.ones(1, 6, 4)
    output[0, 2], output[0, 3] = 0.9e-6, 1.1e-6
    match = matches(split(output, 1), [record(output)], same_length)[0]
    assert match.ratio.isnan().flatten().tolist() == [False, False, True, False, False, False]


def test_blocks_of_other_heads_are_told_apart():
    """Of all assignments the one with the smallest spread is taken: here blocks 1 and 3 of 4."""
    output = noise(1, 6, 16)
    used = output.unflatten(-1, (4, 4))[:, :, [1, 3]].transpose(1, 2)
    (match,) = matches(used * 3, [record(output)], one_number)
    assert match.value == pytest.approx(3.0)
    assert match.spread < 1e-6


def test_the_ways_to_cut_four_blocks_into_two_heads():
    assert assignments(4, 2).tolist() == [[0, 1], [1, 2], [2, 3], [0, 2], [1, 3], [0, 0], [1, 1], [2, 2], [3, 3]]
    assert assignments(3, 2).tolist()[:2] == [[0, 1], [1, 2]]


def test_the_shapes_that_a_projection_may_have():
    def shapes(*shape: int) -> list[tuple[int, ...]]:
        return [tuple(view.shape) for view in tokens(torch.zeros(shape), 2, 5, 4)]

    assert shapes(2, 5, 8) == [(2, 5, 2, 4)]
    assert shapes(5, 2, 8) == [(2, 5, 2, 4)]
    assert shapes(10, 8) == [(2, 5, 2, 4), (2, 5, 2, 4)]
    assert shapes(2, 3, 5, 4) == [(2, 3, 5, 4), (2, 5, 3, 4)]
    assert shapes(2, 1, 5, 8) == [(2, 5, 2, 4)]
    assert shapes(6, 5, 4) == [(2, 5, 3, 4)]
    assert shapes(2, 6, 8) == shapes(2, 5, 7) == shapes(3, 5, 8) == []


@pytest.mark.parametrize(
    ("dtype", "wobble", "kind"),
    [(torch.float32, 0.8e-3, "constant"), (torch.float32, 3e-3, "untraced"), (torch.bfloat16, 5e-3, "constant"),
     (torch.bfloat16, 4e-2, "untraced"), (torch.float64, 0.8e-3, "constant"), (torch.float64, 3e-3, "untraced")],
)  # fmt: skip
def test_the_tolerance_is_a_thousandth_or_a_hundredth_in_half_precision(dtype: torch.dtype, wobble: float, kind: str):
    output = noise(2, 40, 8, seed=3)
    signs = 1 + wobble * (2 * torch.randint(0, 2, (2, 2, 40, 1), generator=torch.Generator().manual_seed(1)) - 1)
    factor, _ = trace((split(output, 2) * signs * 0.5).to(dtype), [frame(record(output.to(dtype)))])
    assert factor.kind == kind


def test_one_record_in_half_precision_widens_the_tolerance():
    output = noise(2, 40, 8, seed=3)
    used = split(output, 2) * (1 + 3e-3 * noise(2, 2, 40, 1, seed=4).sign())
    assert trace(used, [frame(record(output))])[0].kind == "untraced"
    assert trace(used, [frame(record(noise(3, 3).half(), "other"), record(output))])[0].kind == "constant"


def test_a_view_is_recognised_by_its_memory():
    """Even where its lengths prove nothing."""
    output = torch.zeros(1, 1, 4)
    factor, source = trace(output.unflatten(-1, (1, 4)).transpose(1, 2), [frame(record(output, "w"))])
    assert factor == Factor(1.0, "constant", "w")
    assert source is not None
    assert source.name == "w"


def test_the_projection_with_the_smallest_spread_wins():
    output = noise(2, 11, 8)
    near = record(output * (1 + 2e-4 * noise(2, 11, 8, seed=5)), "near")
    exact = record(output, "exact")
    for records in ((near, exact), (exact, near)):
        factor, _ = trace(split(output, 2) * 2, [frame(*records)])
        assert factor == Factor(pytest.approx(2.0, rel=1e-6), "constant", "exact")


def test_frames_are_searched_from_the_inside_up_to_the_attention_module():
    class SelfAttention(nn.Module):
        pass

    output = noise(2, 11, 8)
    outer, other = frame(record(output, "outer")), record(noise(2, 11, 8, seed=9), "other")
    used = split(output, 2)
    assert trace(used, [outer, frame(record(output.clone(), "inner"))])[0].source == "inner"
    assert trace(used, [outer, frame(other)])[0].source == "outer"
    assert trace(used, [outer, frame(other, module=SelfAttention())])[0].kind == "untraced"
    assert trace(used, [outer, frame(module=SelfAttention())])[0].source == "outer", "it has projected nothing itself"
    norm = record(noise(2, 11, 8, seed=9), "n", "norm")
    assert trace(used, [outer, frame(norm, module=SelfAttention())])[0].source == "outer"
    assert trace(used[:, :, :0], [outer]) == (Factor(None, "untraced"), None)


def unit(tensor: Tensor) -> Tensor:
    return tensor / tensor.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_norms_the_one_that_shares_memory_wins(order: tuple[int, int]):
    """Both give unit vectors, so that their lengths say nothing."""
    inputs = [noise(2, 2, 11, 4, seed=seed) for seed in (1, 2)]
    norms = [record(unit(x), f"norm{i}", "norm", source=x) for i, x in enumerate(inputs)]
    projections = [
        Record(f"w{i}", "projection", noise(2, 11, 8, seed=20 + i), None, storage_of(x)) for i, x in enumerate(inputs)
    ]
    factor, source = trace(norms[1].output, [frame(*projections, *(norms[i] for i in order))])
    assert factor == Factor(None, "normalised", "w1", pytest.approx(1.0))
    assert source == projections[1].about


def test_a_norm_whose_projection_was_not_seen_is_named_itself():
    x = noise(2, 2, 11, 4)
    norm = record(unit(x) * (1 + noise(4, seed=3).abs()), "norm", "norm", source=x)
    assert trace(norm.output * 1.5, [frame(norm)])[0] == Factor(None, "normalised", "norm", pytest.approx(1.5))
    by_place = norm.output * torch.arange(1.0, 12).view(-1, 1)
    assert trace(by_place, [frame(norm)])[0] == Factor(None, "normalised", "norm", None)


def test_equal_lengths_need_more_than_four_vectors_and_a_projection():
    five, projection = unit(noise(1, 1, 5, 4)), record(noise(1, 5, 4, seed=8))
    assert trace(five, [frame(projection)])[0] == Factor(None, "normalised")
    assert trace(five[:, :, :4], [frame(record(noise(1, 4, 4, seed=8)))])[0].kind == "untraced"
    assert trace(five, [frame()])[0].kind == "untraced"
    uneven = torch.cat([five, five * torch.tensor([1, 1, 1, 1, 1.01]).view(-1, 1)], 1)
    assert trace(uneven, [frame(record(noise(1, 5, 8, seed=8)))])[0].kind == "untraced", "each head must be even"
    assert trace(torch.cat([five, 2 * five], 1), [frame(record(noise(1, 5, 8, seed=8)))])[0].kind == "normalised"


def test_a_factor_that_rises_and_falls_is_not_per_query():
    output = noise(2, 6, 8)
    rising = torch.tensor([1.0, 2, 3, 4, 5, 6]).view(-1, 1)
    assert trace(split(output, 2) * rising, [frame(record(output))])[0] == Factor(None, "per-query", "there")
    assert trace(split(output, 2) * rising.flip(0), [frame(record(output))])[0].kind == "per-query"
    zigzag = torch.tensor([1.0, 2, 1, 4, 1, 6]).view(-1, 1)
    assert trace(split(output, 2) * zigzag, [frame(record(output))])[0].kind == "untraced"


def latent(heads: int = 2, own: int = 4, shared: int = 2, value: float = 0.5) -> tuple[Tensor, Record, Record]:
    """Keys of latent attention: `own` dimensions from each head's block [k|v], `shared` from the end of another projection,
    all times `value`."""
    up, down = noise(2, 9, heads * (own + 3), seed=1), noise(2, 9, 5 + shared, seed=2)
    first = up.unflatten(-1, (heads, -1)).transpose(1, 2)[..., :own]
    angle = torch.arange(9.0).view(-1, 1)
    a, b = down[:, None, :, -shared:].expand(-1, heads, -1, -1).chunk(2, -1)
    rest = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return torch.cat([first, rest], -1) * value, record(up, "up"), record(down, "down")


def test_keys_of_two_projections():
    used, up, down = latent()
    assert trace(used, [frame(down, up)])[0] == Factor(pytest.approx(0.5), "constant", "up")
    assert trace(used, [frame(up)])[0].kind == "untraced", "the shared part must come from somewhere"
    used[..., -1] *= 1.5
    assert trace(used, [frame(down, up)])[0].kind == "untraced"


def test_the_shared_part_of_keys_may_have_a_projection_of_its_own():
    used, up, down = latent()
    alone = record(down.output[..., -2:].clone(), "alone")
    assert trace(used, [frame(alone, up)])[0] == Factor(pytest.approx(0.5), "constant", "up")


@pytest.mark.parametrize("value", [1e-3, 300.0])
def test_keys_of_two_projections_are_compared_relative_to_their_size(value: float):
    used, up, down = latent(value=value)
    assert trace(used, [frame(down, up)])[0] == Factor(pytest.approx(value), "constant", "up")


def test_keys_of_two_projections_share_one_number():
    used, up, down = latent()
    used[..., 4:] *= 1.01
    assert trace(used, [frame(down, up)])[0].kind == "untraced"


def test_keys_of_two_projections_need_two_dimensions_of_their_own():
    for own, kind in ((1, "untraced"), (2, "constant")):
        used, up, down = latent(own=own)
        assert trace(used, [frame(down, up)])[0].kind == kind


def test_a_frame_passes_records_on_only_from_small_modules():
    for inside, passed in ((8, True), (9, False)):
        frames = Frames(nn.Identity(), Keeper())
        part = nn.Sequential(*(nn.Identity() for _ in range(inside)))
        frames.push(nn.Identity())
        frames.push(part)
        frames.note(frames.stack[-1], "w", "projection", (), noise(2, 3))
        frames.pop(part, (), None)
        assert bool(frames.stack[0].records) is passed


def test_the_factor_of_a_scaled_and_rotated_query():
    """1/√d times YaRN's m, over a rotation: the number that an audit reports."""
    output = noise(2, 13, 16)
    angle = torch.arange(13.0).view(-1, 1)
    a, b = split(output, 2).chunk(2, -1)
    rotated = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    value = (0.1 * log(16) + 1) / sqrt(8)
    assert trace(rotated * value, [frame(record(output))])[0] == Factor(
        pytest.approx(value, rel=1e-6), "constant", "there"
    )
