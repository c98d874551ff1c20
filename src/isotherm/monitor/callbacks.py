# mypy: disable-error-code="import-untyped, import-not-found, misc, unused-ignore"
"""The monitor in the training loops of transformers and Lightning. Both libraries are imported only when they are used."""

import functools
from typing import Any

from isotherm.monitor.monitor import Monitor, watch


def trainer_callback(trainer: Any = None, **options: Any) -> Any:
    """A `TrainerCallback` for transformers; `options` are those of `isotherm.watch`.

    Given the trainer, it puts itself before the callbacks that report to trackers: a callback that `add_callback` appends
    comes after these, and what it adds to the logs is lost. It then knows, too, what callbacks are not told: the loss of a
    whole step, also of compiled models, and that training was interrupted.
    """
    from transformers import TrainerCallback

    class Watching(TrainerCallback):
        """Watches the model that the trainer trains."""

        monitor: Monitor | None = None
        loss: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
            self.stop()  # an earlier training that was interrupted
            self.monitor = watch(model, **{"together": args.world_size > 1, **options})
            self.monitor.believes = args.gradient_accumulation_steps == 1
            self.monitor.start(state.global_step)

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.loss = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if self.monitor is not None and self.monitor.should_stop:
                control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            if self.monitor is not None and logs is not None:
                logs.update(self.monitor.scalars())

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.stop()

        def add(self, loss: Any) -> None:
            """Count the loss of a micro-batch in. The trainer has divided it so that they add up to that of the step."""
            if self.monitor is not None:
                self.loss = loss if self.loss is None else self.loss + loss
                self.monitor.log(self.loss)

        def stop(self) -> None:
            if self.monitor is not None:
                self.monitor.stop()

    made = Watching()
    if trainer is not None:
        trainer.callback_handler.callbacks.insert(0, made)
        _follow(trainer, made)
    return made


def _follow(trainer: Any, callback: Any) -> None:
    """Tell the callback of the trainer's losses, and that its training has ended, however it did."""
    train, train_on = trainer.train, trainer.training_step

    @functools.wraps(train)
    def training(*args: Any, **kwargs: Any) -> Any:
        try:
            return train(*args, **kwargs)
        finally:
            callback.stop()

    @functools.wraps(train_on)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        loss = train_on(*args, **kwargs)
        callback.add(loss)
        return loss

    trainer.train, trainer.training_step = training, training_step


def lightning_callback(**options: Any) -> Any:
    """A Lightning `Callback`; `options` are those of `isotherm.watch`."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]

    class Watching(Callback):
        """Watches the module that the trainer fits."""

        monitor: Monitor | None = None
        step = 0
        losses: list[Any]

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # the step is known by now
            self.stop()
            self.losses, self.step = [], trainer.global_step
            self.monitor = watch(pl_module, **{"together": trainer.world_size > 1, **options})
            self.monitor.start(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
            if self.monitor is None:
                return
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                self.losses.append(loss)
            if self.monitor.step != self.step:  # the optimizer has stepped, perhaps after several batches
                if self.losses:
                    several = trainer.accumulate_grad_batches  # by which Lightning has divided each loss
                    self.monitor.log(sum(self.losses) * several / len(self.losses))
                self.losses, self.step = [], self.monitor.step
            if self.monitor.should_stop:
                trainer.should_stop = True
            if trainer.logger is not None:
                pl_module.log_dict(self.monitor.scalars())

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
            self.stop()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
            self.stop()

        def stop(self) -> None:
            if self.monitor is not None:
                self.monitor.stop()

    return Watching()
