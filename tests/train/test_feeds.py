"""What a run is fed, of each kind."""

import re
from random import Random

import pytest
import torch

from isotherm.errors import ArgumentError, InputError
from isotherm.train.batches import Batch
from isotherm.train.feeds import load_training_data
from isotherm.train.tokens import END, FIRST, PAD, START, UNKNOWN
from tests.train.corpora import install, pairs, tiny, write_mo, write_tsv


def same(a: Batch, b: Batch) -> bool:
    return all(torch.equal(x, y) for x, y in zip((*a.inputs, a.labels), (*b.inputs, b.labels), strict=True))


@pytest.fixture
def tsv(tmp_path):
    return write_tsv(tmp_path / "pairs.tsv")


@pytest.fixture
def prose(tmp_path):
    path = tmp_path / "prose.txt"
    drawn = Random(0)
    words = [word for pair in pairs() for word in (*pair[0].split(), pair[1])]
    path.write_text("\n".join(" ".join(drawn.choices(words, k=11)) for _ in range(2000)), encoding="utf-8")
    return path


def test_pairs_are_taught_one_step_ahead(tsv):
    fed = load_training_data(tiny(tsv))
    batch = fed.feed.batch(0)
    source, target = batch.inputs
    assert (target[:, 0] == START).all()
    assert torch.equal(target[:, 1:], batch.labels[:, :-1].where(target[:, 1:] != PAD, PAD))
    ends = (source == END).sum(1)
    assert (ends == 1).all()
    told = fed.vocabulary.decode(batch.labels.tolist())
    assert set(zip(fed.vocabulary.decode(source.tolist()), told, strict=True)) <= set(pairs())


def test_what_is_held_out_is_never_learned_from(tsv):
    fed = load_training_data(tiny(tsv))
    kept = {(pair.source, pair.target) for pair in fed.held_out}
    words = fed.vocabulary
    learned = set()
    for step in range(60):
        batch = fed.feed.batch(step)
        learned |= set(zip(*(words.decode(rows.tolist()) for rows in (batch.inputs[0], batch.labels)), strict=True))
    assert learned | kept == set(pairs())
    assert not learned & kept
    measured = [words.decode(batch.inputs[0].tolist()) for batch in fed.feed.held_out(99)]
    assert {text for texts in measured for text in texts} == {source for source, _ in kept}


def test_long_pairs_are_left_out_and_too_little_text_is_said(tsv):
    with pytest.raises(InputError, match=r"pairs\.tsv: too little text: 0 examples to learn from and 0 held out"):
        load_training_data(tiny(tsv, data__length=2))


def test_how_much_there_is_of_it_is_told(tsv, prose):
    fed = load_training_data(tiny(tsv, data__length=9))
    learned = len({text for step in range(60) for text in map(str, fed.feed.batch(step).labels.tolist())})
    kept = sum(len(batch.labels) for batch in fed.feed.held_out(99))
    numbers = [int(word) for word in re.findall(r"\d+", str(fed.about))]
    assert numbers[1:] == [kept, len(pairs()) - numbers[0] - kept, 9]
    assert 0 < learned <= numbers[0] < len(pairs())
    text = load_training_data(tiny(prose, data__kind="text", data__length=13, model__kind="decoder"))
    assert re.fullmatch(r"[\d,]+ tokens to learn from, [\d,]+ held out", str(text.about))


@pytest.mark.parametrize("changes", [{}, {"data__kind": "recall", "data__length": 9}], ids=["text", "task"])
def test_too_small_a_vocabulary_is_named_by_its_key(tsv, changes):
    with pytest.raises(ArgumentError, match=r"^data\.vocabulary: expected at least \d+.*, got 11$"):
        load_training_data(tiny(tsv, data__vocabulary=11, **changes))


def test_catalogues_and_two_files_feed_as_a_table_does(tsv, tmp_path):
    wanted = load_training_data(tiny(tsv))
    en, zh = tmp_path / "a.en", tmp_path / "a.zh"
    for path, side in ((en, 0), (zh, 1)):
        path.write_text("\n".join(pair[side] for pair in pairs()), encoding="utf-8")
    files = load_training_data(tiny(tsv, data__kind="files", data__source=str(en), data__target=str(zh)))
    site = tmp_path / "site"
    mo = write_mo(site / "p/locale/zh_Hans/LC_MESSAGES/d.mo", dict(pairs()))
    install(site, "p", [mo], "License: MIT\n")
    gettext = load_training_data(tiny(tsv, data__kind="gettext", data__packages=["p"], data__where=str(site)))
    for fed in (files, gettext):
        assert fed.digest == wanted.digest
        assert same(fed.feed.batch(3), wanted.feed.batch(3))


def test_text_is_continued(prose):
    fed = load_training_data(tiny(prose, data__kind="text", data__length=13, model__kind="decoder"))
    batch = fed.feed.batch(2)
    (tokens,) = batch.inputs
    assert tokens.shape == batch.labels.shape == (160 // 13, 13)
    assert torch.equal(tokens[:, 1:], batch.labels[:, :-1])
    assert same(batch, fed.feed.batch(2))
    assert not same(batch, fed.feed.batch(3))
    blocks = {tuple(row) for step in range(99) for row in fed.feed.batch(step).labels.tolist()}
    assert not blocks & {tuple(row) for kept in fed.feed.held_out(99) for row in kept.labels.tolist()}


def test_gaps_are_asked_for_and_nothing_else(prose):
    fed = load_training_data(
        tiny(prose, data__kind="text", data__length=17, model__kind="bert", run__batch_tokens=17 * 211)
    )
    batch = fed.feed.batch(0)
    (shown,) = batch.inputs
    asked = batch.labels != PAD
    assert asked.float().mean().item() == pytest.approx(0.15, abs=0.03)
    hidden = (shown == UNKNOWN)[asked].float().mean().item()
    kept = (shown == batch.labels)[asked].float().mean().item()
    assert hidden == pytest.approx(0.8, abs=0.06)
    assert kept == pytest.approx(0.1, abs=0.06)
    assert not (shown == UNKNOWN)[~asked].any()
    assert (shown >= UNKNOWN).all()
    assert same(batch, fed.feed.batch(0))


@pytest.mark.parametrize("model", ["transformer", "decoder"])
def test_tasks_are_new_at_every_step_and_held_out_ones_stay(tsv, model):
    fed = load_training_data(tiny(tsv, data__kind="recall", data__length=5, data__vocabulary=29, model__kind=model))
    assert (fed.vocabulary, fed.size) == (None, 29)
    assert same(fed.feed.batch(1), fed.feed.batch(1))
    assert not same(fed.feed.batch(1), fed.feed.batch(2))
    kept = list(fed.feed.held_out(9))
    assert all(same(a, b) for a, b in zip(kept, fed.feed.held_out(9), strict=True))
    assert all((batch.labels[batch.labels != PAD] >= END).all() for batch in kept)
    assert len(kept[0].inputs) == (1 if model == "decoder" else 2)
    assert FIRST < kept[0].inputs[0].max() < 29
