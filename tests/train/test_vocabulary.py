"""Words as numbers."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.train.tokens import END, FIRST, PAD, SPECIAL, START, UNKNOWN
from isotherm.train.vocabulary import Vocabulary
from tests.fuzz.case import time_limit
from tests.train.corpora import pairs

SENTENCES = [text for pair in pairs() for text in pair]
WORDS = Vocabulary.learn(SENTENCES, 320)


def test_special_ids_are_the_first():
    names = json.loads(WORDS.to_json())["model"]["vocab"]
    assert [names[name] for name in SPECIAL] == [PAD, START, END, UNKNOWN] == list(range(FIRST))


@given(st.text().map(str.strip))
def test_any_text_comes_back_as_it_was(text):
    import unicodedata

    (ids,) = WORDS.encode([text])
    assert all(index >= FIRST for index in ids)
    assert WORDS.decode([ids]) == [unicodedata.normalize("NFC", text).strip()]


def test_the_name_of_a_special_id_in_a_text_is_only_text():
    (ids,) = WORDS.encode(["a <end> b <pad>"])
    assert not {PAD, START, END, UNKNOWN} & set(ids)
    assert WORDS.decode([ids]) == ["a <end> b <pad>"]


def test_special_ids_say_nothing():
    (ids,) = WORDS.encode(["红的猫"])
    assert WORDS.decode([[START, *ids, END, PAD]]) == ["红的猫"]


def test_learning_twice_gives_the_same_and_other_text_another():
    assert Vocabulary.learn(SENTENCES, 320).digest == WORDS.digest
    assert Vocabulary.learn(SENTENCES[:40], 320).digest != WORDS.digest


def test_frequent_words_are_shorter_than_their_bytes():
    (ids,) = WORDS.encode(["the old house"])
    assert len(ids) < len("the old house")


def test_saved_and_loaded_it_is_the_same(tmp_path):
    (tmp_path / "tokenizer.json").write_text(WORDS.to_json(), encoding="utf-8")
    loaded = Vocabulary.load(tmp_path / "tokenizer.json")
    assert (len(loaded), loaded.digest) == (len(WORDS), WORDS.digest)
    assert loaded.encode(SENTENCES) == WORDS.encode(SENTENCES)


@pytest.mark.parametrize("text", ["", "{", '{"version": "1.0"}'], ids=["empty", "half", "foreign"])
def test_what_is_no_tokenizer(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=r"t\.json: not a tokenizer\.json"):
        Vocabulary.load(tmp_path / "t.json")


def set_id(plain):
    plain["model"]["vocab"]["a"] = 2**31


def set_added_id(plain):
    plain["added_tokens"][0]["id"] = 2**31


def set_padding(plain):
    plain["padding"] = {
        "strategy": {"Fixed": 10**9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }


@pytest.mark.parametrize("change", [set_id, set_added_id, set_padding])
def test_a_size_that_would_take_minutes_is_refused_at_once(tmp_path, change):
    plain = json.loads(WORDS.to_json())
    change(plain)
    (tmp_path / "t.json").write_text(json.dumps(plain))
    with time_limit(5), pytest.raises(InputError, match=r"t\.json: not a tokenizer\.json"):
        Vocabulary.load(tmp_path / "t.json").to_json()


def test_a_tokenizer_with_other_special_ids(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    Tokenizer(BPE({letter: index for index, letter in enumerate("abcdef")}, [])).save(str(tmp_path / "t.json"))
    with pytest.raises(InputError, match=r"its first entries are \['a', 'b', 'c', 'd'\]"):
        Vocabulary.load(tmp_path / "t.json")


def test_a_vocabulary_too_small_for_every_byte():
    with pytest.raises(ArgumentError, match="vocabulary: expected at least 260"):
        Vocabulary.learn(SENTENCES, 259)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(IsothermError, match=r"training needs tokenizers; .*pip install 'isotherm\[train\]'"):
        Vocabulary.learn(SENTENCES, 320)
