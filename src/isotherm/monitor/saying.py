"""How the monitor warns. What it says is on record as an event, so no filter of warnings may turn it into an error."""

import warnings

from isotherm.language import Text


def warn(message: Text) -> None:
    """Warn. Where a filter makes errors of warnings, the sentence is shown all the same, and the program goes on."""
    try:
        warnings.warn(str(message), RuntimeWarning, stacklevel=3)
    except RuntimeWarning as warning:
        _show(warning)


def _show(warning: RuntimeWarning) -> None:
    warnings.showwarning(warning, RuntimeWarning, __file__, 1)
