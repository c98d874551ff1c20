"""Snapshots: q and k of a layer that an alert named, which `isotherm check` opens and judges."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from isotherm.checkup.load import Loading, load
from isotherm.cli import run
from isotherm.monitor.monitor import watch
from isotherm.monitor.snapshots import Snapshot
from isotherm.ops import Problem, Visibility, reference
from tests.monitor.loops import Attention, Written, build, train


@pytest.mark.parametrize("kind", [Attention, Written])
def test_an_alert_leaves_a_file_that_check_opens(kind, tmp_path, capsys):
    model = build(kind)
    with torch.no_grad():
        model.layers[1].qkv.weight[:32] *= 50
    files = []

    def keep(event):
        if not files:
            files.append(monitor.snapshot(event.layer, tmp_path / "seen"))

    monitor = watch(model, every=1, rows=None, on_alert=keep)
    train(model, 2, monitor, lr=1e-9)
    (file,) = files
    assert file.name == "layer-01-step-1.npz"
    assert run(["check", str(file), "--json"]) in (0, 1)
    layer = json.loads(capsys.readouterr().out)["layers"][0]
    assert layer["name"] == "layers.1"
    assert monitor.latest.step == 1
    found = max(head["max_logit"] for head in layer["head_stats"])
    assert found == pytest.approx(monitor.latest.values["max_logit"][2:].max(), rel=1e-5)


def problem(**options):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, heads, 7, 8, generator=generator) for heads in (4, 2))
    return Problem(q, k, k, Visibility(torch.arange(7), 7, **options), 0.5)


def test_the_worst_sequence_is_kept():
    one = problem(causal=True)
    one.q[1] *= 5
    torch.testing.assert_close(Snapshot.of(one).q[0], one.q[1])
    one.q[2, 0, 0, 0] = torch.nan
    assert Snapshot.of(one).q.isnan().any()


@pytest.mark.parametrize("cap", [None, 2.0])
def test_what_is_opened_computes_what_was_saved(cap, tmp_path):
    one = replace(problem(window=3, causal=True), softcap=cap, bias=torch.randn(1, 4, 7, 7))
    Snapshot.of(one).save(tmp_path / "one.npz", model="mine", module="blocks.3.attn", step=7)
    loaded = load(str(tmp_path / "one.npz"), Loading())
    kept = Snapshot.of(one)
    whole = Problem(kept.q, kept.k, kept.k, Visibility(torch.arange(7), 7, mask=kept.mask), 0.5, kept.bias, cap)
    want = reference.solve(whole, stats=False).output
    torch.testing.assert_close(loaded.model(*loaded.batch), want, rtol=1e-5, atol=1e-6)
    assert "blocks.3.attn" in dict(loaded.model.named_modules())


@pytest.mark.parametrize("what", ["text", "array", "schema", "shape"])
def test_what_is_no_snapshot_is_one_clear_error(what, tmp_path, capsys):
    path = tmp_path / "one.npz"
    if what == "text":
        path.write_text("no zip file")
    elif what == "array":
        np.savez(path, q=np.zeros(3))
    else:
        about = {"schema": "isotherm.snapshot/1", "scale": 1, "softcap": None, "model": "m", "module": "a", "step": 0}
        shape = (1, 2, 3) if what == "shape" else (1, 2, 3, 4)
        about["schema"] = "another" if what == "schema" else about["schema"]
        np.savez(path, q=np.zeros(shape, np.float32), k=np.zeros(shape, np.float32), about=np.array(json.dumps(about)))
    assert run(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert "not a snapshot of schema isotherm.snapshot/1" in said
    assert "Traceback" not in said
