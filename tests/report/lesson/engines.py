"""The lesson's JavaScript, called from Python: in node, which imports the modules as they are, and in a page, as one bundle."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from isotherm.report import shell

MATHS = Path(shell.__file__).parent / "page" / "lesson" / "maths"
MODULES = sorted(path.name for path in MATHS.glob("*.js"))
EXPORTED = {
    name: re.findall(r"^export (?:const|class|function) (\w+)", (MATHS / name).read_text("utf-8"), re.MULTILINE)
    for name in MODULES
}
Call = tuple[Any, ...]

# Numbers that JSON has no word for travel as JavaScript's own words, and as strings on the way back.
_ANSWERS = """
const plain = (key, value) => {
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  return ArrayBuffer.isView(value) ? Array.from(value) : value;
};
const answer = ([name, ...given]) => {
  try {
    return typeof maths[name] === "function" ? maths[name](...given) : maths[name];
  } catch (error) {
    return { error: error.message };
  }
};
"""


def node() -> str:
    """The path of node; a test that needs it is skipped where there is none."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("no node on this machine: install Node.js 20 or newer")
    return found


def run_in_node(script: str) -> str:
    """What a module prints that has all of the lesson's mathematics as `maths`."""
    lines = [f'import * as m{i} from "{(MATHS / name).as_uri()}";' for i, name in enumerate(MODULES)]
    spread = ", ".join(f"...m{i}" for i in range(len(MODULES)))
    source = "\n".join([*lines, f"const maths = {{ {spread} }};", script])
    command = [node(), "--input-type=module", "-"]
    done = subprocess.run(command, input=source, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def in_node(calls: Sequence[Call]) -> list[Any]:
    """The answers to calls such as ("softmax", [0, 1]), in one process."""
    script = f"{_ANSWERS}\nconsole.log(JSON.stringify({_source(calls)}.map(answer), plain));"
    return json.loads(run_in_node(script), parse_constant=float)


def in_page(browser: Any, calls: Sequence[Call]) -> list[Any]:
    """The same answers from the bundle, in a page."""
    names = ", ".join(name for exported in EXPORTED.values() for name in exported)
    body = f'"use strict";\n{bundle_of_all()}\nconst maths = {{ {names} }};\n{_ANSWERS}'
    page = browser.new_page()
    try:
        return json.loads(
            page.evaluate(f"() => {{ {body}; return JSON.stringify({_source(calls)}.map(answer), plain); }}")
        )
    finally:
        page.close()


def bundle_of_all() -> str:
    """The bundle of a module that imports everything the mathematics exports."""
    entry = "\n".join(f'import {{ {", ".join(names)} }} from "./{module}";' for module, names in EXPORTED.items())
    return shell.bundle("lesson/maths/*", lambda path: entry if path.endswith("*") else shell.asset(path))


def _source(calls: Sequence[Call]) -> str:
    return json.dumps(calls)
