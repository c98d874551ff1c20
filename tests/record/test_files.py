"""What is read from disk: a damaged or made-up file is one sentence that names it."""

import json
from dataclasses import dataclass
from typing import Literal

import pytest

from isotherm.errors import InputError
from isotherm.record import files
from isotherm.record.files import checked, parse_json, read_bytes, read_record, sealed, unsealed
from isotherm.record.plain import bounded, from_plain, short


@dataclass(frozen=True)
class Small:
    kind: Literal["a", "b"]
    size: int
    share: float | None = None
    most: int = bounded(1, 1, 1024)
    names: tuple[str, ...] = ()
    lengths: tuple[int, ...] = bounded((), 1, 9)


GOOD = '{"kind": "a", "size": 3}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"not JSON"),
        ("{", r"not JSON"),
        ("\udc80", r"not JSON"),
        ('{"kind": "a", "kind": "b"}', r"not JSON \(one key twice in one object\)"),
        ("9" * 5000, r"not JSON"),
        ("[" * 100_000, r"nested too deeply"),
        ("[" * 100 + "]" * 100, r"nested too deeply"),
        ("null", r"expected an object, got None"),
        ("[1]", r"expected an object, got \[1\]"),
        ("{}", r"kind: expected a value, got nothing"),
        ('{"kind": "c", "size": 3}', r"kind: expected a \| b, got 'c'"),
        ('{"kind": ["a"], "size": 3}', r"kind: expected a \| b, got \['a'\]"),
        ('{"kind": "a", "size": 3.5}', r"size: expected a whole number, got 3.5"),
        ('{"kind": "a", "size": true}', r"size: expected a whole number, got True"),
        ('{"kind": "a", "size": 1' + "0" * 400 + "}", r"size: expected a number within range, got 10\^400"),
        ('{"kind": "a", "size": 3, "share": 1' + "0" * 400 + "}", r"share: expected a number within range"),
        ('{"kind": "a", "size": NaN}', r"size: expected a whole number, got nan"),
        ('{"kind": "a", "size": 3, "most": 1025}', r"most: expected 1 to 1024, got 1025"),
        ('{"kind": "a", "size": 3, "most": 1' + "0" * 20 + "}", r"most: expected 1 to 1024, got 10\^20"),
        ('{"kind": "a", "size": 3, "most": 0}', r"most: expected 1 to 1024, got 0"),
        ('{"kind": "a", "size": 3, "names": "ab"}', r"names: expected a list of texts, got 'ab'"),
        ('{"kind": "a", "size": 3, "names": [1]}', r"names\[0\]: expected text in quotes, got 1"),
        ('{"kind": "a", "size": 3, "names": ["\\ud800"]}', r"names\[0\]: expected text in quotes, got '\\ud800'"),
        ('{"kind": "a", "size": 3, "lengths": [2, 10]}', r"lengths: expected 1 to 9, got 10"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_wrong_is_said_of_the_file(tmp_path, text, why):
    path = tmp_path / "small.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=rf"small\.json: .*{why}"):
        read_record(Small, path)


def test_a_record_is_read_and_what_is_not_finite_is_nothing(tmp_path):
    path = tmp_path / "small.json"
    path.write_text('{"kind": "a", "size": 3, "share": Infinity, "lengths": [9], "more": {}}')
    assert read_record(Small, path) == Small("a", 3, None, lengths=(9,))


def test_unknown_keys_are_refused_where_a_person_wrote_them():
    assert from_plain(Small, {"kind": "a", "size": 3, "szie": 4}, where="") == Small("a", 3)
    with pytest.raises(InputError, match=r"x: szie: expected a known key \(did you mean size\?\)"):
        checked(Small, "x", {"kind": "a", "size": 3, "szie": 4}, strict=True)


def test_a_file_may_not_be_larger_than_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_FILE", 2**20)
    (tmp_path / "large").write_bytes(bytes(2**20))
    assert len(read_bytes(tmp_path / "large")) == 2**20
    (tmp_path / "larger").write_bytes(bytes(2**20 + 1))
    with pytest.raises(InputError, match="larger: larger than 1 MiB"):
        read_bytes(tmp_path / "larger")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "none", "."], ids=["long", "null", "none", "folder"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path, name):
    with pytest.raises(InputError, match=r"no such file|cannot be read|this is a folder"):
        read_bytes(tmp_path / name)


def test_a_seal_holds_every_value_and_nothing_else():
    plain = {"step": 3, "losses": [0.1, 1 / 3, None], "notes": {"data": "猫"}}
    again = json.loads(json.dumps(sealed(plain)))
    assert unsealed("x", again) == plain
    assert unsealed("x", plain) == plain  # written before there were seals
    for change in (
        {"step": 4},
        {"losses": [0.1, 1 / 3, 0.0]},
        {"notes": {}},
        {"more": 1},
        {"seal": "0" * 64},
        {"seal": 5},
    ):
        with pytest.raises(InputError, match="x: changed since it was written"):
            unsealed("x", again | change)


@pytest.mark.parametrize(
    "value",
    [1 << 20000, [1 << 20000], -(10**20), ["x" * 10**6] * 100, {"a": {"b": {"c": {}}}}, "é" * 1000],
    ids=["huge", "huge in a list", "negative", "list", "nested", "text"],
)
def test_a_value_is_shown_short(value):
    assert len(short(value)) < 500


def test_depth_is_counted_not_guessed():
    inside = "1"
    for _ in range(files.DEEPEST - 1):
        inside = f"[{inside}]"
    assert parse_json("x", inside.encode())
    with pytest.raises(InputError, match="nested too deeply"):
        parse_json("x", f"[[{inside}]]".encode())
