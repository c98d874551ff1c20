"""Where examples come from: the same for the same seed, and nothing held out is learned from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from isotherm.errors import ArgumentError, InputError
from isotherm.record.sweep import Trial
from isotherm.train.sweep import prepared_corpus
from isotherm.train.sweep.examples import corpora_of, padded, source_of
from isotherm.train.sweep.prepared_corpus import fingerprint, prepare, prepared_path, read_corpus
from isotherm.train.tasks import QUESTIONS, VALUES, lookup
from isotherm.train.tokens import END, FIRST, PAD, START
from tests.train.sweep.small import SMALL

CPU = torch.device("cpu")
TEXT = Trial(task="text", model="decoder", corpus="text.txt", vocabulary=300, length=7, batch=3)
PAIRS = Trial(task="translation", model="transformer", corpus="pairs.tsv", vocabulary=300, length=9, batch=3)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text(
        "\n".join(f"line {i} of the text, 第{i}行" for i in range(200)), encoding="utf-8"
    )
    pairs = [f"cat {i}\t猫{i}" for i in range(300)]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs), encoding="utf-8")
    return tmp_path


def first(trial, corpora, seed=0):
    return next(source_of(trial, CPU, corpora).chunks(seed))


@pytest.mark.parametrize(
    "trial", [SMALL, TEXT, PAIRS, replace(PAIRS, model="decoder")], ids=lambda t: f"{t.task}-{t.model}"
)
def test_a_stream_belongs_to_its_seed(trial, folder):
    corpora = corpora_of([trial], folder)
    one, same, other = first(trial, corpora), first(replace(trial, lr=0.5), corpora), first(trial, corpora, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.inputs, same.inputs, strict=True))
    assert not torch.equal(one.inputs[0], other.inputs[0])


def test_text_is_shifted_by_one_and_its_end_is_held_out(folder):
    source = source_of(TEXT, CPU, corpora_of([TEXT], folder))
    batch = source.held_out(7)[0]
    assert torch.equal(batch.inputs[0][:, 1:], batch.labels[:, :-1])
    whole, end = source.parts
    assert len(end) == int(0.05 * (len(whole) + len(end)))


def test_a_pair_has_a_start_an_end_and_padding_and_held_out_pairs_are_not_learned_from(folder):
    source = source_of(PAIRS, CPU, corpora_of([PAIRS], folder))
    (learned, targets), (held_out, _) = source.parts
    assert len(held_out) > 0
    assert not {tuple(row) for row in learned.tolist()} & {tuple(row) for row in held_out.tolist()}
    batch = source.held_out(9)[0]
    shown, labels = batch.inputs[1], batch.labels
    assert (shown[:, 0] == START).all()
    assert ((labels == END).sum(1) == 1).all()
    assert torch.equal(shown[:, 1:], labels[:, :-1])
    assert (targets[:, -1] != START).all()
    assert ((batch.inputs[0] == PAD).sum() > 0).item()


def test_a_prepared_corpus_stands_for_its_text_and_is_made_again_when_that_changes(folder):
    made = prepare(folder / "text.txt", "text", 300)
    assert made == prepared_path(folder / "text.txt", "text", 300)
    corpus = read_corpus("text.txt", "text", 300, folder)
    mark = fingerprint(folder / "text.txt")
    (folder / "text.txt").rename(folder / "away.txt")
    assert np.array_equal(read_corpus(f"text.txt@{mark}", "text", 300, folder).sides[0].ids, corpus.sides[0].ids)
    assert fingerprint(folder / "text.txt") == fingerprint(made) == mark
    (folder / "text.txt").write_text("something else entirely", encoding="utf-8")
    assert fingerprint(folder / "text.txt") != mark
    assert read_corpus("text.txt", "text", 300, folder).digest != corpus.digest
    with pytest.raises(InputError, match="not the text this trial was made for"):
        read_corpus(f"text.txt@{mark}", "text", 300, folder)


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[:-9], lambda data: data[:99] + bytes(99) + data[198:]],
    ids=["empty", "cut", "overwritten"],
)
def test_a_damaged_prepared_file_beside_its_text_is_made_again(folder, damage):
    corpus = read_corpus("text.txt", "text", 300, folder)
    made = prepared_path(folder / "text.txt", "text", 300)
    made.write_bytes(damage(made.read_bytes()))
    again = read_corpus("text.txt", "text", 300, folder)
    assert np.array_equal(again.sides[0].ids, corpus.sides[0].ids)


def test_too_few_pairs_are_not_taken_for_sentences_that_are_too_long(folder):
    (folder / "two.tsv").write_text("cat 1\t猫1\ncat 2\t猫2\n", encoding="utf-8")
    trial = replace(PAIRS, corpus="two.tsv")
    with pytest.raises(InputError, match=r"two\.tsv: too few pairs: of 2, 2 to learn from"):
        source_of(trial, CPU, corpora_of([trial], folder))
    with pytest.raises(ArgumentError, match="length: expected longer"):
        source_of(replace(PAIRS, length=1), CPU, corpora_of([PAIRS], folder))


@pytest.mark.parametrize(
    ("name", "task", "size", "complaint"),
    [
        ("missing.txt", "text", 300, "no such file"),
        ("text.txt", "text", 100, "vocabulary: expected 300 to 65535"),
        ("broken.npz", "text", 300, "not a prepared corpus"),
        ("ready.npz", "text", 400, "vocabulary: expected 300"),
        ("ready.npz", "translation", 300, "not prepared for task translation"),
    ],
)
def test_a_corpus_that_cannot_be_used_says_why(folder, name, task, size, complaint):
    (folder / "broken.npz").write_bytes(b"PK")
    prepare(folder / "text.txt", "text", 300).rename(folder / "ready.npz")
    with pytest.raises((InputError, ArgumentError), match=complaint):
        read_corpus(name, task, size, folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"ends0": np.array([2, 9])},
        {"ends0": np.array([3, 2, 5])},
        {"ends0": np.array([-1, 5])},
        {"ends0": np.array([2.0, 5.0])},
        {"ids0": np.array([5, 6, 7, 8, 300], np.uint16)},
        {"ids0": np.array([[5, 6, 7, 8, 9]], np.uint16)},
        {"ids0": np.array([5, 6, 7, 8, 9], np.int64)},
        {"learned": 3},
        {"learned": -1},
        {"learned": np.array([1, 2])},
        {"vocabulary": "many"},
        {"ids1": np.zeros(10**6, np.uint16), "ends1": np.array([10**6])},
    ],
    ids=[
        "beyond",
        "back",
        "negative",
        "fractions",
        "word",
        "matrix",
        "wide",
        "more",
        "fewer",
        "several",
        "text",
        "bomb",
    ],
)
def test_a_made_up_corpus_is_refused(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(prepared_corpus, "LARGEST_FILE", 10**6)
    good = {"ids0": np.array([5, 6, 7, 8, 9], np.uint16), "ends0": np.array([2, 5]), "learned": 1, "vocabulary": 300}
    np.savez_compressed(tmp_path / "x.npz", digest="0" * 12, **good)
    assert read_corpus("x.npz", "text", 300, tmp_path).learned == 1
    np.savez_compressed(tmp_path / "x.npz", digest="0" * 12, **good | changes)
    with pytest.raises(InputError, match=r"x\.npz: not a prepared corpus"):
        read_corpus("x.npz", "text", 300, tmp_path)


def test_padding_by_hand():
    from isotherm.train.sweep.prepared_corpus import Side

    side = Side(np.array([5, 6, 7, 8, 9], np.uint16), np.array([2, 3, 5]))
    assert padded(side, np.array([0, 2, 1]), 3).tolist() == [[5, 6, 0], [8, 9, 0], [7, 0, 0]]


def test_a_lookup_is_answerable_from_its_items_alone():
    keys = 11
    size = FIRST + keys * (VALUES + 1) + VALUES
    batch = lookup(torch.Generator().manual_seed(0), 5, 7, size)
    tokens, labels = batch.inputs[0], batch.labels
    assert tokens.shape == labels.shape == (5, 7 + QUESTIONS)
    assert tokens.max() < FIRST + keys * (VALUES + 1) <= labels.max() < size
    for row, said in zip(tokens.tolist(), labels.tolist(), strict=True):
        values = {(token - FIRST) // VALUES: (token - FIRST) % VALUES for token in row[:7]}
        assert len(values) == 7
        for question, answer in zip(row[7:], said[7:], strict=True):
            assert values[question - FIRST - keys * VALUES] == answer - FIRST - keys * (VALUES + 1)
        assert said[:7] == [PAD] * 7
    with pytest.raises(ArgumentError, match="at least 120 for 12 items"):
        lookup(torch.Generator(), 1, 12, size)
