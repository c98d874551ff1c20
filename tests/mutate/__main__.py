"""Run the tests on changed source: `python -m tests.mutate --count 340 --seed 0`. Exit code 1 if they fail unchanged.

Everything heavy is imported once. Each mutant is a fork of this process, so isotherm itself must not be imported here.
"""

import argparse
import contextlib
import importlib
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from math import ceil
from pathlib import Path
from random import Random

import hypothesis  # noqa: F401
import pytest
import torch

from tests.mutate.changes import Change, changes
from tests.mutate.selection import Choose, Test, Watch, able_to_notice

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "isotherm"
PARTS = {  # part → its source and its tests
    "stats": ("stats.py", ["test_stats.py", "ops/test_attention.py"]),
    "theory": ("theory.py", ["test_theory.py"]),
    "softmax": ("softmax.py", ["test_softmax.py"]),
    "scale": ("scale/*.py", ["scale"]),
    "ops": (
        "ops/*.py",
        [
            f"ops/test_{name}.py"
            for name in ("problem", "pick", "attention", "attention_edges", "derivatives", "scores")
        ],
    ),
    "probe": ("probe/*.py", ["probe", *(f"checkup/test_{name}.py" for name in ("zoo", "advice", "finite", "changed"))]),
    "checkup": ("checkup/**/*.py", ["checkup", "models/test_check.py", "cli/test_check.py"]),
}
OPTIONS = ["-xq", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow and not gpu", f"--rootdir={ROOT}"]
OPTIONS += ["-c", str(ROOT / "pyproject.toml"), "-W", "ignore::pytest.PytestAssertRewriteWarning"]
PATIENCE = 30.0  # seconds of CPU a mutant may take beyond three times what its tests take unchanged
STILL = 5  # times that many seconds may pass: a busy machine is no reason to call a mutant caught, standing still is
MEMORY = 16 * 2**30  # bytes of address space


@dataclass
class Mutant:
    """A file with one change, and what became of it."""

    number: int
    part: str
    path: Path
    change: Change
    source: bytes
    outcome: str = "survived"

    def __str__(self) -> str:
        lines = [
            text.splitlines()[self.change.line - 1].decode().strip() for text in (self.path.read_bytes(), self.source)
        ]
        return f"{self.number:4} {self.path.relative_to(ROOT)}:{self.change.line}\n     - {lines[0]}\n     + {lines[1]}"


def main() -> int:
    """Run the tests of each part unchanged, then on its mutants; print a table and the survivors.

    Mutant 0 of each part is its unchanged source: the tests must pass on it in the order and selection that mutants get.
    """
    asked = arguments()
    torch.set_num_threads(1)
    sys.path.insert(0, str(SOURCE.parent))
    os.environ |= {"PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1"}
    mutants = [mutant for mutant in chosen(asked) if not asked.only or mutant.number in asked.only]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        for part in dict.fromkeys(mutant.part for mutant in mutants):
            tests = unchanged(part, Path(made))
            if not tests:
                return 1
            own = [mutant for mutant in mutants if mutant.part == part]
            control = replace(own[0], number=0, change=Change(0, 0, ("",), 1, None), source=own[0].path.read_bytes())
            run([control, *own], tests, Path(made), asked.workers)
            if control.outcome != "survived":
                return 1
    report(mutants)
    print(f"\nseed {asked.seed}, {time.monotonic() - started:.0f} s")
    return 0


def chosen(asked: argparse.Namespace) -> list[Mutant]:
    """Mutants of every part asked for, in proportion to its lines."""
    files = {part: sorted(SOURCE.glob(where)) for part, (where, _) in PARTS.items() if asked.part in ("", part)}
    lines = {part: sum(path.read_bytes().count(b"\n") for path in paths) for part, paths in files.items()}
    mutants: list[Mutant] = []
    for part, paths in files.items():
        random = Random(f"{asked.seed}/{part}")
        places = [(path, change) for path in paths for change in changes(path.read_bytes())]
        random.shuffle(places)
        wanted = len(mutants) + round(asked.count * lines[part] / sum(lines.values()))
        for path, change in places:
            source = change.apply(path.read_bytes(), random)
            with contextlib.suppress(SyntaxError):
                compile(source, path, "exec")
                mutants.append(Mutant(len(mutants) + 1, part, path, change, source))
            if len(mutants) >= wanted:
                break
    return mutants


def unchanged(part: str, made: Path) -> dict[str, Test]:
    """The tests of a part; none if one of them fails. Imports what they import, except isotherm."""

    def child() -> int:
        watch = Watch(str(SOURCE / part))
        paths = [str(ROOT / "tests" / name) for name in PARTS[part][1]]
        code = pytest.main([*OPTIONS, *paths], plugins=[watch])
        (made / "tests").write_bytes(pickle.dumps((watch.tests, list(sys.modules))))
        return int(code)

    print(f"== {part}: its tests, unchanged", flush=True)
    if os.waitpid(fork(child, made / "output"), 0)[1]:
        print((made / "output").read_text()[-4000:])
        return {}
    tests, modules = pickle.loads((made / "tests").read_bytes())
    for name in modules:
        if name.startswith(("transformers", "gt_", "tokenizers", "safetensors", "torch.", "rich", "click")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    torch.set_num_threads(1)
    assert not any(name.split(".")[0] == "isotherm" for name in sys.modules)
    print(f"   {len(tests)} tests, {sum(test.seconds for test in tests.values()):.0f} s", flush=True)
    return tests


def run(mutants: list[Mutant], tests: dict[str, Test], made: Path, workers: int) -> None:
    """A few mutants at a time, each in a process of its own that is ended when its time is up."""
    waiting, running = list(mutants), dict[int, tuple[Mutant, float, float]]()
    while waiting or running:
        while waiting and len(running) < workers:
            mutant = waiting.pop(0)
            wanted = able_to_notice(tests, mutant.path, mutant.change.lines, whole=not mutant.number)
            limit = 3 * sum(wanted.values()) + PATIENCE
            pid = fork(partial(attempt, mutant, wanted), made / f"{mutant.number}.txt", limit)
            running[pid] = mutant, time.monotonic(), STILL * limit
        time.sleep(0.05)
        for pid, (mutant, start, limit) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            seconds = time.monotonic() - start
            if not ended and seconds < limit:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if not ended:
                os.waitpid(pid, 0)
            del running[pid]
            code = os.waitstatus_to_exitcode(status)
            passed = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
            endless = not ended or code == -signal.SIGXCPU
            mutant.outcome = "timeout" if endless else "survived" if passed else "killed"
            output = (made / f"{mutant.number}.txt").read_text(errors="replace").splitlines()
            by = next((line[:100] for line in output if line.startswith(("FAILED", "ERROR"))), "")
            print(f"{mutant.outcome:9} {seconds:6.1f} s  {str(mutant).splitlines()[0]}  {by}", flush=True)


def attempt(mutant: Mutant, wanted: dict[str, float]) -> int:
    """Run these tests with the mutant's source in place of the file's."""
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str):
        is_changed = loader.path == str(mutant.path)
        return compile(mutant.source, loader.path, "exec") if is_changed else original(loader, name)

    SourceFileLoader.get_code = get_code
    sys.dont_write_bytecode = True
    files = sorted({name.partition("::")[0] for name in wanted})
    if not files:
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    return int(pytest.main([*OPTIONS, *(str(ROOT / name) for name in files)], plugins=[Choose(wanted)]))


def fork(work: Callable[[], int], output: Path, seconds: float | None = None) -> int:
    """Do `work` in a child process, in a folder of its own, for so many seconds of CPU at most. Returns its process id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(seconds), resource.RLIM_INFINITY))
        written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(written, stream)
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            os.chdir(folder)
            code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def report(mutants: list[Mutant]) -> None:
    """The table by part, then every mutant that no test noticed."""
    print(f"\n{'part':10}{'mutants':>9}{'killed':>9}{'timeouts':>9}{'survived':>9}")
    for part in [*dict.fromkeys(mutant.part for mutant in mutants), "all"]:
        own = Counter(mutant.outcome for mutant in mutants if part in (mutant.part, "all"))
        caught = f"{1 - own['survived'] / own.total():.0%} caught"
        print(f"{part:10}{own.total():9}{own['killed']:9}{own['timeout']:9}{own['survived']:9}   {caught}")
    for mutant in mutants:
        if mutant.outcome == "survived":
            print(f"\n{mutant}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=340, help="mutants in all")
    parser.add_argument("--seed", default="0", help="another seed gives other mutants")
    parser.add_argument("--part", default="", choices=["", *PARTS], help="only this part")
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time")
    parser.add_argument("--only", type=int, nargs="*", help="only the mutants of these numbers")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
