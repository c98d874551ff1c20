"""What is said about the model and the batch that were checked."""

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.batch import place
from isotherm.checkup.subject import ModelSource, subject_of
from tests.checkup.models import Attention, Model, batch

SOURCE = ModelSource("name", "origin")
TOKENS = torch.zeros(2, 7, 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (TOKENS, (2, 7)),
        ({"labels": None, "input_ids": TOKENS}, (2, 7)),
        (("word", TOKENS, torch.zeros(9, 9)), (2, 7)),
        (torch.zeros(5), (5, 0)),
        (torch.zeros(()), (1, 0)),
        ((), (1, 0)),
    ],
)
def test_the_first_tensor_gives_sequences_and_tokens(given, expected):
    subject = subject_of(nn.Linear(3, 2).bfloat16(), given, SOURCE)
    assert (subject.batch, subject.tokens) == expected
    assert (subject.architecture, subject.parameters, subject.dtype, subject.device) == ("Linear", 8, "bfloat16", "cpu")


def test_a_model_without_parameters():
    subject = subject_of(nn.Identity(), TOKENS, SOURCE)
    assert (subject.parameters, subject.dtype, subject.at_initialisation) == (0, "float32", False)


@pytest.mark.parametrize(("gains", "untrained"), [((1.0, 1.0), True), ((1.0, 1.01), False), ((0.0, 1.0), True)])
def test_a_model_looks_untrained_while_every_gain_is_as_it_was_made(gains, untrained):
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3), nn.RMSNorm(3))
    for norm, gain in zip((model[0], model[2]), gains, strict=True):
        nn.init.constant_(norm.weight, gain)
    assert subject_of(model, TOKENS, SOURCE).at_initialisation is untrained


class CountingNorm(nn.BatchNorm1d):
    """A norm without gains that counts its batches."""

    def __init__(self, counted):
        super().__init__(3, affine=False)
        self.num_batches_tracked.fill_(counted)


@pytest.mark.parametrize(("counted", "untrained"), [(0, True), (2, False)])
def test_a_norm_that_has_counted_a_batch_was_trained(counted, untrained):
    model = nn.Sequential(nn.LayerNorm(3), CountingNorm(counted))
    assert subject_of(model, TOKENS, SOURCE).at_initialisation is untrained


@pytest.mark.parametrize(
    ("name", "shape", "untrained"),
    [
        ("gamma", (2, 3), False),
        ("weight", (2, 3), True),
        ("weight", (3,), False),
        ("bias", (3,), True),
        ("b", (3,), True),
    ],
)
def test_gains_are_told_by_name_and_shape(name, shape, untrained):
    """A gain of 2 was trained; a bias may be anything, and so may a matrix that is not named after a gain."""

    class SomeNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.full(shape, 2.0)))

    model = nn.Sequential(nn.LayerNorm(3), SomeNorm())
    assert subject_of(model, TOKENS, SOURCE).at_initialisation is untrained


def test_progress_rises_from_nothing_to_the_last_layer():
    """A bar never goes back, names every layer three times, and each stage ends where the next one begins."""
    torch.manual_seed(0)
    told = []
    model = Model(Attention(), Attention())
    isotherm.check(model, batch(), what_if=["none"], progress=lambda what, done: told.append((what.en, done)))
    fractions = [done for _, done in told]
    assert fractions == sorted(fractions)
    assert fractions == pytest.approx([0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9])
    for name in ("layers.0", "layers.1"):
        assert sum(name in what for what, _ in told) == 3


def test_what_a_check_up_cost():
    torch.manual_seed(0)
    cost = isotherm.check(Model(Attention()), batch(), what_if=()).record.cost
    assert 0 < cost.model_seconds < cost.seconds
    assert 50 < cost.peak_mib < 50_000


def test_the_device_is_that_of_weights_that_are_somewhere():
    """Weights that are kept elsewhere until they are needed have no device; the first others do."""
    model = nn.Sequential(nn.Linear(3, 3, device="meta"), nn.Linear(3, 3), nn.Linear(3, 3, device="meta"))
    assert subject_of(model, TOKENS, SOURCE).device == "cpu"
    assert subject_of(model[:1], TOKENS, SOURCE).device == "meta"
    assert place(model)[0].type == "cpu"
    assert place(model[:1])[0].type == "cpu"
