"""A run in a process of its own, to be killed or multiplied: python -m tests.train.job CONFIG.json FOLDER [--resume]."""

import json
import sys
import time
from pathlib import Path

from isotherm.train import loop
from tests.train.corpora import from_plain

step = loop.Loop._step


def slow_step(self, number):
    time.sleep(0.03)  # so that there is a moment to be killed in, on a fast machine too
    return step(self, number)


if __name__ == "__main__":
    if "--slowly" in sys.argv:
        loop.Loop._step = slow_step
    config = from_plain(json.loads(Path(sys.argv[1]).read_text()))
    loop.train(config, Path(sys.argv[2]), resume="--resume" in sys.argv)
