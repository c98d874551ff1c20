"""The finding: a copy with its scale multiplied, pairs found by hand, and recorded factors measured again."""

import pytest
import torch

from isotherm.lab.minilm import NEEDS, trained
from isotherm.lab.story import MODEL, finding, measured, story
from isotherm.probe import probe
from isotherm.record import to_plain

for name in NEEDS:
    pytest.importorskip(name)


@pytest.fixture(scope="module")
def loaded():
    return trained()


def test_there_are_enough_pairs_and_no_sentence_twice():
    assert len(finding.THREES) >= 100
    assert {len(three) for three in finding.THREES} == {3}
    assert len(set(finding.SENTENCES)) == len(finding.SENTENCES)


def test_a_pair_is_found_if_no_candidate_is_nearer_than_its_sentence():
    one, two, three = torch.eye(3, dtype=torch.float64)
    found, lost = (one, one + 0.1 * two, three), (two, two + 2 * three, three)  # the look-alike of the second is nearer
    embeddings = torch.stack([*found, *lost])
    assert finding.found_pairs(embeddings) == [1.0, 0.0]


def test_a_copy_has_its_logits_multiplied_and_the_model_stays_as_it_was(loaded):
    before = [parameter.clone() for parameter in loaded.model.parameters()]
    copy = finding.with_factor(loaded.model, 3.0)
    ids = torch.tensor([[101, 7592, 2088, 102]])
    seen = []
    for model in (loaded.model, copy):
        with torch.no_grad(), probe(model) as looked:
            model(input_ids=ids)
        seen.append(looked.captures[0].problem)
    one, other = ((it.scale * it.q @ it.k.mT).double() for it in seen)
    torch.testing.assert_close(other, 3.0 * one, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(before, loaded.model.parameters(), strict=True))
    scaled = [module for name, module in copy.named_modules() if name.endswith("attention.self.query")]
    assert len(scaled) == 6


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(6,), finding.PARTS], ids=["one factor", "every factor"])
def test_recorded_factors_are_measured_again(loaded, parts):
    on_record = measured().finding
    points = [on_record.points[finding.PARTS.index(part)] for part in parts]
    again = finding.measure(loaded, tuple(point.factor for point in points))
    assert (again.d, again.pairs, again.candidates) == (on_record.d, on_record.pairs, on_record.candidates)
    assert again.tokens == pytest.approx(on_record.tokens)
    for one, other in zip(again.points, points, strict=True):
        assert one.share == pytest.approx(
            other.share, abs=1.5 / on_record.pairs
        )  # another machine may round one pair away
        assert one.gate == pytest.approx(other.gate, rel=1e-3)
        assert one.entropy == pytest.approx(other.entropy, rel=1e-3)


def test_the_record_spans_the_three_scales_and_a_step_beyond():
    found = measured().finding
    factors = [point.factor for point in found.points]
    assert factors == sorted(factors)
    assert len(factors) == 15
    assert factors[0] < found.d**-0.5 < 1.0 < found.d**0.5 < factors[-1]
    assert 1.0 in factors
    assert all(point.low <= point.share <= point.high for point in found.points)


def test_the_recorded_curves_are_those_of_every_head():
    record = story().model
    assert record.model.name == "all-MiniLM-L6-v2"
    assert [len(layer.curve.heads) for layer in record.layers] == [12] * 6
    assert all(1.0 in layer.curve.factors for layer in record.layers)
    assert len(str(to_plain(record))) < 120_000, MODEL
