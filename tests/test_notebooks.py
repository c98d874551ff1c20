"""The documents' own code, run and corrected: both notebooks are valid, hold the same code, and give the outputs they store."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
NAMES = ["documents.ipynb", "documents.zh.ipynb"]
KEYS = {"markdown": {"cell_type", "id", "metadata", "source"}}
KEYS["code"] = KEYS["markdown"] | {"execution_count", "outputs"}


def notebook(name):
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def cells(name, kind):
    return [cell for cell in notebook(name)["cells"] if cell["cell_type"] == kind]


def run(sources):
    """What each cell prints, run in order in one namespace as a kernel would."""
    space, printed = {}, []
    for place, source in enumerate(sources):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, f"cell {place}", "exec"), space)
        printed.append(out.getvalue())
    return printed


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_valid(name):
    """The rules of nbformat 4.5's schema that concern such cells."""
    found = notebook(name)
    assert set(found) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in found["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[a-zA-Z0-9-_]{1,64}", each) for each in ids)
    for cell in found["cells"]:
        assert set(cell) == KEYS[cell["cell_type"]]
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert not cell["source"][-1].endswith("\n")
    assert [cell["execution_count"] for cell in cells(name, "code")] == list(range(1, len(cells(name, "code")) + 1))
    for output in (output for cell in cells(name, "code") for output in cell["outputs"]):
        assert output.keys() == {"name", "output_type", "text"}
        assert (output["name"], output["output_type"]) == ("stdout", "stream")


def test_both_languages_run_the_same_code_to_the_same_output():
    assert cells(NAMES[0], "code") == cells(NAMES[1], "code")
    assert [cell["id"] for cell in notebook(NAMES[0])["cells"]] == [cell["id"] for cell in notebook(NAMES[1])["cells"]]
    for cell in cells(NAMES[0], "markdown"):
        assert not re.search("[\u4e00-\u9fff]", "".join(cell["source"]))
    assert all(re.search("[\u4e00-\u9fff]", "".join(cell["source"])) for cell in cells(NAMES[1], "markdown"))


def test_every_cell_runs_and_prints_what_is_stored():
    code = cells(NAMES[0], "code")
    printed = run("".join(cell["source"]) for cell in code)
    stored = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in code]
    assert printed == stored
    assert sum(map(bool, stored)) >= 10


def test_each_document_has_its_code_as_written_and_corrected():
    ids = [cell["id"] for cell in cells(NAMES[0], "code")]
    both = [f"{name}-{kind}" for name in ("000", "001", "002", "003", "004") for kind in ("written", "right")]
    assert ids == ["setup", *both]
    source = {cell["id"]: "".join(cell["source"]) for cell in cells(NAMES[0], "code")}
    assert "probs2 = softmax(score1)" in source["003-written"]
    assert "probs2 = softmax(score2)" in source["003-right"]
    assert "f = lambda x: exp(x * 2) / (exp(x) + exp(x) + exp(x * 2))" in source["001-written"]
    assert "scale=np.sqrt(512)" in source["002-written"]
