"""A corpus from gettext catalogues: reading, cleaning, and where it came from."""

import json

import pytest

from isotherm.errors import InputError
from isotherm.train.gettext_corpus import gather, write
from isotherm.train.gettext_files import messages
from isotherm.train.message_cleaning import clean, key
from isotherm.train.parallel_text import Pair, from_tsv
from tests.train.corpora import install, write_mo

CATALOGUE = {
    "": "Content-Type: text/plain; charset=UTF-8\n",
    "Add page": "添加页面",
    "menu\x04Open": "打开",
    "%(n)d page\0%(n)d pages": "%(n)d 个页面",
    "Untranslated": "",
}
READ = [Pair("Add page", "添加页面"), Pair("Open", "打开"), Pair("%(n)d pages", "%(n)d 个页面")]
WRITTEN = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#: page.py:3
msgid "Add page"
msgstr "添加页面"

msgctxt "menu"
msgid "Open"
msgstr "打开"

msgid "%(n)d page"
msgid_plural "%(n)d pages"
msgstr[0] "%(n)d 个页面"

msgid "Untranslated"
msgstr ""

#, fuzzy, python-format
#| msgid "Guess"
msgid "Guessed"
msgstr "猜的"

#~ msgid "Gone"
#~ msgstr "没了"

msgid ""
"Two "
"lines \\"quoted\\"\\n"
msgstr "两行"
"“引用”"
"""


@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
def test_a_compiled_catalogue(tmp_path, order):
    assert messages(write_mo(tmp_path / "x.mo", CATALOGUE, order)) == READ


def test_a_written_catalogue_without_what_is_fuzzy_or_gone(tmp_path):
    (tmp_path / "x.po").write_text(WRITTEN, encoding="utf-8")
    assert messages(tmp_path / "x.po") == [*READ, Pair('Two lines "quoted"\n', "两行“引用”")]


@pytest.mark.parametrize("cut", [0, 3, 20, 60, -4], ids=str)
def test_a_catalogue_that_is_not_whole(tmp_path, cut):
    path = write_mo(tmp_path / "x.mo", CATALOGUE)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"x\.mo: not a whole gettext catalogue"):
        messages(path)


def test_a_written_catalogue_with_a_line_that_is_none(tmp_path):
    (tmp_path / "x.po").write_text('msgid "a"\nmsgstr "b"\nmsgstr broken\n')
    with pytest.raises(InputError, match=r"x\.po: line 3: not a gettext line"):
        messages(tmp_path / "x.po")


CLEANED = {
    "accelerator": ("&File", "文件(&F)", Pair("File", "文件")),
    "wide brackets": ("&File...", "文件（&F）...", Pair("File...", "文件...")),
    "an ampersand between words": ("Terms & conditions", "条款", Pair("Terms & conditions", "条款")),
    "markup": ('<a href="%(url)s">Log <b>in</b></a>', "<b>登录</b>", Pair("Log in", "登录")),
    "a break": ("one<br/>two", "一<br>二", Pair("one two", "一 二")),
    "entities": ("a &lt; b", "甲 &lt; 乙", Pair("a < b", "甲 < 乙")),
    "lines": ("a\n  b\tc", "甲\n乙", Pair("a b c", "甲 乙")),
    "placeholders move": ("%(a)s of %(b)s", "%(b)s的%(a)s", Pair("{1} of {2}", "{2}的{1}")),
    "one placeholder twice": ("{x} and {x}", "{x}和{x}", Pair("{1} and {2}", "{1}和{2}")),
    "a share": ("100% done", "完成 100%", Pair("100% done", "完成 100%")),
    "a placeholder lost": ("%s pages", "页面", None),
    "a placeholder more": ("pages", "%s 页面", None),
    "nothing but a placeholder": ("%(a)s: %(b)s", "%(a)s：%(b)s", None),
    "not translated": ("Email", "Email", None),
    "no Chinese in it": ("E-mail", "Email", None),
}


@pytest.mark.parametrize(("source", "target", "wanted"), CLEANED.values(), ids=CLEANED.keys())
def test_cleaning(source, target, wanted):
    assert clean(Pair(source, target), chinese=True) == wanted


def test_other_languages_need_no_chinese():
    assert clean(Pair("E-mail", "Courriel"), chinese=False) == Pair("E-mail", "Courriel")


def test_sentences_alike_but_for_capitals_and_punctuation_have_one_key():
    assert key("Add  page…") == key("add PAGE")
    assert key("Add page") != key("Add pages")


@pytest.fixture
def site(tmp_path):
    """Two packages, one with both kinds of catalogue, one that spells the language otherwise."""
    where = tmp_path / "site"
    mo = write_mo(where / "one/locale/zh_Hans/LC_MESSAGES/d.mo", CATALOGUE)
    po = mo.with_suffix(".po")
    po.write_text(WRITTEN, encoding="utf-8")
    french = write_mo(where / "one/locale/fr/LC_MESSAGES/d.mo", {"Open": "Ouvrir"})
    install(where, "Pack_One", [mo, po, french], "License-Expression: MIT\n")
    other = where / "two/i18n/zh-CN/LC_MESSAGES/d.po"
    other.parent.mkdir(parents=True)
    other.write_text('msgid "Open!"\nmsgstr "开"\n\nmsgid "Close"\nmsgstr "关闭"\n', encoding="utf-8")
    licence = "License: Copyright\n  all of it\nClassifier: License :: OSI Approved :: BSD License\n"
    install(where, "pack-two", [other], licence)
    return where


def test_packages_are_gathered_once_each_source_with_where_it_came_from(site, tmp_path):
    corpus = gather(["pack-one", "pack.two"], "zh_CN", where=site)
    assert corpus.pairs == (
        Pair("Add page", "添加页面"),
        Pair("Open", "打开"),
        Pair("{1} pages", "{1} 个页面"),
        Pair("Close", "关闭"),
    )
    out = tmp_path / "corpus.tsv"
    note = json.loads(write(corpus, out).read_text(encoding="utf-8"))
    assert from_tsv(out) == list(corpus.pairs)
    assert note["packages"] == [
        {
            "package": "Pack_One",
            "version": "1.2",
            "licence": "MIT",
            "catalogues": ["one/locale/zh_Hans/LC_MESSAGES/d.mo"],
            "messages": 3,
            "pairs": 3,
        },
        {
            "package": "pack-two",
            "version": "1.2",
            "licence": "BSD License",
            "catalogues": ["two/i18n/zh-CN/LC_MESSAGES/d.po"],
            "messages": 2,
            "pairs": 1,
        },
    ]


def test_long_sources_are_left_out(site):
    assert gather(["pack-one"], "zh_Hans", where=site, longest=4).pairs == (Pair("Open", "打开"),)


@pytest.mark.parametrize(
    ("packages", "lang", "message"),
    [
        (["pack-one"], "de", r"Pack_One: no catalogue for de \(it has: fr, zh_Hans\)"),
        (["pack-three"], "zh_Hans", "pack-three: this package is not installed in .*site"),
    ],
    ids=["language", "package"],
)
def test_what_is_not_there_is_named(site, packages, lang, message):
    with pytest.raises(InputError, match=message):
        gather(packages, lang, where=site)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="none: there is no such folder"):
        gather(["x"], "zh", where=tmp_path / "none")


def test_a_package_of_this_environment_without_catalogues():
    with pytest.raises(InputError, match=r"pytest: no catalogue for zh_Hans \(it has: none\)"):
        gather(["pytest"], "zh_Hans")


@pytest.mark.parametrize(
    "record",
    [b"\xff,,\n", b"p/d.mo,,\n\np/e.po,,\n", b"p/d.mo,,many\n", b"a,b,3,d\n", b'"' + b"x" * 200_000],
    ids=["not UTF-8", "empty line", "bad size", "four fields", "one huge field"],
)
def test_a_damaged_list_of_files_is_refused_by_name(tmp_path, record):
    install(tmp_path, "p", [], "")
    (tmp_path / "p-1.2.dist-info/RECORD").write_bytes(record)
    with pytest.raises(InputError, match=r"^p: its list of files \(RECORD\) is damaged$"):
        gather(["p"], "zh_Hans", where=tmp_path)


def test_damaged_metadata_is_refused_unless_it_is_another_packages(tmp_path):
    path = write_mo(tmp_path / "good/locale/zh_Hans/LC_MESSAGES/d.mo", CATALOGUE)
    install(tmp_path, "bad", [], "")
    install(tmp_path, "good", [path], "")
    (tmp_path / "bad-1.2.dist-info/METADATA").write_bytes(b"Name: bad\xff\n")
    assert gather(["good"], "zh_Hans", where=tmp_path).pairs
    with pytest.raises(InputError, match=r"bad-1\.2\.dist-info: its METADATA is not UTF-8$"):
        gather(["bad"], "zh_Hans", where=tmp_path)
