"""The monitor in other people's training loops: the real Trainer, Lightning and Accelerate."""

from pathlib import Path

import pytest
import torch
from torch import nn

from isotherm.monitor import lightning_callback, store, trainer_callback
from isotherm.monitor.monitor import watch
from tests.monitor.loops import batch, build

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
SENTENCES = [{"input_ids": torch.arange(3 + i % 5, 15 + i % 5)} for i in range(40)]
SENTENCES = [one | {"labels": one["input_ids"]} for one in SENTENCES]


def trainer(folder, steps=8, **options):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 50}
    config = transformers.GPT2Config(**shape, bos_token_id=1, eos_token_id=2)
    given = {"max_steps": steps, "logging_steps": 2, "save_steps": 4, "report_to": "none", **options}
    args = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=2, disable_tqdm=True, use_cpu=True, seed=1, **given
    )
    return transformers.Trainer(transformers.GPT2LMHeadModel(config), args, train_dataset=SENTENCES)


def weights(model):
    return list(model.state_dict().values())


def test_the_trainer_trains_what_it_would_and_logs_what_was_seen(tmp_path, monkeypatch):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    plain = trainer(tmp_path / "plain")
    plain.train()
    watched = trainer(tmp_path / "watched", report_to="tensorboard")  # seeds anew
    trainer_callback(watched, every=2, store=tmp_path / "run.db")
    watched.train()
    assert all(map(torch.equal, weights(plain.model), weights(watched.model)))
    record = store.read(tmp_path / "run.db")
    assert [reading.step for reading in record.readings] == [0, 2, 4, 6]
    assert all(reading.loss > 1 for reading in record.readings)
    (folder,) = {path.parent for path in Path(tmp_path / "tb").rglob("events*")}
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    written = {event.step: event.value for event in events.Scalars("train/attn/max_logit")}
    seen = {reading.step: reading.values["max_logit"].max() for reading in record.readings}
    assert written[2] == pytest.approx(seen[0])  # logged after the second step; step 2 is looked at next
    assert written[8] == pytest.approx(seen[6])
    assert "train/loss" in events.Tags()["scalars"]


def test_a_trainer_that_resumes_has_no_step_twice(tmp_path):
    first = trainer(tmp_path, steps=7)
    trainer_callback(first, every=1, store=tmp_path / "run.db")
    first.train()
    again = trainer(tmp_path, steps=8)
    trainer_callback(again, every=1, store=tmp_path / "run.db")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    record = store.read(tmp_path / "run.db")
    assert [reading.step for reading in record.readings] == list(range(8))
    assert [event.kind for event in record.events] == ["resumed"]


def test_the_trainer_stops_when_an_alert_says_so(tmp_path):
    one = trainer(tmp_path)
    with torch.no_grad():
        one.model.transformer.h[1].attn.c_attn.weight[:, :32] *= 1e4
    seen = []

    def stop(event):
        seen.append(event)
        callback.monitor.should_stop = True

    callback = trainer_callback(one, every=1, on_alert=stop)
    one.train()
    assert one.state.global_step == 1
    assert {event.layer for event in seen} == {1}


