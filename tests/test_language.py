"""Both languages, everywhere."""

import ast
import re
from pathlib import Path

import pytest

import isotherm
from isotherm import language
from isotherm.errors import ArgumentError, UnsupportedError
from isotherm.language import Text

SOURCE = Path(isotherm.__file__).parent
CJK = re.compile(r"[\u4e00-\u9fff]")
PLACE = re.compile(r"{(\w*)[^}]*}")


def texts() -> list[tuple[str, str, str]]:
    """Every literal `Text(en, zh)` in the source: (where, en, zh)."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Text":
                pair = [_literal(argument) for argument in node.args]
                if len(pair) == 2 and all(isinstance(text, str) for text in pair):
                    found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", *pair))
    return found


def _literal(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{" + ast.unparse(part.value) + "}"
            for part in node.values
        )
    return None


@pytest.mark.parametrize(("where", "en", "zh"), texts(), ids=lambda value: value if ".py:" in str(value) else "")
def test_every_text_is_in_both_languages_with_the_same_places(where, en, zh):
    if not en and not zh:  # nothing to say in either, as in the head of a column of signs
        return
    assert en, where
    assert not CJK.search(en), where
    without_places = PLACE.sub("", en)
    only_a_name = not re.search(r"[a-z]{3}", re.sub(r"'[^']*'|\b(sigmoid|sink|softmax)\b", "", without_places))
    assert CJK.search(zh) or only_a_name, where
    assert len(PLACE.findall(en)) == len(PLACE.findall(zh)), where


def test_there_are_many_texts_to_test():
    assert len(texts()) > 60


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN", "LC_ALL": "C"}, "en"),
        ({"LANG": "de_DE"}, "en"),
        ({"LANG": "C", "ISOTHERM_LANG": "zh"}, "zh"),
    ],
    ids=str,
)
def test_the_language_comes_from_the_environment(monkeypatch, environment, expected):
    for variable in ("ISOTHERM_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert language.current() == expected


def test_a_chosen_language_wins():
    language.choose("zh")
    assert str(Text("yes", "是")) == "是"


def test_errors_speak_both_languages():
    error = ArgumentError("rows", Text("a positive number", "正数"), got=-1)
    assert str(error) == "rows: expected a positive number, got -1"
    assert error.text.to("zh") == "rows：应为正数，实为 -1"
    assert isinstance(error, ValueError)
    refused = UnsupportedError("sdpa", Text("a soft cap", "软上限"))
    assert "sdpa" in refused.text.to("zh")
    assert "软上限" in refused.text.to("zh")


def test_text_inside_text_is_translated():
    outer = Text("expected {what}", "应为{what}").format(what=Text("a number", "数"))
    assert (outer.en, outer.zh) == ("expected a number", "应为数")
