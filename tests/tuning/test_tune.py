"""Planted faults on a model that has learned something: the interval holds what undoes them."""

import pytest
import torch
from torch import nn

from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.language import LANGUAGES
from isotherm.record import from_plain, to_plain
from isotherm.record.tune import TuneRecord
from isotherm.tuning.tune import TuneSettings, tuned
from tests.tuning.copiers import HALF, copier, loaded, material

DOCUMENTS = 320
LENGTH = 2 * HALF


def run(model: nn.Module, *layers: str, documents: int = DOCUMENTS, per: str | None = None) -> TuneRecord:
    settings = TuneSettings(documents=documents, last=HALF, layers=layers, per=per)
    return tuned(loaded(model), material(documents), (LENGTH,), settings)


@pytest.fixture(scope="module")
def clean() -> TuneRecord:
    return run(copier())


def test_a_scale_multiplied_in_every_layer_is_found(clean):
    wanted = clean.lengths[0].best.factor / 0.7
    best = run(copier(layers=0.7)).lengths[0].best
    assert best.low <= wanted <= best.high
    assert best.factor == pytest.approx(wanted, rel=0.01)
    assert best.low > 0.95 * best.factor
    assert best.high < 1.05 * best.factor
    assert best.worth


def test_a_scale_multiplied_in_one_layer_is_found_in_that_layer():
    wanted = run(copier(), "0").lengths[0].best.factor / 3
    best = run(copier(first=3.0), "0").lengths[0].best
    assert best.low <= wanted <= best.high
    assert best.low > 0.95 * best.factor
    assert best.high < 1.05 * best.factor
    assert best.worth


def test_steps_along_the_gradient_find_the_layer_by_themselves(clean):
    record = run(copier(first=3.0), per="layer")
    first = record.steps[0]
    assert first.layer == record.layers[0]
    assert first.gradient > 0
    assert first.best.worth
    assert first.best.low <= 1 / 3 <= first.best.high
    assert first.loss == pytest.approx(clean.lengths[0].loss, abs=0.01)
    assert record.lengths[0].loss > clean.lengths[0].loss + 0.1


def test_a_model_at_its_best_is_left_as_it_is(clean):
    assert not clean.lengths[0].best.worth


def test_the_model_is_left_bit_for_bit_as_it_was():
    model = copier()
    ids = torch.arange(1, LENGTH).view(1, -1)
    before = model(ids)
    run(model, documents=8, per="head")
    assert torch.equal(model(ids), before)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_length_that_is_too_long_is_told_before_others_are_measured():
    model, told, windows = copier(), [], material(60)
    windows.cut = "windows"
    with pytest.raises(IsothermError, match="at most 24 tokens"):
        tuned(
            loaded(model), windows, (8, 2 * LENGTH), TuneSettings(documents=8), lambda what, _: told.append(str(what))
        )
    assert told == []
    settings = TuneSettings(documents=8, evaluations=3)
    assert [one.length for one in tuned(loaded(model), windows, (8, 16), settings).lengths] == [8, 16]


def test_the_record_goes_through_json(clean):
    assert from_plain(TuneRecord, to_plain(clean)) == clean


def test_every_point_is_compared_with_the_model_as_it_is(clean):
    points = clean.lengths[0].points
    as_is = next(point for point in points if point.factor == 1)
    assert (as_is.change, as_is.low, as_is.high) == (0, 0, 0)
    for point in points:
        assert point.change == pytest.approx(point.loss - as_is.loss)
        assert point.low <= point.change <= point.high
    assert [point.factor for point in points] == sorted(point.factor for point in points)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_cannot_be_tuned_is_refused(language):
    with pytest.raises(ArgumentError, match="7") as refused:
        run(copier(), "7")
    assert refused.value.text.to(language)
    with pytest.raises(InputError, match=r"held-out.*30"):
        tuned(loaded(copier()), material(8), (30,), TuneSettings())
    long = copier()
    with pytest.raises(IsothermError, match="48"):  # the text is long enough, the model has no positions for it
        tuned(loaded(long), twice(), (2 * LENGTH,), TuneSettings())
    with pytest.raises(ArgumentError, match="eval"):
        tuned(loaded(copier().train()), material(8), (LENGTH,), TuneSettings())
    with pytest.raises(ArgumentError, match="Linear"):
        tuned(loaded(nn.Linear(2, 2).eval()), material(8), (LENGTH,), TuneSettings())


def twice():
    short = material(8)
    short.text = "\n".join(f"{line} {line}" for line in short.text.split("\n"))
    return short
