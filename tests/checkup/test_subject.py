"""What is said about the model and the batch that were checked."""

import pytest
import torch
from torch import nn

from isotherm.checkup.subject import ModelSource, subject_of

SOURCE = ModelSource("name", "origin")
TOKENS = torch.zeros(2, 7, 3)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (TOKENS, (2, 7)),
        ({"labels": None, "input_ids": TOKENS}, (2, 7)),
        (("word", TOKENS, torch.zeros(9, 9)), (2, 7)),
        (torch.zeros(5), (5, 0)),
        (torch.zeros(()), (1, 0)),
        ((), (1, 0)),
    ],
)
def test_the_first_tensor_gives_sequences_and_tokens(batch, expected):
    subject = subject_of(nn.Linear(3, 2).bfloat16(), batch, SOURCE)
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
