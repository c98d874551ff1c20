"""The documents are true: snippets run, output and numbers are the real ones, links resolve, both languages agree."""

import dataclasses
import re
from pathlib import Path

import pytest

from isotherm.checkup.findings import CODES
from isotherm.cli import VERBS, program, run
from isotherm.record import check

ROOT = Path(__file__).parent.parent
PAIRS = [("README.md", "README.zh.md")] + [
    (f"docs/{name}.md", f"docs/{name}.zh.md")
    for name in ("check", "cost", "explain", "set", "train", "sweep", "tune", "watch")
]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for where in (".", "docs", "docs/notes", ".github")
    for path in (ROOT / where).glob("*.md")
)
README_LINES = 120


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
    without_lines = [
        [re.sub(r"^(  [\w.,/ ]+?) {2,}.*", r"\1", it, flags=re.M) for it in part] for part in without_comments
    ]
    assert without_lines[0] == without_lines[1]
    assert f"({Path(chinese).name})" in read(english)
    assert f"({Path(english).name})" in read(chinese)


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readme_is_short(name):
    assert len(read(name).splitlines()) <= README_LINES


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "docs/set.md", "docs/set.zh.md"])
def test_the_python_of_a_document_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", read(name), re.M | re.S)
    assert snippets
    space: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), space)


@pytest.mark.parametrize("name", ["docs/check.md", "docs/check.zh.md"])
def test_the_python_of_the_page_on_checking_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", read(name), re.M | re.S)
    assert len(snippets) == 2  # the second goes on where the first ends
    exec(compile("".join(snippets), name, "exec"), {})
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.json"}


def test_the_output_in_the_readme_is_the_real_one(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "128")
    shown = re.search(r"^\$ isotherm check\n(.*?)^```", read("README.md"), re.M | re.S).group(1)
    assert run(["check", "--what-if", "none", "--one-implementation"]) == 0
    printed = re.sub(r" +$", "", capsys.readouterr().out, flags=re.M)
    for paragraph in shown.split("\n\n"):
        assert paragraph in printed


def test_every_command_of_the_documents_exists():
    """Every `isotherm VERB --option` in a block of code is a verb with that option."""
    commands = [
        line.partition("#")[0]
        for name in DOCUMENTS
        for block in re.findall(r"^ *```\w*\n(.*?)^ *```", read(name), re.M | re.S)
        for line in block.splitlines()
        if re.match(r" *(\$ )?isotherm ", line)
    ]
    assert len(commands) > 20
    for command in commands:
        verb = re.search(r"isotherm (\w+)", command).group(1)
        assert verb in VERBS, command
        options = {name for parameter in program.get_command(None, verb).params for name in parameter.opts}
        if verb != "data":  # has verbs of its own
            assert set(re.findall(r"(?<=\s)--[a-z-]+", command)) <= options, command


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_tables_of_costs_are_the_measured_ones(language, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table
    import table_gpu

    text = read("docs/cost.md" if language == "en" else "docs/cost.zh.md")
    assert f"<!-- measured -->\n{table.tables(language)}\n<!-- /measured -->" in text
    assert f"<!-- measured on a GPU -->\n{table_gpu.tables(language)}\n<!-- /measured on a GPU -->" in text
    assert f"<!-- used -->\n{table_gpu.used(language)}\n<!-- /used -->" in text
    watch = read("docs/watch.md" if language == "en" else "docs/watch.zh.md")
    assert f"<!-- watched -->\n{table_gpu.watched(language)}\n<!-- /watched -->" in watch


@pytest.mark.parametrize(("name", "language"), [("README.md", "en"), ("README.zh.md", "zh")])
def test_the_readmes_numbers_and_figure_are_the_measured_ones(name, language, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table
    import table_gpu

    checks = {(row["model"], row["provider"]): float(row["ratio_to_forward"]) for row in table.rows("check_cpu")}
    measured = [
        table_gpu.mean(table_gpu.measured("forward", "isotherm")),
        table_gpu.mean(table_gpu.measured("statistics", "isotherm")),
        checks["MiniLM, 256", "check, exact"],
    ]
    assert re.findall(r"\*\*([\d.]+) ×\*\*", read(name)) == [f"{number:.2f}" for number in measured]
    ours = [f">{ratio:.2f}<" for ratio in table_gpu.measured("forward", "isotherm").values()]
    assert len(ours) == 8
    figures = re.findall(r"docs/h200-[\w.]+svg", read(name))
    assert len(figures) == 2
    for figure in figures:
        drawn = read(figure)
        assert ".zh" in figure or language == "en"
        assert all(drawn.count(number) >= ours.count(number) for number in ours), figure


def test_the_changelog_s_numbers_are_the_measured_ones(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table_gpu

    text = " ".join(read("CHANGELOG.md").split())
    for task in ("forward", "forward+backward", "statistics", "forward, unscaled", "statistics, unscaled"):
        assert f"{table_gpu.mean(table_gpu.measured(task, 'isotherm')):.2f} ×" in text
    several = {
        task: f"{table_gpu.mean(table_gpu.shown(task, table_gpu.against_one(task, 'device'))):.1f}"
        for task in table_gpu.SCALES
    }
    near, even, free, near_1, free_1, many, some_near, some_even, some_free, _ = several.values()
    assert f"{near} × one scale if half an octave apart ({near_1} × up to 1), {even} × if evenly spaced" in text
    assert f"{free} × with no simple relation ({free_1} × up to 1)" in text
    assert f"{some_near}, {some_even} and {some_free} ×" in text
    assert f"32 take {many} ×" in text


def anchors(text: str) -> set[str]:
    """The anchors GitHub gives to headings: small letters, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(name: str) -> list[str]:
    """Links of a document to files and headings that do not exist."""
    found = re.findall(r"\]\((?!https?:)([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", read(name))
    broken = []
    for target in map("".join, found):
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_resolves(name):
    assert not broken_links(name)


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text("# A b\n[1](a.md) [2](b.md) [3](#a-b) [4](#c) [5](https://x.org) ![6](c.png)")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert broken_links("a.md") == ["b.md", "#c", "c.png"]


def test_the_notes_are_all_in_their_index():
    index = read("docs/notes/README.md")
    for name in DOCUMENTS:
        if name.startswith("docs/notes/") and name != "docs/notes/README.md":
            assert f"]({Path(name).name})" in index
