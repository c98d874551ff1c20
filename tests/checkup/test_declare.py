"""What a configuration declares about rotary embeddings, which transformers writes in several ways."""

from math import log, sqrt
from types import SimpleNamespace

import pytest
from torch import nn

from isotherm.checkup.declare import LayerPlace, declared

LONG = {"rope_type": "longrope"}
YARN = {"rope_type": "yarn", "factor": 4.0}


def number(layer=0, **config):
    """The declared multiplier at d = 64, divided by 1/√d."""
    found = declared(LayerPlace(nn.Identity(), SimpleNamespace(model_type="phi3", **config), layer, 64))
    return found.value * 8


def longrope(stretch, length):
    return sqrt(1 + log(stretch) / log(length)) ** 2  # on q and on k


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_scaling": LONG, "max_position_embeddings": 8192}, 1.0),
        ({"rope_scaling": LONG, "original_max_position_embeddings": 2048}, 1.0),
        (
            {"rope_scaling": LONG, "max_position_embeddings": 8192, "original_max_position_embeddings": 2048},
            longrope(4, 2048),
        ),
        ({"rope_scaling": LONG | {"factor": 8.0}, "max_position_embeddings": 4096}, longrope(8, 4096)),
        (
            {"rope_parameters": LONG | {"original_max_position_embeddings": 1024}, "max_position_embeddings": 2048},
            longrope(2, 1024),
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, (0.1 * log(4) + 1) ** 2),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 1.0),
        ({}, 1.0),
    ],
)
def test_the_factor_of_a_stretched_rotary_embedding(config, expected):
    assert number(**config) == pytest.approx(expected)


def test_each_kind_of_layer_has_its_own_parameters():
    of_kinds = {"sliding": {"rope_type": "default"}, "full": YARN}
    kinds = ["sliding", "full"]
    assert [number(at, rope_parameters=of_kinds, layer_types=kinds) for at in (0, 1)] == [
        1.0,
        number(rope_scaling=YARN),
    ]
    assert number(1, rope_parameters=of_kinds) == 1.0  # without a list of kinds the first is as good as any
