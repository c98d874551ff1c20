"""Tasks whose answers are known."""

import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.train.tasks import TASKS, make
from isotherm.train.tokens import END, FIRST, PAD, START

B, L, V = 7, 5, 23


def draw(task: str, seed: int = 0, length: int = L):
    return make(task, torch.Generator().manual_seed(seed), B, length, V)


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_has_no_padding_and_one_answer_between_start_and_end(task):
    examples = draw(task)
    assert examples.target.shape == (B, L + 2)
    assert examples.source.shape == (B, 3 * L if task == "recall" else L)
    assert (examples.target[:, 0] == START).all()
    assert (examples.target[:, -1] == END).all()
    words = torch.cat([examples.source.flatten(), examples.target[:, 1:-1].flatten()])
    assert ((words >= FIRST) & (words < V)).all()


@pytest.mark.parametrize("task", TASKS)
def test_a_generator_in_the_same_state_gives_the_same_batch_and_in_another_another(task):
    assert torch.equal(draw(task, 3).source, draw(task, 3).source)
    assert not torch.equal(draw(task, 3).source, draw(task, 4).source)


@pytest.mark.parametrize("task", ["copy", "reverse", "recall"])
def test_the_alignment_points_at_the_word_itself(task):
    examples = draw(task)
    assert torch.equal(examples.source.gather(1, examples.alignment), examples.target[:, 1:-1])


def test_reverse_is_the_source_from_its_end():
    examples = draw("reverse")
    assert torch.equal(examples.target[:, 1:-1], examples.source.flip(1))


def test_recall_asks_every_key_once_and_answers_with_its_value():
    examples = draw("recall")
    for row, target in zip(examples.source.tolist(), examples.target.tolist(), strict=True):
        value = dict(zip(row[0 : 2 * L : 2], row[1 : 2 * L : 2], strict=True))
        assert len(value) == L
        assert [value[key] for key in row[2 * L :]] == target[1:-1]
        assert max(value) < min(value.values())
    orders = {tuple(row) for row in examples.alignment.tolist()}
    assert len(orders) > 1


def test_align_swaps_a_pair_whose_first_is_the_larger_and_looks_words_up():
    examples = draw("align")
    for row, target in zip(examples.source.tolist(), examples.target.tolist(), strict=True):
        expected = []
        for start in range(0, L, 2):
            expected += sorted(row[start : start + 2]) if len(row[start : start + 2]) == 2 else row[start:]
        assert target[1:-1] == [FIRST + V - 1 - word for word in expected]
    moved = examples.alignment != torch.arange(L)
    assert moved.any()
    assert not moved[:, -1].any()  # the odd one out has no partner


@pytest.mark.parametrize("task", TASKS)
def test_one_stream_asks_for_the_answer_alone(task):
    examples = draw(task)
    tokens, labels = examples.sequence()
    source = examples.source.shape[1]
    assert tokens.shape == labels.shape == (B, source + L + 1)
    assert (labels[:, :source] == PAD).all()
    assert torch.equal(labels[:, source:], examples.target[:, 1:])
    assert torch.equal(tokens[:, source:], examples.target[:, :-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sort", 1, 1, 10), "task: expected copy | reverse | recall | align"),
        (("copy", 0, 1, 10), "batch: expected"),
        (("copy", 1, 0, 10), "length: expected"),
        (("copy", 1, 1, 5), "vocabulary: expected a whole number, 6 or more"),
        (("recall", 1, 9, 20), "vocabulary: expected at least 22 for 9 pairs"),
    ],
    ids=["task", "batch", "length", "vocabulary", "keys"],
)
def test_what_cannot_be_made(arguments, message):
    task, *sizes = arguments
    with pytest.raises(ArgumentError, match=message.replace("|", r"\|")):
        make(task, torch.Generator(), *sizes)