@pytest.fixture
def fit():
    """Train a small module by Lightning: folder, callbacks, steps, the checkpoint to go on from, the step that fails, and what
    else its trainer is told."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self, fails):
            super().__init__()
            self.model, self.fails, self.seen = build(), fails, []

        def training_step(self, given, number):
            if self.global_step == self.fails:
                raise ValueError("bad data")
            loss = (self.model(given) - given.roll(1, 1)).square().mean()
            self.log("loss", loss)
            self.seen.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    def fitted(folder, callbacks, steps=6, path=None, fails=None, **options):
        module = Module(fails)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False} | options
        logger = lightning.loggers.CSVLogger(folder)
        made = lightning.Trainer(
            max_steps=steps, accelerator="cpu", logger=logger, callbacks=callbacks, log_every_n_steps=1, **quiet
        )
        given = torch.utils.data.DataLoader([batch(step) for step in range(6)], batch_size=None)
        made.fit(module, given, ckpt_path=path)
        made.save_checkpoint(folder / "last.ckpt")
        logger.save()
        return module, Path(logger.log_dir, "metrics.csv").read_text()

    return fitted


def test_lightning(tmp_path, fit):
    watched, logged = fit(tmp_path / "one", [lightning_callback(every=2, store=tmp_path / "run.db")])
    plain, _ = fit(tmp_path / "other", [])
    assert all(map(torch.equal, weights(plain), weights(watched)))
    record = store.read(tmp_path / "run.db")
    assert [reading.step for reading in record.readings] == [0, 2, 4]
    assert [layer.name for layer in record.layers] == ["model.layers.0", "model.layers.1"]
    assert "attn/max_logit" in logged
    assert record.readings[-1].loss is not None


def test_lightning_that_resumes_goes_on_after_its_step(tmp_path, fit):
    fit(tmp_path, [lightning_callback(every=2, store=tmp_path / "run.db")])
    fit(tmp_path, [lightning_callback(every=2, store=tmp_path / "run.db")], steps=12, path=tmp_path / "last.ckpt")
    record = store.read(tmp_path / "run.db")
    assert [reading.step for reading in record.readings] == [0, 2, 4, 6, 8, 10]
    assert record.superseded == 0


def test_lightning_that_accumulates_has_the_loss_of_the_whole_step(tmp_path, fit):
    """The last step of an epoch may be of fewer batches."""
    options = {"every": 1, "store": tmp_path / "run.db"}
    module, _ = fit(tmp_path, [lightning_callback(**options)], steps=2, accumulate_grad_batches=4)
    losses = [reading.loss for reading in store.read(tmp_path / "run.db").readings]
    assert losses == [pytest.approx(sum(part) / len(part)) for part in (module.seen[:4], module.seen[4:6])]


def test_lightning_that_fails_leaves_nothing(tmp_path, fit):
    called = nn.Module.__call__
    with pytest.raises(ValueError, match="bad data"):
        fit(tmp_path, [lightning_callback(every=1, store=tmp_path / "run.db")], fails=3)
    assert nn.Module.__call__ is called
    assert not store.is_written(tmp_path / "run.db")
    assert [reading.step for reading in store.read(tmp_path / "run.db").readings] == [0, 1, 2]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accelerate(accumulate):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

    def fit(watched):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer = accelerator.prepare(model, optimizer)
        monitor = watch(model, every=1, rows=None) if watched else None
        if monitor:
            monitor.start()
        for step in range(6):
            with accelerator.accumulate(model):
                given = batch(step)
                loss = (model(given) - given.roll(1, 1)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        if monitor:
            monitor.stop()
        return model, monitor

    (plain, _), (watched, monitor) = fit(False), fit(True)
    assert all(map(torch.equal, weights(plain), weights(watched)))
    assert monitor.latest.step == 6 // accumulate - 1
    assert isinstance(plain, nn.Module)


@pytest.mark.parametrize("known", [True, False])
def test_the_loss_of_accumulated_batches_is_that_of_the_step(tmp_path, known):
    """The model returns the part of each micro-batch, divided by the tokens of all. Without the trainer there is no loss."""
    one = trainer(tmp_path, steps=2, gradient_accumulation_steps=2, logging_steps=1)
    callback = trainer_callback(one if known else None, every=1, store=tmp_path / "run.db")
    if not known:
        one.add_callback(callback)
    one.train()
    losses = [reading.loss for reading in store.read(tmp_path / "run.db").readings]
    said = [float(entry["loss"]) for entry in one.state.log_history if "loss" in entry]
    assert losses == (pytest.approx(said, rel=1e-3) if known else [None, None])


def test_a_compiled_trainer_has_losses(tmp_path):
    one = trainer(tmp_path, steps=3, torch_compile=True, torch_compile_backend="aot_eager")
    trainer_callback(one, every=1, store=tmp_path / "run.db")
    one.train()
    assert all(reading.loss > 1 for reading in store.read(tmp_path / "run.db").readings)


def test_a_trainer_that_is_interrupted_leaves_nothing_and_can_train_again(tmp_path):
    one, called = trainer(tmp_path, steps=6), nn.Module.__call__
    callback = trainer_callback(one, every=1, store=tmp_path / "run.db")
    normal = one.compute_loss

    def interrupted(*_, **__):
        if one.state.global_step == 2:
            raise KeyboardInterrupt
        return normal(*_, **__)

    one.compute_loss = interrupted
    with pytest.raises(KeyboardInterrupt):
        one.train()
    assert nn.Module.__call__ is called
    assert not store.is_written(tmp_path / "run.db")
    one.compute_loss = normal
    callback.on_train_begin(one.args, one.state, one.control, model=one.model)  # one that nobody told to stop
    one.train()
    assert [reading.step for reading in store.read(tmp_path / "run.db").readings] == list(range(6))
