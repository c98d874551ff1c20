"""Batches: a pure function of seed and step, of similar lengths, and nothing lost when they are divided."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm.train.batches import Batch, BatchOrder, Ragged, generator
from isotherm.train.tokens import PAD

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 90), st.integers(0, 5))
def test_an_epoch_holds_every_example_once_within_the_budget(lengths, budget, seed):
    order = BatchOrder(torch.tensor(lengths), budget, seed)
    for epoch in range(2):
        batches = [order.at(epoch * len(order) + place) for place in range(len(order))]
        assert sorted(torch.cat(batches).tolist()) == list(range(len(lengths)))
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


@given(LENGTHS, st.integers(1, 90), st.lists(st.integers(0, 200), min_size=1, max_size=9))
def test_a_step_s_batch_does_not_depend_on_what_was_asked_before(lengths, budget, steps):
    wandering = BatchOrder(torch.tensor(lengths), budget, 3)
    for step in steps:
        assert torch.equal(wandering.at(step), BatchOrder(torch.tensor(lengths), budget, 3).at(step))


def test_epochs_and_seeds_differ():
    lengths = torch.full((40,), 7)
    order, other = BatchOrder(lengths, 35, 0), BatchOrder(lengths, 35, 1)
    epochs = [torch.cat([order.at(epoch * len(order) + place) for place in range(len(order))]) for epoch in (0, 1)]
    assert not torch.equal(*epochs)
    assert not torch.equal(order.at(0), other.at(0))


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=11), st.data())
def test_rows_come_back_padded_on_the_right(rows, data):
    asked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    found = Ragged(rows).rows(torch.tensor(asked)).tolist()
    longest = max(len(rows[index]) for index in asked)
    assert found == [rows[index] + [PAD] * (longest - len(rows[index])) for index in asked]


@given(st.integers(1, 11), st.integers(1, 7))
def test_parts_ask_for_every_row_once_and_can_all_be_run(rows, count):
    labels = torch.arange(1, 1 + 3 * rows).view(rows, 3)
    batch = Batch((labels * 10,), labels)
    parts = [batch.part(index, count) for index in range(count)]
    assert all(len(part) for part in parts)
    assert sum(part.tokens for part in parts) == batch.tokens == 3 * rows
    asked = torch.cat([part.labels[(part.labels != PAD).all(1)] for part in parts])
    assert sorted(asked.flatten().tolist()) == labels.flatten().tolist()


def test_streams_of_random_numbers_are_their_own():
    first = [torch.rand(3, generator=generator(0, *stream)).tolist() for stream in ((0, 1), (1, 0), (1,), (0, 1, 0))]
    assert len({tuple(numbers) for numbers in first}) == 4
    assert first[0] == torch.rand(3, generator=generator(0, 0, 1)).tolist()


@pytest.mark.parametrize("budget", [1, 10, 10**9], ids=str)
def test_one_example_is_a_batch_whatever_the_budget(budget):
    assert BatchOrder(torch.tensor([13]), budget, 0).at(5).tolist() == [0]
