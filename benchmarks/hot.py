"""Trains a transformer of GPT-2 small's size three ways on a CUDA device: left alone, too hot, too hot with the valve.

It is the demo of `isotherm watch` at 12 layers of 12 heads and 16 × 1,024 tokens. Each row says when the first alert came,
when the loss showed that something was wrong, and how the run ended.

    python benchmarks/hot.py --commit $(git rev-parse HEAD) --out benchmarks/results/hot_gpu
"""

import argparse
import csv
import json
import platform
import time
from pathlib import Path

import torch

from isotherm.monitor.demo import EVERY, TAU, TOO_HIGH, DemoSize, demonstrate

GPT2 = DemoSize(layers=12, heads=12, width=768, symbols=512, length=1024, period=17, batch=16, rate=3e-4, device="cuda")
COLUMNS = ("seed", "run", "first_alert", "loss_shows_it", "last_loss", "largest_logit")


def main() -> None:
    """Train, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    started = time.perf_counter()
    trios = demonstrate(asked.seeds, asked.steps, size=GPT2, progress=lambda name: print(name, flush=True))
    table = [
        (
            trio.seed,
            name,
            run.alerted,
            trio.shows if run is trio.hot else None,
            round(run.end, 3),
            round(run.largest, 1),
        )
        for trio in trios
        for name, run in (("alone", trio.alone), ("hot", trio.hot), ("held", trio.held))
    ]
    for row in (COLUMNS, *table):
        print("\t".join("–" if cell is None else str(cell) for cell in row))
    print(f"{time.perf_counter() - started:.0f} s")
    if asked.out is None:
        return
    with asked.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(table)
    provenance = {
        "commit": asked.commit,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "size": vars(GPT2),
        "steps": asked.steps,
        "too_high": TOO_HIGH,
        "tau": TAU,
        "looked_at_every": EVERY,
        "command": "benchmarks/hot.py",
    }
    asked.out.with_suffix(".json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    main()
