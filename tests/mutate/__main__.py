"""Run the tests on changed source: `python -m tests.mutate --count 320 --seed 0`. Exit code 1 if they fail unchanged.

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
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from random import Random

import hypothesis  # noqa: F401
import numpy as np  # noqa: F401
import pytest
import torch
import transformers  # noqa: F401

from tests.mutate.changes import Change, changes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "isotherm"
PARTS = {  # part → its files and its tests
    "stats": (["stats.py"], ["test_stats.py", "ops/test_attention.py"]),
    "theory": (["theory.py"], ["test_theory.py"]),
    "softmax": (["softmax.py"], ["test_softmax.py"]),
    "scale": (["scale/*.py"], ["scale"]),
    "ops": (["ops/*.py"], ["ops/test_attention.py", "ops/test_attention_edges.py", "ops/test_derivatives.py", "ops/test_scores.py"]),
    "probe": (["probe/*.py"], ["probe"]),
    "checkup": (["checkup/*.py"], ["checkup", "models/test_check.py", "cli/test_check.py"]),
}  # fmt: skip
WORKERS = 2
LONGEST = 3.0
"""Seconds of CPU a test may take unchanged. A longer one is left out."""
PATIENCE = 30.0
"""Seconds a mutant may take beyond six times what its tests take unchanged."""
MEMORY = 16 * 2**30  # bytes of address space
Function = tuple[str, int]


@dataclass
class Test:
    seconds: float
    functions: set[Function]
    """File and first line of every function of isotherm that ran in it."""


@dataclass
class Mutant:
    number: int
    part: str
    path: Path
    change: Change
    source: bytes
    outcome: str = "survived"
    seconds: float = 0.0

    def module(self) -> str:
        names = self.path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(names[:-1] if names[-1] == "__init__" else names)

    def __str__(self) -> str:
        before, after = (text.splitlines()[self.change.line - 1].decode().strip() for text in (self.path.read_bytes(), self.source))
        return f"{self.number:4} {self.path.relative_to(ROOT)}:{self.change.line}\n     - {before}\n     + {after}"


@dataclass
class Watch:
    """A pytest plugin that notes how long each test takes and which functions of isotherm it calls."""

    tests: dict[str, Test] = field(default_factory=dict)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        functions: set[Function] = set()

        def trace(frame, event, argument):
            if "isotherm/" in frame.f_code.co_filename:
                functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        threading.settrace(trace)
        sys.settrace(trace)
        start = sum(os.times()[:4])
        yield
        sys.settrace(None)
        threading.settrace(None)
        self.tests[item.nodeid] = Test(sum(os.times()[:4]) - start, functions)


@dataclass
class Choose:
    """A pytest plugin that runs the tests that call the changed function first, and leaves the long ones out."""

    tests: dict[str, Test]
    function: Function | None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def order(item: pytest.Item) -> tuple[bool, float]:
            return self.function not in self.tests[item.nodeid].functions, files[item.path]

        files: Counter[Path] = Counter()
        for item in items:
            files[item.path] += self.tests[item.nodeid].seconds
        items[:] = sorted((i for i in items if self.tests[i.nodeid].seconds < LONGEST), key=order)


class Changed(SourceFileLoader):
    """Loads one module from changed source."""

    source: bytes

    def get_code(self, fullname: str):
        return compile(self.source, self.path, "exec")


class Finder:
    """Finds the changed module before the import system finds the file."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None):
        if name != self.mutant.module():
            return None
        loader = Changed(name, str(self.mutant.path))
        loader.source = self.mutant.source
        return spec_from_file_location(name, self.mutant.path, loader=loader)


def main() -> int:
    """Run the tests unchanged, then on each mutant; print a table and the survivors."""
    asked = arguments()
    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "src"))
    os.environ |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    mutants = [m for m in chosen(asked) if not asked.only or m.number in asked.only]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        tests = {part: unchanged(part, Path(made)) for part in dict.fromkeys(m.part for m in mutants)}
        if not all(tests.values()):
            return 1
        run(mutants, tests, Path(made))
    report(mutants, asked.seed, time.monotonic() - started)
    return 0


def chosen(asked: argparse.Namespace) -> list[Mutant]:
    """Mutants of every part asked for, as many of each as it has lines."""
    files = {p: [f for g in globs for f in sorted(SOURCE.glob(g))] for p, (globs, _) in PARTS.items() if asked.part in ("", p)}
    lines = {p: sum(f.read_bytes().count(b"\n") for f in paths) for p, paths in files.items()}
    mutants: list[Mutant] = []
    for part, paths in files.items():
        random = Random(f"{asked.seed}/{part}")
        everything = [(path, change) for path in paths for change in changes(path.read_bytes())]
        random.shuffle(everything)
        wanted = len(mutants) + round(asked.count * lines[part] / sum(lines.values()))
        for path, change in everything:
            source = change.apply(path.read_bytes(), random)
            with contextlib.suppress(SyntaxError):
                compile(source, path, "exec")
                mutants.append(Mutant(len(mutants) + 1, part, path, change, source))
            if len(mutants) >= wanted:
                break
    return mutants


