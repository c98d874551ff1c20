"""A factor folded into the weights of stock architectures: plain transformers, without Isotherm, gives what `apply` gives."""

import json
import subprocess
import sys

import pytest
import torch

import isotherm
from isotherm.errors import IsothermError
from tests.setting.architectures import KEYS, WITHOUT_WEIGHTS, batch, build, output

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' warnings are theirs
PLAIN = """
import sys, torch, transformers
for name, kind in zip(sys.argv[2::2], sys.argv[3::2]):
    folder = f"{sys.argv[1]}/{name}"
    model = getattr(transformers, kind).from_pretrained(f"{folder}-out").eval()
    with torch.no_grad():
        torch.save(model(**torch.load(f"{folder}-batch")).last_hidden_state, f"{folder}-plain")
assert not any(module.partition(".")[0] == "isotherm" for module in sys.modules)
"""
QUICK = ("Bert", "GPT2", "Gemma3Text", "DeepseekV3")


@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(KEYS), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_plain_transformers_runs_it_without_us(names, tmp_path):
    asked, kinds = {}, []
    for name in names:
        model = build(name)
        model.save_pretrained(tmp_path / name)
        torch.save(batch(model), tmp_path / f"{name}-batch")
        isotherm.write(tmp_path / name, "x0.7", out=tmp_path / f"{name}-out")
        with isotherm.apply(model, "x0.7"):
            asked[name] = output(model, batch(model))
        assert not torch.allclose(output(model, batch(model)), asked[name], atol=1e-3)
        kinds += [name, type(model).__name__]
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(tmp_path), *kinds], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for name, wanted in asked.items():
        assert torch.allclose(torch.load(tmp_path / f"{name}-plain"), wanted, rtol=1e-5, atol=1e-5), name


def test_there_are_enough_architectures():
    assert len(KEYS) >= 25


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_architectures_without_such_weights_are_refused(name, tmp_path):
    build(name).save_pretrained(tmp_path / "in")
    with pytest.raises(IsothermError, match=r"self_attn|rel_attn"):
        isotherm.write(tmp_path / "in", "x0.7", out=tmp_path / "out")
    assert "model_type" in json.loads((tmp_path / "in" / "config.json").read_text(encoding="utf-8"))
    assert not (tmp_path / "out").exists()
