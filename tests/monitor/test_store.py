"""The store: what was written is what is read, whoever else reads, and a run that goes back has no step twice."""

import math

import numpy as np
import pytest

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.monitor.store import Writer, follow, read
from isotherm.record.plain import from_plain, to_plain
from isotherm.record.watch import GRADIENTS, STATISTICS, Event, WatchedLayer, WatchRecord
from tests.monitor.runs import LAYERS, reading

ALERT = Event(
    100,
    1.7e9,
    "alert",
    "max-logit-100",
    2,
    3,
    Text("hot", "过热"),
    {"max_logit": 120.0, "limit": math.inf, "x": math.nan},
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def opened(path, **options):
    writer = Writer(path, **{"model": "tiny", "every": 50, "rows": 128} | options)
    writer.layers(LAYERS)
    return writer


def steps(record):
    return [reading.step for reading in record.readings]


def same(one, other):
    for name in STATISTICS:
        np.testing.assert_array_equal(one.values[name], other.values[name])
    for name in GRADIENTS:
        np.testing.assert_array_equal(one.gradients[name], other.gradients[name])
    return all(getattr(one, field) == getattr(other, field) for field in ("step", "at", "rows", "seconds"))


def test_what_was_written_is_what_is_read(path):
    written = [reading(0, rows=None, loss=None, seconds=None), reading(50), reading(100, loss=math.nan, hot=1)]
    written[1].values["max_logit"][:2] = np.nan, np.inf
    with opened(path) as writer:
        for one in written:
            writer.reading(one)
        writer.event(ALERT)
    record = read(path)
    assert (record.model, record.every, record.rows, record.layers) == ("tiny", 50, 128, LAYERS)
    assert all(same(one, other) for one, other in zip(record.readings, written, strict=True))
    assert record.readings[0].loss is None
    assert record.readings[1].loss == written[1].loss
    assert math.isnan(record.readings[2].loss)
    assert repr(record.events) == repr((ALERT,))
    assert [one.name for one in path.parent.iterdir()] == ["run.db"]


def test_json_holds_the_same_record(path):
    with opened(path) as writer:
        writer.reading(reading(50))
        writer.event(ALERT)
    plain = to_plain(read(path))
    again = from_plain(WatchRecord, plain)
    assert to_plain(again) == plain
    assert same(again.readings[0], reading(50))
    assert again.readings[0].values["gate"].dtype == np.float32
    assert math.isnan(again.events[0].numbers["x"])
    plain["readings"][0]["values"]["gate"][0] = "x"
    with pytest.raises(ArgumentError, match=r"report.readings\[0\].values.gate\[0\]: expected a number, got 'x'"):
        from_plain(WatchRecord, plain)


def test_a_run_that_is_continued_goes_on_in_its_store(path):
    for start in (0, 100):
        with opened(path, every=start + 1) as writer:
            for step in (start, start + 50):
                writer.reading(reading(step))
    assert steps(read(path)) == [0, 50, 100, 150]
    assert read(path).every == 101


@pytest.mark.parametrize("told", [True, False])
def test_a_run_resumed_from_a_checkpoint_has_no_step_twice_and_says_so(path, told):
    with opened(path) as writer:
        for step in (0, 50, 100, 150):
            writer.reading(reading(step))
        writer.event(ALERT)
    with opened(path) as writer:
        if told:
            writer.resume(60)
        for step in (100, 150, 200) if told else (61, 100, 150, 200):
            writer.reading(reading(step, seed=1))
    record = read(path)
    assert steps(record) == ([0, 50, 100, 150, 200] if told else [0, 50, 61, 100, 150, 200])
    assert same(record.readings[-2], reading(150, seed=1))
    assert record.superseded == 2
    (event,) = record.events
    assert (event.kind, event.step, event.numbers) == ("resumed", 60, {"set_aside": 2.0})
    assert str(event.message) == "the run went on after step 60; 2 later readings were set aside"


def test_a_run_that_is_started_anew_says_so(path):
    for seed in range(3):
        with opened(path) as writer:
            writer.reading(reading(0, seed=seed))
            writer.reading(reading(50, seed=seed))
    record = read(path)
    assert same(record.readings[-1], reading(50, seed=2))
    (event,) = record.events  # that of the second run was set aside with it
    assert (event.kind, event.step, record.superseded) == ("resumed", 0, 4)
    assert str(event.message) == "the run began anew; 2 readings were set aside"


def test_a_step_that_the_optimizer_skipped_is_read_once(path):
    with opened(path) as writer:
        writer.reading(reading(50))
        writer.reading(reading(50, seed=1))
    record = read(path)
    assert steps(record) == [50]
    assert same(record.readings[0], reading(50, seed=1))
    assert record.events == ()


def test_a_resumption_into_a_new_store_is_no_event(path):
    with opened(path) as writer:
        writer.resume(1000)
        writer.reading(reading(1050))
    assert (steps(read(path)), read(path).events) == ([1050], ())


def test_layers_may_be_added_and_earlier_readings_lack_them(path):
    more = (*LAYERS, WatchedLayer(7, "late", 2))
    with opened(path) as writer:
        writer.reading(reading(0))
        writer.layers(more)
        writer.reading(reading(50, more))
    record = read(path)
    assert record.layers == more
    first, second = (one.values["gate"] for one in record.readings)
    assert np.isnan(first).tolist() == [False] * 12 + [True] * 2
    assert not np.isnan(second).any()
    assert np.isnan(record.readings[0].gradients["k"]).tolist() == [False] * 3 + [True]


def test_the_store_of_another_model_is_refused(path):
    with opened(path) as writer:
        writer.reading(reading(0))
    other, why = (
        Writer(path, model="other", every=50, rows=None),
        r"run.db: holds a run whose attention layers are others",
    )
    with other as writer, pytest.raises(InputError, match=why):
        writer.layers(LAYERS[:2])
    assert len(read(path).layers) == 3


def test_a_reading_of_the_wrong_shape_is_the_callers_mistake(path):
    with opened(path) as writer, pytest.raises(ArgumentError, match=r"expected 12 heads in 3 layers, got 8 ≠ 12"):
        writer.reading(reading(0, LAYERS[:2]))


def test_following_reads_what_is_new_and_all_of_it_after_a_resumption(path):
    with opened(path) as writer:
        record = follow(path, read(path))
        for step in (0, 50, 100):
            writer.reading(reading(step))
            record = follow(path, record)
            assert steps(record) == steps(read(path))
        kept = record.readings[0]
        writer.reading(reading(100, seed=1))
        record = follow(path, record)
        assert same(record.readings[-1], reading(100, seed=1))
        assert record.readings[0] is kept
        writer.resume(0)
        for step in (60, 120, 180):
            writer.reading(reading(step, seed=2))
        record = follow(path, record)
        assert steps(record) == [0, 60, 120, 180]
        assert same(record.readings[1], reading(60, seed=2))


def test_only_what_is_after_a_step_is_read(path):
    with opened(path) as writer:
        for step in (0, 50, 100):
            writer.reading(reading(step))
    assert steps(read(path, after=50)) == [100]
    assert steps(read(path, after=100)) == []
