"""Run the fuzzer: `python -m tests.fuzz --count 100000 --seconds 300`. Exit code 1 if anything was found."""

import argparse
import gc
import os
import re
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.fuzz import examples
from tests.fuzz.case import findings
from tests.fuzz.targets import TARGETS

MEMORY = 12 * 2**30  # bytes of address space, so that an absurd size fails instead of swapping


def main() -> int:
    """Run cases until there were enough, or time is up; write each kind of finding once."""
    asked = arguments()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    names, shares = list(TARGETS), [share for share, _ in TARGETS.values()]
    if asked.target:
        names, shares = [asked.target], [1]
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    processes, started = 0, time.monotonic()
    room = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=room) as made:
        os.environ |= examples.environment(made)
        (Path(made) / "hf").mkdir()
        for make in examples.BASES.values():
            make()
        gc.freeze()  # collections need not look at torch and transformers again
        for number in range(asked.count):
            if time.monotonic() - started > asked.seconds:
                break
            random = Random(f"{asked.seed}/{number}")
            name = random.choices(names, shares)[0]
            case = TARGETS[name][1](random)
            encodable = "".join(case.words).encode("utf-8", "ignore").decode() == "".join(case.words)
            in_process = (number + 1) % asked.process_every != 0 or not encodable  # a process takes no lone surrogate
            processes += not in_process
            start = time.monotonic()
            broken = findings(case, Path(made), in_process=in_process)
            counts[name] += 1
            seconds[name] += time.monotonic() - start
            for finding in broken:
                found[name, finding.kind] += 1
                if found[name, finding.kind] == 1:
                    path = asked.out / (re.sub(r"\W+", "-", f"{name} {finding.kind}").strip("-")[:100] + ".json")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(case.to_json(), encoding="utf-8")
                    print(f"\n{name}: {finding.kind}\n  {path}\n{finding.detail}", flush=True)
    total = sum(counts.values())
    spent = time.monotonic() - started
    print(f"\n{total} inputs in {spent:.0f} s ({processes} of them in processes of their own), seed {asked.seed}")
    for name in names:
        kinds = sum(1 for target, _ in found if target == name)
        print(f"  {name:16} {counts[name]:7} inputs {seconds[name]:7.1f} s {kinds:3} kinds of finding")
    for (name, kind), times in found.most_common():
        print(f"  {times:5} × {name}: {kind}")
    return int(bool(found))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs at most")
    parser.add_argument("--seconds", type=float, default=600, help="seconds at most")
    parser.add_argument("--seed", default="0", help="another seed gives other inputs")
    parser.add_argument("--target", choices=list(TARGETS), help="only this kind of input")
    parser.add_argument("--process-every", type=int, default=2000, help="run every Nth input in a process of its own")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="folder for the findings")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