def unchanged(part: str, made: Path) -> dict[str, Test]:
    """Each test of a part with its time and its functions; nothing if one fails. Loads what they load, but for isotherm."""
    print(f"== {part}: its tests, unchanged", flush=True)
    where = made / "unchanged"

    def child() -> int:
        watch = Watch()
        code = pytest_main(PARTS[part][1], [watch])
        where.write_bytes(pickle.dumps((watch.tests, list(sys.modules))))
        return code

    pid = fork(child, made / "baseline.txt")
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        print((made / "baseline.txt").read_text()[-4000:])
        return {}
    tests, modules = pickle.loads(where.read_bytes())
    for name in modules:
        if name.startswith(("transformers.", "gt_", "tokenizers", "safetensors", "torch.", "rich", "click")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    torch.set_num_threads(1)
    assert not any(name.split(".")[0] == "isotherm" for name in sys.modules)
    print(f"   {len(tests)} tests, {sum(t.seconds for t in tests.values()):.0f} s", flush=True)
    return tests


def run(mutants: list[Mutant], tests: dict[str, dict[str, Test]], made: Path) -> None:
    """Two mutants at a time, each in a process of its own that is ended when its time is up."""
    waiting, running = list(mutants), dict[int, tuple[Mutant, float, float]]()
    while waiting or running:
        while waiting and len(running) < WORKERS:
            mutant = waiting.pop(0)
            known = tests[mutant.part]
            function = None if mutant.change.function is None else (str(mutant.path), mutant.change.function)
            files = {n.partition("::")[0] for n, t in known.items() if function is None or function in t.functions}
            seconds = sum(test.seconds for name, test in known.items() if name.partition("::")[0] in files)
            if not files:
                mutant.outcome = "never run"
                continue
            pid = fork(lambda m=mutant, k=known, fn=function, fs=files: try_one(m, k, fn, fs), made / f"{mutant.number}.txt")
            running[pid] = mutant, time.monotonic(), 6 * seconds + PATIENCE
        time.sleep(0.05)
        for pid, (mutant, start, limit) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            mutant.seconds = time.monotonic() - start
            if not ended and mutant.seconds < limit:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if not ended:
                os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            mutant.outcome = "timeout" if not ended else "survived" if code in (0, 5) else "killed"
            del running[pid]
            said = (made / f"{mutant.number}.txt").read_text(errors="replace").splitlines()
            by = next((line[:100] for line in said if line.startswith(("FAILED", "ERROR"))), "")
            print(f"{mutant.outcome:9} {mutant.seconds:6.1f} s  {str(mutant).splitlines()[0]}  {by}", flush=True)


def try_one(mutant: Mutant, tests: dict[str, Test], function: Function | None, files: Sequence[str]) -> int:
    sys.meta_path.insert(0, Finder(mutant))
    sys.dont_write_bytecode = True
    return pytest_main(sorted(name.removeprefix("tests/") for name in files), [Choose(tests, function)])


def pytest_main(files: Sequence[str], plugins: list[object]) -> int:
    options = ["-x", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow and not gpu", f"--rootdir={ROOT}"]
    paths = [str(ROOT / "tests" / name) for name in files]
    return int(pytest.main([*options, "-c", str(ROOT / "pyproject.toml"), *paths], plugins=plugins))


def fork(work: Callable[[], int], output: Path) -> int:
    """Do `work` in a child process in a folder of its own. Its process id."""
    if pid := os.fork():
        return pid
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
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


def report(mutants: list[Mutant], seed: str, seconds: float) -> None:
    """The table by part, then every mutant that no test noticed."""
    print(f"\n{'part':10}{'mutants':>9}{'killed':>9}{'timeouts':>9}{'survived':>9}")
    for part in [*dict.fromkeys(m.part for m in mutants), "all"]:
        own = Counter(m.outcome for m in mutants if part in (m.part, "all"))
        left = own["survived"] + own["never run"]
        print(f"{part:10}{own.total():9}{own['killed']:9}{own['timeout']:9}{left:9}   {1 - left / own.total():.0%} caught")
    print(f"seed {seed}, {seconds:.0f} s\n")
    for mutant in mutants:
        if mutant.outcome in ("survived", "never run"):
            print(mutant, "     no test runs this line" if mutant.outcome == "never run" else "", sep="\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=320, help="mutants in all")
    parser.add_argument("--seed", default="0", help="another seed gives other mutants")
    parser.add_argument("--part", default="", choices=["", *PARTS], help="only this part")
    parser.add_argument("--only", type=int, nargs="*", help="only the mutants of these numbers")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
