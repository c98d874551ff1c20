"""Stock models of other libraries: nothing false is said about them, nothing of their attention goes unmentioned."""

from typing import Any

import pytest
import torch
from torch import nn

import isotherm
from tests.wild.architectures import TRANSFORMERS
from tests.wild.sciences import LIBRARIES
from tests.wild.stock import Stock, tensors
from tests.wild.vision import OPEN_CLIP, TIMM, TORCHVISION, VIT_PYTORCH

pytestmark = [pytest.mark.wild, pytest.mark.filterwarnings("ignore")]  # other libraries' warnings are theirs

TABLES = {
    "transformers": TRANSFORMERS,
    "timm": TIMM,
    "torchvision": TORCHVISION,
    "vit_pytorch": VIT_PYTORCH,
    "open_clip": OPEN_CLIP,
    **LIBRARIES,
}
MODELS = [pytest.param(row, id=f"{library}-{name}") for library, table in TABLES.items() for name, row in table.items()]


def run(model: nn.Module, batch: Any, *, whole: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)  # some models draw numbers in evaluation mode too
    with torch.no_grad():
        if isinstance(batch, dict) and not whole:
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, tuple) else model(batch)
    return [tensor.clone() for tensor in tensors(output)]


def hooks(model: nn.Module) -> list[tuple[int, int, bool]]:
    return [
        (len(module._forward_hooks), len(module._forward_pre_hooks), "forward" in vars(module))
        for module in model.modules()
    ]


@pytest.mark.parametrize("row", MODELS)
def test_a_stock_model(row: Stock):
    pytest.importorskip(row.library)
    model, batch = row.build()
    before, hooked = run(model, batch, whole=row.whole), hooks(model)
    report = isotherm.check(model, batch, what_if=())
    after = run(model, batch, whole=row.whole)

    true = row.true | ({"attention-not-seen"} if report.record.unseen else set())
    if report.record.unseen and not report.layers:
        true |= {"nothing-seen"}  # a model of linear attention only
    false = [f.message.en for f in report.findings if f.severity != "note" and f.code not in true]
    assert false == []
    seen, unseen = [layer.name for layer in report.layers], report.record.unseen
    listed = [module.name for module in unseen if module.severity != "note"]
    without_softmax = [module.name for module in unseen if module.severity == "note"]
    least = len(seen) + len(listed)
    assert least <= row.layers <= least + len(without_softmax), (seen, listed, without_softmax)
    assert len(listed) <= row.unseen, listed
    unknown = [layer.name for layer in report.layers if layer.scale.effective is None]
    assert len(unknown) <= row.unknown, unknown

    assert hooks(model) == hooked
    assert len(before) == len(after) > 0
    assert all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(before, after, strict=True))


def test_there_are_enough_models():
    others = {library: table for library, table in TABLES.items() if library != "transformers"}
    assert len(TRANSFORMERS) >= 60
    assert len(others) >= 6
    assert sum(len(table) for table in others.values()) >= 25
