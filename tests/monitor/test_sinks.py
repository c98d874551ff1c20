"""Sinks, each with the real library writing to disk, where that library is installed."""

import importlib
import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from isotherm.language import Text
from isotherm.monitor import sinks
from isotherm.monitor.monitor import watch
from isotherm.record.watch import Event, WatchedLayer
from tests.monitor.loops import batch, build, train
from tests.monitor.runs import LAYERS, reading

ALERT = Event(50, 1.7e9, "alert", "max-logit-100", 2, 3, Text("hot", "过热"), {})
NAMES = {
    "attn/entropy_mean",
    "attn/entropy_min",
    "attn/max_logit",
    "attn/gate_mean",
    "attn/saturated_frac",
    "attn/invalid_frac",
    "attn/grad_qk_norm",
    "attn/alerts",
}
WORST = "attn/worst_L02_H03"
STEPS = (0, 50, 100)


def _wandb(folder, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    return sinks.WandB(LAYERS, wandb.init(mode="offline", dir=str(folder), project="isotherm"))


def _mlflow(folder, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri((folder / "runs").as_uri())
    return sinks.MLflow(LAYERS)


def _swanlab(folder, _):
    import swanlab

    swanlab.init(project="isotherm", logdir=str(folder), mode="offline")
    return sinks.SwanLab(LAYERS)


SINKS = {
    "tensorboard": lambda folder, _: sinks.TensorBoard(LAYERS, folder),
    "wandb": _wandb,
    "mlflow": _mlflow,
    "swanlab": _swanlab,
}


def end(name):
    """End the library's current run, as whoever trains does."""
    if name in ("wandb", "swanlab"):
        importlib.import_module(name).finish()
    if name == "mlflow":
        importlib.import_module(name).end_run()


def feed(sink):
    """Three readings of a run with one hot head, and an alert after the first."""
    for step in STEPS:
        sink.reading(reading(step, hot=0.5))
        if step == 0:
            sink.event(ALERT)
    sink.close()


def expected(step):
    return float(reading(step, hot=0.5).values["max_logit"].max())


def test_there_are_eight_numbers_and_the_worst_heads():
    summary = sinks.Summariser(LAYERS)
    one = reading(0, hot=0.5)
    numbers = summary.numbers(one)
    assert numbers.keys() == NAMES | {WORST}
    assert numbers["attn/max_logit"] == numbers[WORST] == one.values["max_logit"].max()
    assert numbers["attn/entropy_mean"] == pytest.approx(one.values["entropy"].mean())
    norms = np.concatenate([one.gradients["q"], one.gradients["k"]])
    assert numbers["attn/grad_qk_norm"] == pytest.approx(np.linalg.norm(norms))


def test_no_run_makes_more_than_a_dozen_numbers():
    layers = tuple(WatchedLayer(number, str(number), 32) for number in range(32))
    summary, names = sinks.Summariser(layers), set()
    for step in range(50):
        names |= summary.numbers(reading(step, layers)).keys()
    assert len(names) == len(NAMES) + sinks.WORST


def test_what_is_not_finite_is_not_handed_on():
    one = reading(0)
    for values in (*one.values.values(), *one.gradients.values()):
        values[:] = np.nan
    summary = sinks.Summariser(LAYERS)
    assert summary.numbers(one) == {"attn/alerts": 0.0}
    assert (summary.picture(one) == sinks.BLANK).all()


def test_the_picture_has_a_row_for_each_layer_and_dark_is_sharp():
    layers = (*LAYERS, WatchedLayer(9, "wide", 6))
    one = reading(0, layers)
    one.values["gate"][0], one.values["gate"][1] = 0, 1
    picture = sinks.Summariser(layers).picture(one)
    assert picture.shape == (4 * sinks.CELL, 6 * sinks.CELL, 3)
    assert picture[0, 0].sum() < 200
    assert picture[0, sinks.CELL].sum() > 500
    assert tuple(picture[0, -1]) == sinks.BLANK


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    feed(sinks.TensorBoard(LAYERS, tmp_path))
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == NAMES | {WORST}
    assert [(one.step, one.value) for one in found.Scalars(WORST)] == [
        (step, pytest.approx(expected(step))) for step in STEPS
    ]
    assert [one.value for one in found.Scalars("attn/alerts")] == [0, 1, 1]
    assert found.Scalars("attn/max_logit")[1].wall_time == reading(50).at
    pictures = found.Images(sinks.PICTURE)
    assert [(one.step, one.width, one.height) for one in pictures] == [
        (step, 4 * sinks.CELL, 3 * sinks.CELL) for step in STEPS
    ]
    assert pictures[0].encoded_image_string.startswith(b"\x89PNG")


def test_a_summary_writer_of_the_caller_s_stays_open(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        sink = sinks.TensorBoard(LAYERS, writer)
        sink.reading(reading(0))
        sink.close()
        assert writer.all_writers  # a writer that was closed has none, and would open a second file


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", SINKS)
def test_without_pillow_the_numbers_are_handed_on(name, tmp_path, monkeypatch):
    """All four libraries make pictures with Pillow, and raise an error without it."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    find = sinks.find_spec
    monkeypatch.setattr(sinks, "find_spec", lambda what: None if what == "PIL" else find(what))
    monkeypatch.setitem(sys.modules, "PIL", None)  # an import fails
    with pytest.warns(RuntimeWarning, match="Pillow is not installed"):
        sink = SINKS[name](tmp_path, monkeypatch)
    feed(sink)
    end(name)


@pytest.mark.filterwarnings("default")
def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="isotherm")
    run.log({"loss": 1.0}, step=1000)  # later readings are at smaller steps, and are not dropped
    feed(sinks.WandB(LAYERS, run))
    summary = dict(run.summary)
    run.finish()
    assert summary.keys() >= NAMES | {WORST, "attn/step", sinks.PICTURE}
    assert summary["attn/step"] == STEPS[-1]
    assert summary[WORST] == pytest.approx(expected(STEPS[-1]))
    assert len(list(tmp_path.rglob("*.png"))) == len(STEPS)
    assert list(tmp_path.rglob("run-*.wandb"))


@pytest.mark.filterwarnings("default")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        feed(sinks.MLflow(LAYERS))
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, WORST)
    assert [(one.step, one.value) for one in history] == [(step, pytest.approx(expected(step))) for step in STEPS]
    assert client.get_run(run.info.run_id).data.metrics.keys() == NAMES | {WORST}
    assert [one.timestamp for one in history] == [round(reading(step).at * 1000) for step in STEPS]
    assert len(list(tmp_path.rglob("*.png"))) == len(STEPS)


@pytest.mark.filterwarnings("default")
def test_swanlab(tmp_path):
    swanlab = pytest.importorskip("swanlab", reason="swanlab is not installed")
    swanlab.init(project="isotherm", logdir=str(tmp_path), mode="offline")
    feed(sinks.SwanLab(LAYERS))
    swanlab.finish()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for name in NAMES | {WORST}:
        assert name.encode() in written or json.dumps(name).encode() in written
    assert len(list(tmp_path.rglob("*.png"))) == len(STEPS)


def test_a_resumed_run_goes_on_with_its_worst_heads():
    summary = sinks.Summariser(LAYERS)
    summary.numbers(reading(0, hot=0.5))
    calm = replace(reading(50), values=reading(50).values | {"max_logit": np.arange(12, 0, -1, dtype=np.float32)})
    assert summary.numbers(calm)[WORST] == 1
    assert summary.numbers(calm)["attn/worst_L00_H00"] == 12


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", SINKS)
def test_a_run_is_handed_on_as_it_trains(name, tmp_path, monkeypatch):
    pytest.importorskip(name, reason=f"{name} is not installed")
    monitor = watch(build(), every=1, sinks=[lambda layers: SINKS[name](tmp_path, monkeypatch)])
    monkeypatch.setattr(
        sys.modules[__name__], "LAYERS", (WatchedLayer(0, "layers.0", 2), WatchedLayer(1, "layers.1", 4))
    )
    train(monitor.model, 3, monitor)
    end(name)
    assert monitor.events == []
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    found = {name for name in NAMES if name.encode() in written or list(tmp_path.rglob(name.removeprefix("attn/")))}
    assert len(found) > len(NAMES) / 2  # a record of W&B may be cut in the middle of a name


class Kept:
    """A sink that keeps what it is told."""

    def __init__(self, layers):
        self.known, self.seen, self.ended = [len(layers)], [], 0

    def layers(self, layers):
        self.known.append(len(layers))

    def reading(self, reading):
        self.seen.append(reading.step)

    def event(self, event):
        self.seen.append(event.rule)

    def close(self):
        self.ended += 1


def test_layers_that_are_met_later_are_told_and_nothing_begins_anew():
    """Experts: one is hot in the first step, and another runs in the third."""
    model, made = build(heads=(2, 4)), []
    with torch.no_grad():
        model.layers[0].qkv.weight[:32] *= 100
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, every=1, sinks=[lambda layers: made.append(Kept(layers)) or made[-1]]) as monitor:
        for step, expert in enumerate([0, 0, 1]):
            model.layers[expert](batch(step)).sum().backward()
            optimizer.step()
        alerts = [event for event in monitor.events if event.kind == "alert"]
        assert monitor.scalars()["attn/alerts"] == len(alerts) > 0
        assert {event.step for event in alerts} == {0}
    (kept,) = made
    assert (kept.known, kept.ended) == ([1, 2], 1)
    assert [one for one in kept.seen if isinstance(one, int)] == [0, 1, 2]


def test_a_sink_that_cannot_be_made_takes_nothing_from_the_others(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")

    def missing(_):
        raise ImportError("no such tracker")

    monitor = watch(build(), every=1, sinks=[missing, partial(sinks.TensorBoard, where=tmp_path)])
    with pytest.warns(RuntimeWarning, match="no such tracker"):
        train(monitor.model, 2, monitor)
    assert monitor._telling._alarms is not None
    assert b"attn/max_logit" in next(tmp_path.iterdir()).read_bytes()


def test_no_filter_of_warnings_costs_a_tracker(monkeypatch, unexpected):
    monkeypatch.setattr(sinks, "find_spec", lambda _: None)
    sinks.TensorBoard([], where=object())
    assert unexpected == [sinks.NO_PICTURE.en]
    unexpected.clear()
