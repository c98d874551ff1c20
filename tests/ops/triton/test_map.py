"""README.md in the folder of the kernels is a map of it: every file is on the map, and nothing else."""

import ast
import re
from pathlib import Path

from isotherm.ops import triton as kernels

FOLDER = Path(kernels.__file__).parent
MAP = (FOLDER / "README.md").read_text(encoding="utf-8")


def table_of(text: str) -> list[str]:
    """The files in the table of files, in its order."""
    return re.findall(r"^\| `(\w+\.py)` \|", text, re.M)


def unknown_files(text: str) -> set[str]:
    """Python files that a map names and that are neither in the folder nor elsewhere in the package."""
    there = {path.name for path in FOLDER.glob("*.py")} | {"api.py", "stats.py"}
    return set(re.findall(r"\b\w+\.py\b", text)) - there


def test_every_file_is_on_the_map_once():
    assert sorted(table_of(MAP)) == sorted(path.name for path in FOLDER.glob("*.py"))


def test_the_map_names_no_file_that_is_not_there():
    assert unknown_files(MAP) == set()
    assert unknown_files("`fast_kernel.py` and `dense_kernel.py`") == {"dense_kernel.py"}


def test_every_kernel_that_is_launched_is_on_the_map():
    """A launched kernel is one whose arguments are not specialised by value, which the decorator says."""
    launched = {
        node.name
        for path in FOLDER.glob("*_kernel.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and any(isinstance(each, ast.Call) for each in node.decorator_list)
    }
    assert {"fast_pass", "hopper", "attend", "merge_splits"} <= launched
    assert {name for name in launched if f"`{name}`" not in MAP} == set()
