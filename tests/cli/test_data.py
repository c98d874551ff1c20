"""`isotherm data` as a person runs it."""

import json

import pytest

from isotherm.cli import run
from tests.train.corpora import install, write_mo


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Two packages where `import` finds them, and an empty folder to work in."""
    where = tmp_path / "site"
    for name, messages in (("django", {"Add page": "添加页面"}), ("wagtail", {"Open": "打开", "Close": "关闭"})):
        files = [write_mo(where / name / "locale/zh_Hans/LC_MESSAGES/d.mo", messages)]
        files.append(write_mo(where / name / "locale/fr/LC_MESSAGES/d.mo", {"Open": "Ouvrir"}))
        install(where, name, files, "License-Expression: MIT\n")
    monkeypatch.syspath_prepend(str(where))
    monkeypatch.chdir(tmp_path)
    return where


PACKAGES = ("data", "gettext", "--package", "django", "--package", "wagtail")


@pytest.mark.parametrize("place", ["installed", "--where"])
def test_lang_names_the_translations(site, tmp_path, capsys, place):
    where = [] if place == "installed" else ["--where", str(site)]
    assert run([*PACKAGES, *where, "--lang", "zh_Hans"]) == 0
    assert (tmp_path / "corpus.tsv").read_text(encoding="utf-8").splitlines() == [
        "Add page\t添加页面",
        "Open\t打开",
        "Close\t关闭",
    ]
    assert "3 pairs in corpus.tsv; where they come from: corpus.json" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--lang", "--to"])
def test_any_catalogue_can_be_named(site, tmp_path, option):
    assert run([*PACKAGES, option, "fr", "--out", str(tmp_path / "new" / "folder" / "x.tsv")]) == 0
    assert (tmp_path / "new" / "folder" / "x.tsv").read_text(encoding="utf-8") == "Open\tOuvrir\n"
    assert json.loads((tmp_path / "new" / "folder" / "x.json").read_text(encoding="utf-8"))["target"] == "fr"


@pytest.mark.parametrize("words", [["--lang", "zh"], ["--lang", "zh", "--lang", "zh_Hans"]], ids=" ".join)
def test_lang_zh_is_the_language_of_messages_here_too(site, capsys, words):
    assert run([*PACKAGES, *words]) == 0
    assert "corpus.tsv 中有 3 对" in capsys.readouterr().err


MISTAKES = {
    "two codes": (["--lang", "fr", "--to", "de"], "--lang: expected the same code as --to (de), got fr"),
    "no catalogue": (["--lang", "xx"], "django: no catalogue for xx (it has: fr, zh_Hans)"),
    "a file for a folder": (["--out", "file/x.tsv"], "cannot write file/x.tsv: a part of the path is not a folder"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(site, tmp_path, capsys, words, message):
    (tmp_path / "file").write_text("")
    assert run([*PACKAGES, *words]) == 2
    assert capsys.readouterr().err == f"isotherm: {message}\n"
    assert not (tmp_path / "corpus.tsv").exists()
