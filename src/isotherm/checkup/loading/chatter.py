"""Turn the chatter of transformers and the hub into our own progress, and put it back afterwards."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from isotherm.checkup.loading.loaded import Progress, nobody
from isotherm.language import Text

LIBRARIES = ("transformers", "huggingface_hub", "diffusers", "peft", "accelerate")
LOADING = Text("loading weights", "加载权重")


@contextmanager
def quiet(told: Progress = nobody) -> Iterator[None]:
    """Silence messages, warnings and progress bars of the libraries that load models. What transformers would draw as a bar
    while it loads weights goes to `told`."""
    import transformers

    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    levels = [logger.level for logger in loggers]
    bars.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    bar = bar_class(lambda done: told(LOADING, done))
    hooking = getattr(bars, "set_tqdm_hook", lambda _hook: None)  # transformers 4 has none, and then shows nothing
    before = hooking(lambda _factory, args, kwargs: bar(*args, **kwargs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hooking(before)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if shown:
            bars.enable_progress_bar()


def bar_class(told: Callable[[float], object]) -> type:
    """A class of tqdm bars that draw nothing, and tell the fraction that is done."""
    tqdm: Any = import_module("tqdm.std").tqdm  # not tqdm.auto, which draws widgets in a notebook

    class Bar(tqdm):  # type: ignore[misc]
        """A bar that passes on how far it is."""

        monitor_interval = 0  # else tqdm starts a thread that never ends

        def __init__(self, *args: Any, **settings: Any) -> None:
            settings.pop("name", None)  # the hub's own
            super().__init__(*args, **settings | {"file": io.StringIO(), "disable": False})

        def display(self, *_: Any, **__: Any) -> bool:
            if self.total:
                told(min(1.0, self.n / self.total))
            return True

    return Bar
