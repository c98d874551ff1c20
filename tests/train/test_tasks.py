"""Tasks whose answers are known."""

import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.train.tasks import TASKS, make
from isotherm.train.tokens import END, FIRST, PAD, START

B, L, V = 7, 5, 23


def draw(task: str, seed: int = 0, length: int = L):
    return TASKS[task](torch.Generator().manual_seed(seed), B, length, V)


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_has_no_padding_and_one_answer_between_start_and_end(task):
    batch = make(task, torch.Generator().manual_seed(0), B, L, V)
    (source, shown), labels = batch.inputs, batch.labels
    assert shown.shape == labels.shape == (B, L + 1)
    assert source.shape == (B, 3 * L if task == "recall" else L)
    assert (shown[:, 0] == START).all()
    assert (labels[:, -1] == END).all()
    assert torch.equal(shown[:, 1:], labels[:, :-1])
    words = torch.cat([source.flatten(), shown[:, 1:].flatten()])
    assert ((words >= FIRST) & (words < V)).all()


@pytest.mark.parametrize("task", TASKS)
def test_a_generator_in_the_same_state_gives_the_same_batch_and_in_another_another(task):
    assert torch.equal(draw(task, 3)[0], draw(task, 3)[0])
    assert not torch.equal(draw(task, 3)[0], draw(task, 4)[0])


def test_copy_and_reverse():
    source, words = draw("copy")
    assert torch.equal(words, source)
    source, words = draw("reverse")
    assert torch.equal(words, source.flip(1))


def test_recall_asks_every_key_once_and_answers_with_its_value():
    orders = set()
    for row, words in zip(*(side.tolist() for side in draw("recall")), strict=True):
        value = dict(zip(row[0 : 2 * L : 2], row[1 : 2 * L : 2], strict=True))
        assert len(value) == L
        assert [value[key] for key in row[2 * L :]] == words
        assert max(value) < min(value.values())
        orders.add(tuple(list(value).index(key) for key in row[2 * L :]))
    assert len(orders) > 1


def test_align_swaps_a_pair_whose_first_is_the_larger_and_looks_words_up():
    moved = 0
    for row, words in zip(*(side.tolist() for side in draw("align")), strict=True):
        expected = []
        for start in range(0, L, 2):
            expected += sorted(row[start : start + 2]) if len(row[start : start + 2]) == 2 else row[start:]
        assert words == [FIRST + V - 1 - word for word in expected]
        moved += expected != row
    assert moved


@pytest.mark.parametrize("task", TASKS)
def test_one_stream_asks_for_the_answer_alone(task):
    two = make(task, torch.Generator().manual_seed(0), B, L, V)
    one = make(task, torch.Generator().manual_seed(0), B, L, V, one_stream=True)
    (tokens,), labels, source = one.inputs, one.labels, two.inputs[0].shape[1]
    assert tokens.shape == labels.shape == (B, source + L + 1)
    assert (labels[:, :source] == PAD).all()
    assert torch.equal(labels[:, source:], two.labels)
    assert torch.equal(tokens, torch.cat(two.inputs, 1))


def test_more_pairs_than_keys_cannot_be_made():
    with pytest.raises(ArgumentError, match="vocabulary: expected at least 22 for 9 pairs"):
        make("recall", torch.Generator(), 1, 9, 20)
