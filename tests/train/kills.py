"""Kill training and sweeping many times, at moments nobody chose, and compare with runs that were let through:
python -m tests.train.kills [COUNT] [SEED]. `make test-full` does the same a few times."""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from isotherm.train.loop import train
from isotherm.train.sweep.run import How, run_sweep
from isotherm.train.sweep.spec import read_spec
from tests.train.corpora import last_state, learned, tiny, write_tsv
from tests.train.sweep.small import SPEC


def killed_after(seconds: float, work: Callable[[], object]) -> bool:
    """Do the work in a process of its own and kill that with SIGKILL after a while. Whether it was killed in time."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        work()
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the work itself failed with {os.WEXITSTATUS(status)}")
    return os.WIFSIGNALED(status)


def kill_often(
    count: int, chance: random.Random, work: Callable[[Path], object], folder: Path
) -> Iterator[tuple[Path, int]]:
    """Begin runs in new folders, kill each again and again until it is through, and yield the finished folders."""
    started = time.perf_counter()
    work(folder / "through")
    longest = time.perf_counter() - started
    kills = number = 0
    while kills < count:
        number += 1
        path = folder / str(number)
        while killed_after(chance.uniform(0, 0.5 * longest), lambda path=path: work(path)):
            kills += 1
        yield path, kills


def main(count: int, seed: int) -> None:
    """Train, then sweep."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tsv = write_tsv(folder / "pairs.tsv")
        config = tiny(tsv, run__steps=60)
        for path, kills in kill_often(
            count, chance, lambda at: train(config, at, resume=True, quiet=True), folder / "train"
        ):
            whole = folder / "train" / "through"
            assert learned(path) == learned(whole)
            assert last_state(path) == last_state(whole)
            assert (path / "result.json").read_bytes() == (whole / "result.json").read_bytes()
            print(f"train: {kills} kills, identical", flush=True)
        spec_file = folder / "spec.toml"
        spec_file.write_text(SPEC.replace("steps = 5", "steps = 40"), encoding="utf-8")
        spec = read_spec(spec_file)

        def sweep(at: Path) -> object:
            return run_sweep(spec, at, How(workers=1, together=3))

        for path, kills in kill_often(count, chance, sweep, folder / "sweep"):
            one, other = (
                [outcome.numbers() for outcome in sweep(at).outcomes] for at in (path, folder / "sweep" / "through")
            )
            assert one == other
            print(f"sweep: {kills} kills, identical", flush=True)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(50, 0)[len(given) :])
