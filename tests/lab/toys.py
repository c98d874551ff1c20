"""Claims made for a test: each a module in a folder of its own, found by workers as any other."""

from isotherm.lab.runner import ClaimOrder

TOY = """
import os, sys, time
from pathlib import Path
import torch
from isotherm.lab.claim import Claim, Result, conclude
from isotherm.language import Text
from isotherm.record import Figure, Line, Measured

def experiment(setting):
    with open(Path(__file__).with_name("ran.txt"), "a") as file:
        file.write("{name} ")
    {body}
    draw = torch.randn(257, 31, generator=setting.generator(5))
    plain = torch.randn(7)
    setting.progress(0.5)
    print("a claim that prints")
    value = float((draw @ draw.T).square().mean())
    name = Text("value", "数值")
    line = Line(name, (1.0, 2.0), (value, float(plain.sum())))
    figure = Figure("{name}", name, name, name, (line,))
    return conclude(value > 0, name, [Measured(name, value, holds=True)], [figure])

T = Text("toy", "玩具")
CLAIM = Claim(id="{name}", title=T, question=T, statement=T, sources=(), hypothesis=T, expected="confirmed",
    experiment=experiment, quick={{"size": 3}}, full={{"size": 5}}, seed={seed}, needs={needs})
"""


class Toys:
    """Makes claims, and knows which of them ran, in order."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def __call__(self, name, body="pass", seed=7, needs=()):
        module = f"{self.folder.parent.name.replace('-', '_')}_{name}"
        text = TOY.format(name=name, body=body, seed=seed, needs=needs)
        (self.folder / f"{module}.py").write_text(text, encoding="utf-8")
        return ClaimOrder(name, module)

    def ran(self):
        record = self.folder / "ran.txt"
        return record.read_text().split() if record.exists() else []
