"""Two processes that train one model read, and clip, what one process with the whole batch would."""

import json

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from isotherm.monitor import store
from isotherm.monitor.valve import Valve
from tests.monitor.processes import TAU, WAYS, built, experts, half_idle, trained, work


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    mp.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)], folder


@pytest.fixture(scope="module")
def alone():
    return {valve: trained(built(), lambda whole: whole, Valve(TAU) if valve else None) for valve in (False, True)}


def close(one, other, tolerance):
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("valve", [False, True], ids=["watched", "valve"])
@pytest.mark.parametrize("way", WAYS)
def test_together_they_read_what_one_process_would(two, alone, way, valve):
    (first, second), _ = two
    want, tolerance = alone[valve], 3e-2 if way == "fsdp_half" else 1e-4
    for done in (first[way, valve], second[way, valve]):
        assert not isinstance(done, str), done
        assert done["layers"] == want["layers"]
        for (step, loss, values, gradients), (_, other_loss, others, other_gradients) in zip(
            done["readings"], want["readings"], strict=True
        ):
            assert loss == pytest.approx(other_loss, rel=tolerance), step
            for name, value in values.items():
                close(value, others[name], tolerance)
            for name, value in gradients.items():
                close(value, other_gradients[name], tolerance)
        for mine, other in zip(done["weights"], want["weights"], strict=True):
            close(mine, other, tolerance)


@pytest.mark.parametrize("way", WAYS)
def test_the_valve_acts_in_every_process_and_one_writes(two, alone, way):
    (first, _), folder = two
    assert alone[True]["events"]
    if way != "fsdp_half":
        assert first[way, True]["events"] == alone[True]["events"]
    record = store.read(folder / f"{way}-False.db")
    assert [reading.step for reading in record.readings] == [0, 1]
    assert len(record.events) == len(first[way, True]["events"])


def test_the_valve_changed_something(alone):
    pairs = zip(alone[False]["weights"], alone[True]["weights"], strict=True)
    assert not all(torch.equal(one, other) for one, other in pairs)


def test_processes_agree_on_when_to_look_and_to_stop(two):
    """One alone that looked at a step, or stopped, would let the others wait for ever."""
    (first, second), folder = two
    assert first["stops"] == second["stops"] == [False, False, True, True, True]
    (snapshot,) = (folder / "snapshots").iterdir()
    assert snapshot.name == "layer-00-step-2.npz"
    assert json.loads(str(np.load(snapshot)["about"]))["step"] == 2


def test_a_layer_that_ran_in_one_process_has_its_gradients(two):
    """The loss is the mean of both processes' losses, so half of the gradient that this one alone would have."""
    (first, _), _ = two
    want = half_idle(lambda whole: whole.chunk(2)[0], idle=False)
    for name, lengths in first["half idle"].items():
        assert lengths[1] == pytest.approx(want[name][1] / 2, rel=1e-4)


def test_a_layer_that_one_process_meets_later_is_read(two):
    """One reading late, since all have to know of it."""
    for names, found, *_ in (one["experts"] for one in two[0]):
        assert names == ["layers.0", "layers.1"]
        assert [len(values) for values in found] == [2, 2, 2, 6]
    _, (want,), *_ = experts([1])
    np.testing.assert_allclose(found[3][2:], want, rtol=1e-5)


def test_the_valve_leaves_copies_of_a_model_the_same(two):
    """One process has not traced a layer that the other ran in the first step."""
    (_, found, first, said), (_, _, second, _) = (one["clipped experts"] for one in two[0])
    assert found[0].max() > TAU
    assert all(map(torch.equal, first, second))
    assert sum("did not run in every process" in one for one in said) == 2
