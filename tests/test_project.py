"""Files around the code agree with one another: versions, hooks, workflow, forms."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_one_version_everywhere():
    assert read_yaml("CITATION.cff")["version"] == PROJECT["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changelog, re.M).group(1) == PROJECT["version"]


def test_the_citation_has_what_its_format_requires():
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["license"] == PROJECT["license"]


def test_hooks_use_the_constrained_versions():
    hooks = {repo["repo"]: repo for repo in read_yaml(".pre-commit-config.yaml")["repos"]}
    assert hooks["https://github.com/astral-sh/ruff-pre-commit"]["rev"] == f"v{pinned()['ruff']}"
    assert hooks["local"]["hooks"][0]["entry"] == ".venv/bin/mypy"


def test_what_is_needed_for_the_tests_is_constrained():
    names = {re.match(r"[\w-]+", need).group() for extra in PROJECT["optional-dependencies"].values() for need in extra}
    assert names - {"isotherm"} <= pinned().keys()


def test_the_workflow_may_only_read_and_runs_pinned_actions():
    workflow = read_yaml(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert not [job for job in workflow["jobs"].values() if "permissions" in job]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions
    for action in actions:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), action


def test_the_workflow_tests_the_oldest_python_that_is_allowed():
    versions = read_yaml(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions[0] == PROJECT["requires-python"].removeprefix(">=")


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_github_requires(form):
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= content.keys()
    ids = [field["id"] for field in content["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["type"] in ("input", "textarea") and field["attributes"]["label"] for field in content["body"])


def test_there_is_a_form_for_each_kind_of_issue():
    assert {form.stem for form in FORMS} == {"bug", "wrong_verdict", "feature"}
