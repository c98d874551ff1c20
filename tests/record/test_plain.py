"""Reading a record checks every value, and a large one is read in little more time than its JSON."""

import sys
from dataclasses import dataclass

import pytest

from isotherm.errors import ArgumentError
from isotherm.record import from_plain, to_plain
from isotherm.record.plain import LARGEST, bounded


@dataclass(frozen=True)
class Inner:
    values: tuple[float | None, ...]
    numbers: tuple[int, ...] = ()
    share: float = bounded(0.5, 0.0, 1.0)


@dataclass(frozen=True)
class Outer:
    parts: tuple[Inner, ...]
    size: float
    count: int = 0
    maybe: float | None = None


WRONG = {
    "parts[0].values[1]": {"parts": [{"values": [1.0, "x"]}], "size": 1.0},
    "parts[0].numbers[0]": {"parts": [{"values": [], "numbers": [1.5]}], "size": 1.0},
    "parts[1].numbers[0]": {"parts": [{"values": []}, {"values": [], "numbers": [True]}], "size": 1.0},
    "parts[0].share": {"parts": [{"values": [], "share": 1.5}], "size": 1.0},
    "size": {"parts": [], "size": float("nan")},
    "count": {"parts": [], "size": 1.0, "count": LARGEST + 1},
    "maybe": {"parts": [], "size": 1.0, "maybe": "1"},
}


@pytest.mark.parametrize(("where", "data"), WRONG.items())
def test_a_value_that_does_not_fit_is_named(where, data):
    with pytest.raises(ArgumentError) as caught:
        from_plain(Outer, data, "")
    assert caught.value.argument == where


def test_what_is_no_number_becomes_none_where_it_may():
    read = from_plain(
        Outer, {"parts": [{"values": [1, float("inf"), None, 0.5]}], "size": 2, "maybe": float("nan")}, ""
    )
    assert read == Outer((Inner((1.0, None, None, 0.5)),), 2.0)
    assert [type(value) for value in (read.size, read.parts[0].values[0])] == [float, float]
    assert from_plain(Outer, to_plain(read)) == read


def test_a_number_costs_few_calls():
    data = {"parts": [{"values": [0.5] * 1000} for _ in range(100)], "size": 1.0}
    from_plain(Outer, data)
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        from_plain(Outer, data)
    finally:
        sys.setprofile(None)
    assert calls < 3 * 100_000
