"""The walk over a model gives what PyTorch's iterators give."""

import pytest
import torch
from torch import nn

from isotherm.probe.members import buffers_of, modules_of, parameters_of


def shared():
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.BatchNorm1d(2), nn.Identity()]), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    model.register_module("none", None)
    model.register_module("again", model[1])
    model.register_parameter("empty", None)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("made", [shared, lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))])
def test_a_walk_gives_what_pytorch_gives(made):
    model = made()
    assert modules_of(model) == list(model.named_modules())
    for mine, theirs in ((parameters_of(model), model.parameters()), (buffers_of(model), model.buffers())):
        assert [one.data_ptr() for one in mine] == [one.data_ptr() for one in theirs]
