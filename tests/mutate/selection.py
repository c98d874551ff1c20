"""Which tests may notice a change: those that run one of the changed lines."""

import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest

LONGEST = 1.5  # seconds of CPU; a test that takes longer unchanged is left out
MOST = 60.0  # seconds of CPU of the tests that are tried on a mutant: a survivor of these is called one
Line = tuple[str, int]  # of a file; that of a function's first line stands for a call of it


@dataclass
class Test:
    """What one test does unchanged: its seconds of CPU, and the lines of the part's source that run in it. None if that is not
    known, because the test traces lines itself."""

    seconds: float
    lines: set[Line] | None


class Watch:
    """A pytest plugin that fills `tests`. What a fixture of several tests runs counts for all tests of its file."""

    def __init__(self, source: str) -> None:
        self.tests: dict[str, Test] = {}
        self._source = source
        self._shared: defaultdict[str, set[Line]] = defaultdict(set)
        self._lines: set[Line] = set()
        self._file = ""

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        forget_results()
        self._lines, self._file = set(), file_of(item.nodeid)
        threading.settrace(self._called)
        sys.settrace(self._called)
        start = sum(os.times()[:4])
        yield
        known = sys.gettrace() == self._called
        sys.settrace(None)
        threading.settrace(None)
        lines = self._lines | self._shared[self._file] if known else None
        self.tests[item.nodeid] = Test(sum(os.times()[:4]) - start, lines)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Iterator[None]:
        if fixturedef.scope == "function":
            yield
            return
        before, self._lines = self._lines, set()
        yield
        self._shared[self._file] |= self._lines
        self._lines = before

    def _called(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(self._source):
            return None
        self._lines.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
        return self._ran

    def _ran(self, frame, event, argument):
        if event == "line":
            self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._ran


def forget_results() -> None:
    """Empty the caches of isotherm's functions: a test that is given a kept result runs the function too."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "isotherm":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@dataclass
class Choose:
    """A pytest plugin that runs these tests only, in their order."""

    wanted: dict[str, float]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = {name: place for place, name in enumerate(self.wanted)}
        items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])


def able_to_notice(
    tests: dict[str, Test], path: Path, changed: tuple[int, int] | None, *, whole: bool
) -> dict[str, float]:
    """The tests that run one of the changed lines, with their seconds: all, if these run while importing (None).

    Those of the file that is named after the source come first, then those of the quickest files. Long ones are left out, and
    unless the `whole` is wanted what comes after `MOST` seconds.
    """
    first, last = changed or (1, 0)
    lines = {(str(path), line) for line in range(first, last + 1)}
    wanted = {name: test for name, test in tests.items() if not lines or test.lines is None or lines & test.lines}
    seconds = {name: test.seconds for name, test in wanted.items() if test.seconds < LONGEST}
    files: Counter[str] = Counter()
    for name, taken in seconds.items():
        files[file_of(name)] += taken
    own = f"/test_{path.stem}.py"
    ordered = sorted(seconds, key=lambda name: (not file_of(name).endswith(own), files[file_of(name)], file_of(name)))
    sums = accumulate(seconds[name] for name in ordered)
    return {name: seconds[name] for name, total in zip(ordered, sums, strict=True) if whole or total < MOST}


def file_of(name: str) -> str:
    """The file of a test, by its name."""
    return name.partition("::")[0]
