# mypy: disable-error-code="import-untyped, import-not-found, misc, unused-ignore"
"""The monitor in the training loops of transformers and Lightning. Both libraries are imported only when they are used."""

from typing import Any

from isotherm.monitor.monitor import Monitor, watch


def trainer_callback(trainer: Any = None, **options: Any) -> Any:
    """A `TrainerCallback` for transformers; `options` are those of `isotherm.watch`.

    Given the trainer, it puts itself before the callbacks that report to trackers: a callback that `add_callback` appends
    comes after these, and what it adds to the logs is lost.
    """
    from transformers import TrainerCallback

    class Watching(TrainerCallback):
        """Watches the model that the trainer trains."""

        monitor: Monitor | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
            self.monitor = watch(model, **{"together": args.world_size > 1, **options})
            self.monitor.start(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if self.monitor is not None and self.monitor.should_stop:
                control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            if self.monitor is not None and logs is not None:
                logs.update(self.monitor.scalars())

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if self.monitor is not None:
                self.monitor.stop()

    made = Watching()
    if trainer is not None:
        trainer.callback_handler.callbacks.insert(0, made)
    return made


def lightning_callback(**options: Any) -> Any:
    """A Lightning `Callback`; `options` are those of `isotherm.watch`."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]

    class Watching(Callback):
        """Watches the module that the trainer fits."""

        monitor: Monitor | None = None

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.monitor = watch(pl_module, **{"together": trainer.world_size > 1, **options})
            self.monitor.start(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
            if self.monitor is None:
                return
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                self.monitor.log(loss)
            if self.monitor.should_stop:
                trainer.should_stop = True
            if trainer.logger is not None:
                pl_module.log_dict(self.monitor.scalars())

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
            if self.monitor is not None:
                self.monitor.stop()

    return Watching()
