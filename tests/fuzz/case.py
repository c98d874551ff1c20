"""A case: files, a command line, and what must hold when it is run."""

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from isotherm import cli
from isotherm.errors import IsothermError
from isotherm.language import Text
from tests.fuzz import examples

SECONDS = 20
CODES = (0, 1, 2, 130, 143)
KEPT = "KEPT"
"""Stands in the name of a file for that of a claim's entry in the cache, which every version of the code names anew."""


def stopped(*_: object, **__: object) -> Any:
    """In place of work that takes seconds."""
    raise IsothermError(Text("the fuzzer goes no further", "模糊测试到此为止"))


SHORT = {
    "isotherm.train.sweep.run._train": stopped,
    "isotherm.lab.runner._pool": lambda orders, *_: stopped() if orders else (),
    "isotherm.report.draw.png.write": lambda *_: None,
}
"""What is put in place of slow functions."""


@dataclass(frozen=True)
class Case:
    """A command line and the files it finds: those of a base (see `examples.BASES`), some of them changed or removed."""

    words: tuple[str, ...]
    files: dict[str, bytes | None] = field(default_factory=dict)
    base: str | None = None
    outputs: tuple[str, ...] = ("out",)
    """Paths below which the command may write."""
    whole: bool = False
    """Whether to train, run claims and draw, too. Otherwise a command stops there, so that a case takes milliseconds."""

    def to_json(self) -> str:
        """The case as a document for `cases/`."""
        files = {name: None if data is None else _text(data) for name, data in self.files.items()}
        plain = {"words": self.words, "files": files, "base": self.base, "outputs": self.outputs, "whole": self.whole}
        return json.dumps(plain, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Case":
        """The case in a document of `cases/`."""
        plain = json.loads(text)
        files = {name: None if data is None else _bytes(data) for name, data in plain["files"].items()}
        return cls(tuple(plain["words"]), files, plain["base"], tuple(plain["outputs"]), plain.get("whole", False))


def _text(data: bytes) -> Any:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(data: Any) -> bytes:
    return data.encode("utf-8") if isinstance(data, str) else base64.b64decode(data["base64"])


@dataclass(frozen=True)
class Finding:
    """A broken promise. Findings of one `kind` have the same cause."""

    kind: str
    detail: str


class Hang(BaseException):
    """The command did not end in time."""


def findings(case: Case, room: Path, *, in_process: bool = True) -> list[Finding]:
    """Run a case in an empty folder below `room` and return what was broken."""
    folder = room / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    base = examples.BASES[case.base]() if case.base else {}
    for name, data in (base | case.files).items():
        if data is not None:
            path = folder / name.replace(KEPT, examples.kept_path())
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    before, around = listing(folder), set(os.listdir(room))
    with chdir(folder):
        found = _here(case) if in_process else _in_a_process(case)
    after = listing(folder)
    for path in before.keys() | after.keys():
        allowed = any(path == output or path.startswith(f"{output}/") for output in case.outputs)
        if before.get(path) != after.get(path) and not allowed:
            found.append(Finding("wrote elsewhere", path))
    found += [Finding("wrote elsewhere", name) for name in set(os.listdir(room)) - around]
    return found


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below a folder."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            status = os.lstat(path)
            found[os.path.relpath(path, folder)] = status.st_size, status.st_mtime_ns
    return found


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the block after so many seconds."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _here(case: Case) -> list[Finding]:
    out, err = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO())
    started = time.perf_counter()
    try:
        with (
            patch.multiple(sys, stdout=out, stderr=err, stdin=stdin),
            warnings.catch_warnings(action="ignore"),
            time_limit(SECONDS),
            ExitStack() as held,
        ):
            for name, short in SHORT.items() if not case.whole else ():
                held.enter_context(patch(name, short))
            code = cli.run(case.words)
    except Hang:
        return [Finding(f"hang at {_place(sys.exc_info()[2])}", "")]
    except BaseException as error:
        kind = f"{type(error).__name__} at {_place(error.__traceback__)}"
        return [Finding(kind, "".join(traceback.format_exception(error, limit=-8))[-4000:])]
    if time.perf_counter() - started > SECONDS:
        return [Finding("hang", f"{time.perf_counter() - started:.0f} s")]
    return judge(case, code, out.getvalue(), err.getvalue())


def _place(trace: Any) -> str:
    """The innermost line of ours, and the function that raised below it."""
    frames = traceback.extract_tb(trace)
    ours = [frame for frame in frames if "/isotherm/" in frame.filename]
    last = ours[-1] if ours else frames[-1]
    return f"{last.filename.rpartition('/isotherm/')[2]}:{last.lineno} ({frames[-1].name})"


def _in_a_process(case: Case) -> list[Finding]:
    command = [sys.executable, "-m", "isotherm", *case.words]
    source = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 3 * SECONDS, "env": source}
    try:
        done = subprocess.run(command, check=False, **options)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        return [Finding("hang of a process", "")]
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    return judge(case, done.returncode, out, err)


def judge(case: Case, code: int, out: str, err: str) -> list[Finding]:
    """What an exit code and two streams say about the promises."""
    found = []
    if code not in CODES:
        found.append(Finding(f"exit code {code}", err))
    if "Traceback (most recent call last)" in out + err and "--debug" not in case.words:
        found.append(Finding("traceback", (out + err)[-4000:]))
    if not err.replace("\n", "").isprintable():
        found.append(Finding("control characters in a message", repr(err)))
    if code == 2 and not err.strip():
        found.append(Finding("failed without a word", ""))
    if code in (0, 1) and "--json" in case.words and not {"--help", "--version"} & {*case.words}:
        try:
            json.loads(out)
        except ValueError as error:
            found.append(Finding("not JSON", f"{error}: {out[:300]!r}"))
    return found
