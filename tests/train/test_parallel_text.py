"""Parallel text in every format, and what may be wrong with it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import InputError
from isotherm.train.parallel_text import Pair, from_files, from_jsonl, from_tsv, split
from isotherm.train.text_files import lines

WANTED = [Pair("Add page", "添加页面"), Pair("Line\u2028within", "行\u2028内")]


def put(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_two_files(tmp_path):
    a = put(tmp_path / "a.en", "\ufeffAdd page\r\nLine\u2028within\r\n\r\n")
    b = put(tmp_path / "a.zh", "添加页面\n行\u2028内\n空\n")
    assert from_files(a, b) == WANTED


def test_a_table_with_and_without_a_header(tmp_path):
    plain = put(tmp_path / "a.tsv", "Add page\t添加页面\n\nLine\u2028within\t行\u2028内\nnothing\t \n")
    assert from_tsv(plain) == WANTED
    named = put(tmp_path / "b.tsv", "id\tzh\ten\n1\t添加页面\tAdd page\n2\t行\u2028内\tLine\u2028within\n")
    assert from_tsv(named, ("en", "zh")) == WANTED


def test_json_lines(tmp_path):
    rows = [{"source": pair.source, "target": pair.target, "n": 3} for pair in (*WANTED, WANTED[0])]
    path = put(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert from_jsonl(path) == WANTED
    renamed = put(tmp_path / "b.jsonl", '{"en": "Add page", "zh": "添加页面"}\n')
    assert from_jsonl(renamed, ("en", "zh")) == WANTED[:1]


READERS = {
    "empty": (lambda path: from_tsv(put(path / "x", "")), "x: the file is empty"),
    "blank": (lambda path: from_tsv(put(path / "x", " \n\n")), "x: the file is empty"),
    "missing": (lambda path: from_tsv(path / "none"), "none: there is no such file"),
    "folder": (from_tsv, "this is a folder; a file is needed"),
    "encoding": (lambda path: from_tsv(put(path / "x", b"a\tb\nc\t\xff\n")), "x: line 2 is not UTF-8 text"),
    "encoding after a mark": (
        lambda path: from_tsv(put(path / "x", b"\xef\xbb\xbfa\tb\n\nc\t\xff\n")),
        "x: line 3 is not UTF-8 text",
    ),
    "unaligned": (
        lambda path: from_files(put(path / "x", "a\nb\nc\n"), put(path / "y", "a\nb\n")),
        r"x: 3 lines, but .*y has 2",
    ),
    "one column": (
        lambda path: from_tsv(put(path / "x", "a\tb\n\nalone\n")),
        "x: line 3: expected at least 2 columns between tabs, got 1",
    ),
    "three columns": (
        lambda path: from_tsv(put(path / "x", "1\tAdd page\t添加页面\n")),
        "x: line 1: 3 columns between tabs; name two of the first line with data.columns",
    ),
    "no such column": (
        lambda path: from_tsv(put(path / "x", "en\tzh\na\tb\n"), ("en", "de")),
        r"x: no column de in the first line \(en, zh\)",
    ),
    "not JSON": (lambda path: from_jsonl(put(path / "x", '{"source": "a"')), "x: line 1: not JSON"),
    "no field": (
        lambda path: from_jsonl(put(path / "x", '{"source": "a"}')),
        'x: line 1: expected an object with text under "target"',
    ),
    "not an object": (lambda path: from_jsonl(put(path / "x", "[1]")), 'with text under "source"'),
    "one side only": (lambda path: from_tsv(put(path / "x", "a\t\n\tb\n")), "x: no pair has text on both sides"),
}


@pytest.mark.parametrize(("read", "message"), READERS.values(), ids=READERS.keys())
def test_what_is_wrong_is_named(tmp_path, read, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        lines(tmp_path / "x")


@given(st.lists(st.text(min_size=1), min_size=1, unique=True), st.floats(0, 1))
def test_the_split_is_by_sentence_and_moves_nobody_when_more_is_added(sentences, part):
    pairs = [Pair(sentence, other) for sentence in sentences for other in "甲乙"]
    learn, held_out = split(pairs, part)
    assert sorted((*learn, *held_out), key=str) == sorted(pairs, key=str)
    assert not {pair.source for pair in learn} & {pair.source for pair in held_out}
    fewer = split(pairs[: len(pairs) // 2], part)
    assert set(fewer[0]) <= set(learn)
    assert set(fewer[1]) <= set(held_out)


def test_the_split_holds_out_about_the_share_asked_for():
    pairs = [Pair(f"sentence {n}", "句") for n in range(2000)]
    assert len(split(pairs, 0.1)[1]) == pytest.approx(200, rel=0.2)
