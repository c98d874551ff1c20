"""Faults planted in an antibody GPT with trained weights: the interval of `tune`'s factor holds what undoes them.

The held-out text is drawn from the model itself, so there is as much of it as an interval of ± 5 % takes. The factor that is
best for it need not be 1: only sequences of at least `LENGTH` residues are kept, which are not all that the model would write.
"""

import pytest
import torch
from torch import nn

from isotherm.checkup.loading.loaded import Loaded
from isotherm.record.tune import TunedFactor
from isotherm.tuning.documents import Material, TextReader
from isotherm.tuning.tune import TuneSettings, tuned
from tests.wild.trained import TRAINED, attentions

pytestmark = pytest.mark.wild
LENGTH, SEQUENCES, LAYER = 100, 1100, 1
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


@pytest.fixture(scope="module")
def iglm() -> tuple[nn.Module, Material]:
    """The smaller IgLM, and heavy chains that it wrote."""
    model, batch = TRAINED["iglm-small"].load()
    start = batch["input_ids"][:, :2]
    words = TRAINED["iglm-small"].words()
    only = [number for number, word in enumerate(words) if word not in (*RESIDUES, "[SEP]")]
    end = words.index("[SEP]")
    torch.manual_seed(0)
    rows: list[list[int]] = []
    while len(rows) < SEQUENCES:
        drawn = model.generate(
            start.repeat(256, 1),
            attention_mask=torch.ones(256, 2, dtype=torch.long),
            do_sample=True,
            top_k=0,
            max_new_tokens=LENGTH,
            suppress_tokens=only,
            eos_token_id=end,
            pad_token_id=end,
        )
        rows += [row for row in drawn.tolist() if end not in row[:LENGTH]]
    text = "\n".join(" ".join(map(str, row[:LENGTH])) for row in rows[:SEQUENCES])
    return model, Material("heavy chains", text, TextReader(lambda line: [int(word) for word in line.split()]), "lines")


def best(iglm: tuple[nn.Module, Material], *layers: str) -> TunedFactor:
    model, material = iglm
    settings = TuneSettings(documents=SEQUENCES, layers=layers)
    found = tuned(Loaded(model, "iglm", "iglm"), material, (LENGTH,), settings).lengths[0].best
    print(f"\n{layers or 'all'}: {found}")
    return found


@pytest.mark.parametrize(("layers", "factor"), [((), 0.7), ((str(LAYER),), 3.0)], ids=["all x0.7", "one layer x3"])
def test_the_interval_holds_what_undoes_the_fault(iglm, layers, factor):
    wanted = best(iglm, *layers).factor / factor
    chosen = attentions(iglm[0])
    chosen = [chosen[int(layer)] for layer in layers] or chosen
    for attention in chosen:
        attention.scaling *= factor
    try:
        found = best(iglm, *layers)
    finally:
        for attention in chosen:
            attention.scaling /= factor
    assert found.low <= wanted <= found.high
    assert found.low > 0.95 * found.factor
    assert found.high < 1.05 * found.factor
    assert found.worth
