"""Modules become one script: in order, once each, and nothing that the page could not run."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import InputError
from isotherm.report import shell
from tests.report.lesson import engines

MATHS_LIMIT = 40_000


def bundle(start: str, **files: str) -> str:
    return shell.bundle(start, lambda path: files[path.removeprefix("lesson/").removesuffix(".js")])


def test_a_module_follows_what_it_imports_and_comes_once():
    script = bundle(
        "lesson/top.js",
        top='import { left } from "./left.js";\nimport { right } from "./right.js";\nleft(right);',
        left='import { base } from "./base.js";\nexport const left = (x) => x + base;',
        right='import { base, other } from "./base.js";\nexport function right() {\n  return base * other;\n}',
        base="export const base = 2;\nexport let other;\n",
    )
    assert script == (
        "const base = 2;\nlet other;\nconst left = (x) => x + base;\n"
        "function right() {\n  return base * other;\n}\nleft(right);"
    )


def test_folders_are_followed():
    files = {
        "lesson/a.js": 'import { b } from "./deep/b.js";\nb();',
        "lesson/deep/b.js": 'import { c } from "../c.js";\nexport const b = c;',
        "lesson/c.js": "export async function c() {}",
    }
    assert shell.bundle("lesson/a.js", files.__getitem__) == "async function c() {}\nconst b = c;\nb();"


REFUSED = {
    "a default import": ('import one from "./x.js";', "line 1 has a form"),
    "a renamed import": ('import { one as two } from "./x.js";', "line 1 has a form"),
    "a whole module": ('import * as x from "./x.js";', "line 1 has a form"),
    "a package": ('import { one } from "x";', "line 1 has a form"),
    "an import for its effect": ('import "./x.js";', "line 1 has a form"),
    "an import at run time": ('// why\nconst x = await import("./x.js");', "line 2 has a form"),
    "the module's address": ("const here = import.meta.url;", "line 1 has a form"),
    "a default export": ("export default 1;", "line 1 has a form"),
    "exports at the end": ("const one = 1;\nexport { one };", "line 2 has a form"),
    "names in a pattern": ("const { one, two } = three;", "line 1 has a form"),
    "var": ("var one = 1;", "line 1 has a form"),
    "the end of the script": ('const end = "</SCRIPT>";', "line 1 has a form"),
    "a name that is not exported": ('import { two } from "./x.js";', "lesson/x.js exports no two"),
    "a name twice": (
        'import { one } from "./x.js";\nfunction one() {}',
        "one is also a name at the top of lesson/x.js",
    ),
    "a hidden name twice": ('import { one } from "./x.js";\nconst hidden = 1;', "hidden is also a name at the top"),
    "a file outside the page": ('import { one } from "../../x.js";', "../x.js is outside the page's folder"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_cannot_take_is_refused_with_the_name_of_the_file(what):
    source, why = REFUSED[what]
    with pytest.raises(InputError, match=r"^lesson/entry\.js: ") as refusal:
        bundle("lesson/entry.js", entry=source, x="export const one = 1;\nclass hidden {}")
    assert why in str(refusal.value)


def test_modules_that_import_one_another_are_refused():
    with pytest.raises(InputError, match=r"lesson/b\.js: lesson/a\.js imports it in turn"):
        bundle(
            "lesson/a.js",
            a='import { b } from "./b.js";\nexport const a = 1;',
            b='import { a } from "./a.js";\nexport const b = a;',
        )


def test_indented_names_are_nobody_elses_business():
    script = bundle(
        "lesson/a.js", a='import { b } from "./b.js";\n{\n  const x = b;\n}', b="export const b = 1;\n  let x;"
    )
    assert script.count("x") == 2


def test_the_mathematics_is_one_small_script_without_imports(tmp_path):
    script = engines.bundle_of_all()
    assert not [line for line in script.splitlines() if line.startswith(("import", "export"))]
    assert all(script.count(f"function {name}(") <= 1 for names in engines.EXPORTED.values() for name in names)
    assert 5_000 < len(script.encode()) < MATHS_LIMIT
    path = tmp_path / "bundle.js"
    path.write_text(f'(() => {{\n"use strict";\n{script}\n}})();\n', encoding="utf-8")
    subprocess.run([engines.node(), "--check", path], check=True)  # a name twice would be an error here, too


PAGE: dict[str, Any] = {"scripts": [], "title": "A page", "language": "en"}


def test_a_page_without_modules_has_one_script():
    page = shell.fill("<p>one</p>", **PAGE)
    assert page.count("<script>") == page.count("sha256-") - 1 == 1


def test_a_second_script_has_its_own_hash_and_runs_when_the_body_is_read(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    source = 'document.title = `${document.querySelectorAll("p").length} read`;'
    monkeypatch.setattr(shell, "bundle", lambda entry: f"// {entry}\n{source}")
    path = tmp_path / "page.html"
    path.write_text(shell.fill("<p>one</p><p>two</p>", module="lesson/start.js", **PAGE), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.title() == "2 read"
    assert "// lesson/start.js" in page.content()
    changed = path.read_text("utf-8").replace(" read`", " changed`")
    path.write_text(changed, encoding="utf-8")
    page.reload()
    assert page.title() == "A page"  # a script that is not the hashed one does not run
    page.close()
