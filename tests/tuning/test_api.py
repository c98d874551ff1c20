"""What a person calls: `isotherm.tune` and `isotherm.temperature_gradient`."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import isotherm
from isotherm.errors import ArgumentError
from isotherm.tuning import TuneSettings
from tests.tuning.copiers import HALF, copier, material, words

STEP = 1e-3


def test_tune_takes_a_model_and_a_text(tmp_path):
    report = isotherm.tune(
        copier(layers=0.5), material(40).text, tokenizer=words, by_line=True, lengths=[2 * HALF],
        settings=TuneSettings(documents=40, last=HALF),
    )  # fmt: skip
    best = report.record.lengths[0].best
    assert best.low < 2 < best.high
    assert json.loads(report.to_json(tmp_path / "tuned.json"))["schema"] == "isotherm.tune/1"
    assert (tmp_path / "tuned.json").read_text() == report.to_json() + "\n"
    assert "Decoder" in str(report)
    assert report.to_html(tmp_path / "tuned.html").read_text().startswith("<!doctype html>")


@pytest.fixture(scope="module")
def gpt() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A fused projection, and logits large enough that the scale matters."""
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, initializer_range=0.3, **sizes)).double().eval()
    return model, {"input_ids": torch.randint(50, (2, 16))}


def test_the_temperature_gradient_of_any_loss_equals_finite_differences(gpt):
    model, batch = gpt

    def loss(output) -> torch.Tensor:
        return F.cross_entropy(output.logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())

    found = isotherm.temperature_gradient(model, batch, loss)
    assert list(found) == ["transformer.h.0.attn", "transformer.h.1.attn"]
    for name, values in found.items():
        assert values.shape == (4,)
        for head in range(4):
            sides = []
            for x in (STEP, -STEP):
                factors = torch.ones(4, dtype=torch.float64)
                factors[head] = math.exp(x)
                with torch.no_grad(), isotherm.apply(model, {name: factors}):
                    sides.append(loss(model(**batch)).item())
            assert values[head].item() == pytest.approx((sides[0] - sides[1]) / (2 * STEP), rel=1e-3, abs=1e-8)
    assert max(values.abs().max().item() for values in found.values()) > 1e-3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_no_loss_and_no_model_is_refused(gpt):
    model, batch = gpt
    with pytest.raises(ArgumentError, match="loss"):
        isotherm.temperature_gradient(model, batch, lambda output: output.logits)
    with pytest.raises(ArgumentError, match="model"):
        isotherm.temperature_gradient("gpt2", batch, lambda output: output.loss)
    with pytest.raises(ArgumentError, match="model"):
        isotherm.tune(3, "text")
    with pytest.raises(ArgumentError, match="lengths"):
        isotherm.tune(model, "text", lengths=[1])
