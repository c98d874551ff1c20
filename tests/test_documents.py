"""What the documents say is true: snippets run, fields exist, both languages say the same."""

import dataclasses
import re
from itertools import chain
from pathlib import Path

import pytest

from isotherm.checkup import CODES
from isotherm.record import check

ROOT = Path(__file__).parent.parent
PAIRS = [("README.md", "README.zh.md")] + [
    (f"docs/{name}.md", f"docs/{name}.zh.md") for name in ("check", "explain", "train", "sweep")
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_field_of_the_json_document_is_documented():
    text = read("docs/check.md")
    for record in vars(check).values():
        if dataclasses.is_dataclass(record):
            for field in dataclasses.fields(record):
                assert f"`{field.name}`" in text or record.__name__ == "Text", f"{record.__name__}.{field.name}"


@pytest.mark.parametrize("name", ["docs/check.md", "docs/check.zh.md"])
def test_every_finding_is_documented(name):
    for code in CODES:
        assert f"| `{code}` |" in read(name)


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_show_the_same_commands_and_links_to_one_another(english, chinese):
    blocks = [re.findall(r"^```\w*\n(.*?)^```", read(name), re.M | re.S) for name in (english, chinese)]
    without_comments = [[re.sub(r"\s*#.*", "", block) for block in part] for part in blocks]
    assert without_comments[0] == without_comments[1]
    assert f"({Path(chinese).name})" in read(english)
    assert f"({Path(english).name})" in read(chinese)


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_python_of_the_readme_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", read(name), re.M | re.S)
    assert snippets
    space: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), space)


@pytest.mark.parametrize(("name", "language"), [("README.md", "en"), ("README.zh.md", "zh")])
def test_the_readmes_numbers_are_the_measured_ones(name, language, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table
    import table_gpu

    assert f"<!-- measured -->\n{table.tables(language)}\n<!-- /measured -->" in read(name)
    assert f"<!-- measured on a GPU -->\n{table_gpu.tables(language)}\n<!-- /measured on a GPU -->" in read(name)
    ours = [f">{ratio:.2f}<" for ratio in table_gpu.measured("forward", "isotherm").values()]
    assert len(ours) == 8
    for figure in re.findall(r"docs/h200-[\w.]+svg", read(name)):
        drawn = read(figure)
        assert ".zh" in figure or language == "en"
        assert all(drawn.count(number) >= ours.count(number) for number in ours), figure


def test_the_documents_name_no_missing_file():
    for name in ("DESIGN.md", "CONTRIBUTING.md", *chain(*PAIRS)):
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", read(name)):
            assert (ROOT / name).parent.joinpath(target).exists(), f"{name} → {target}"
