"""`isotherm.apply` on stock models: q·k is multiplied by the factor in every layer, or the model is refused."""

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.advice import _ratio
from isotherm.checkup.changes import Members
from isotherm.checkup.measure import look
from isotherm.checkup.trial import Bench
from isotherm.checkup.ways import CallSite
from isotherm.errors import ArgumentError
from tests.wild.architectures import TRANSFORMERS
from tests.wild.stock import Stock

pytestmark = [pytest.mark.wild, pytest.mark.filterwarnings("ignore")]  # other libraries' warnings are theirs
REFUSED = {
    "led", "longformer", "mra", "pegasus_x", "prophetnet", "xlnet", "yoso", "rf_detr",
    "swiftformer", "swinv2",
}  # fmt: skip
"""Models of which some attention cannot be seen, or makes its queries in a way in which nothing can be multiplied."""


@pytest.mark.parametrize(("name", "row"), TRANSFORMERS.items(), ids=list(TRANSFORMERS))
def test_every_layer_is_multiplied_or_the_model_is_refused(name: str, row: Stock):
    torch.manual_seed(0)
    model, batch = row.build()
    varied(model)
    with torch.no_grad():
        before = look(model, batch).captures
        members = Members(model)
        homes = {CallSite(members, capture, "").home for capture in before}
        homes = {one for one in homes if one and not any(other.startswith(f"{one}.") for other in homes)}
        bench = Bench(model, batch, before, homes)
        bench.run_changed(lambda _: None)  # the outputs as they are
        try:
            applied = isotherm.apply(model, "x0.5", batch=batch)
        except ArgumentError:
            assert name in REFUSED
            return
        assert name not in REFUSED
        with applied:
            after = bench.run_changed(lambda _: None)
    if after is None:
        pytest.skip("a copy of it attends otherwise")
    for one, other in zip(before, after, strict=True):
        if one.affine and other.affine and CallSite(members, one, "").home in homes:
            assert _ratio(one, other, None) == pytest.approx(0.5, rel=1e-2), one.name


def varied(model: nn.Module) -> None:
    """Weights that differ enough for every head to count."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.dim() >= 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
