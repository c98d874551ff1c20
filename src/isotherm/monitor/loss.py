"""The loss of a step, whoever says it, and what a GradScaler multiplied it by."""

from math import nan
from typing import Any

from torch import Tensor


class StepLoss:
    """The loss of the step under way: what was logged before the optimizer stepped, else what the model returned."""

    def __init__(self) -> None:
        self._logged: Tensor | float | None = None
        self._has_logged = self._logs_late = False

    def log(self, loss: Tensor | float | None, *, late: bool) -> bool:
        """Take what was logged. True if it is of the step before instead: if the first loss was logged `late`, right after its
        step, all are."""
        if not self._has_logged:
            self._has_logged, self._logs_late = True, late
        if not self._logs_late:
            self._logged = loss
        return self._logs_late

    def take(self, result: Any) -> Tensor | float | None:
        """The loss of the step, which is over. `result` is what the model returned, if its loss is to be believed."""
        loss = self._logged
        self.forget()
        if loss is None:
            loss = one_number(result.get("loss") if isinstance(result, dict) else getattr(result, "loss", None))
        return loss

    def forget(self) -> None:
        """Forget what was logged: it was that step's, and is no later one's."""
        self._logged = None


class LossScale:
    """What gradients have to be divided by, if a GradScaler is in use."""

    def __init__(self, scaler: Any) -> None:
        self._scaler, self._at_first = scaler, 0.0

    def begin(self) -> None:
        """A look begins."""
        self._at_first = self._now()

    def of_step(self) -> float:
        """What the gradients of the step are divided by. If steps were skipped meanwhile, theirs are among them, of a larger
        scale and often infinite: NaN."""
        scale = self._now()
        return scale if scale >= self._at_first else nan

    def _now(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())


def one_number(loss: Any) -> Tensor | float | None:
    """The loss as a tensor of one number, which may be on its way, or as a number; None if it is neither."""
    if isinstance(loss, Tensor):
        return loss.detach() if loss.numel() == 1 else None
    try:
        return float(loss)
    except (TypeError, ValueError):
        return None
