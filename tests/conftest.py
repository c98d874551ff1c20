import os
import signal
import threading

import hypothesis
import pytest
import torch

from isotherm import language
from isotherm.monitor import saying
from isotherm.ops import api, tiles

hypothesis.settings.register_profile("isotherm", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("isotherm")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# A shell that starts the tests in the background has Ctrl-C ignored, and every child of theirs would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ISOTHERM_LANG", "en")
    language.choose(None)
    yield
    language.choose(None)


@pytest.fixture(autouse=True)
def nothing_planned():
    """Tests change how calls are planned, so no call may follow the plan of another test."""
    api._plans.clear()


@pytest.fixture(autouse=True)
def unexpected(monkeypatch: pytest.MonkeyPatch):
    """What a monitor warns of outside `pytest.warns`. It raises no error, so that training goes on, but fails the test."""
    warned: list[str] = []
    monkeypatch.setattr(saying, "_show", lambda warning: warned.append(str(warning)))
    yield warned
    assert warned == []


@pytest.fixture
def poisoned_memory():
    """Fills uninitialised memory with NaN, so that a kernel that reads what it never wrote is found out."""
    tiles._kept = threading.local()  # else scratch memory would hold an earlier call's numbers
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
