"""What people pass to `isotherm.check`: text, ids, arrays, dicts, nothing, and what cannot be used."""

import numpy as np
import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.given import check_arguments, prepare
from isotherm.checkup.loading.loaded import Loaded
from isotherm.errors import ArgumentError, InputError
from tests.checkup.folders import bert_folder
from tests.checkup.models import Attention, Model, batch

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture(scope="module")
def bert(folder):
    return transformers.BertModel.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def untold():
    """A model that tells nothing about its tokenizer."""
    config = transformers.BertConfig(
        vocab_size=14, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37
    )
    return transformers.BertModel(config).eval()


def prepared(model, given, tokenizer=None, folder=None):
    return prepare(Loaded(model, "model", "python", None if folder is None else str(folder)), given, tokenizer)


def check(model, *given, **how):
    return isotherm.check(model, *given, what_if=(), compare=False, **how)


def test_a_folder(folder):
    for model in (str(folder), folder):
        assert check(model).record.model.name == "small-bert"


def test_a_model_reads_our_passage_with_its_own_tokenizer(bert):
    report = check(bert)
    assert report.record.model.tokens == 256
    assert (report.record.model.name, report.record.model.origin) == ("BertModel", "python")


def test_a_model_reads_text_with_its_own_tokenizer(bert, tokenizer):
    assert check(bert, "the temperature of attention").record.model.tokens == 6
    assert check(bert, "a " * 400).record.model.tokens == 402  # all of it: no more than 256 is for our own passage
    assert check(bert, "a " * 900).record.model.tokens == 512  # as much as the model can


def a_function_that_returns_a_list(tokenizer):
    return lambda text: tokenizer(text)["input_ids"]


TOKENIZERS = {
    "of transformers": lambda tokenizer: tokenizer,
    "of tokenizers": lambda tokenizer: tokenizer.backend_tokenizer,
    "a function that returns a list": a_function_that_returns_a_list,
    "a function that returns a dict": lambda tokenizer: lambda text: dict(tokenizer(text)),
    "a function that returns a tensor": lambda tokenizer: lambda text: torch.tensor(tokenizer(text)["input_ids"]),
}


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_a_tokenizer_that_is_given(untold, tokenizer, make):
    given = prepared(untold, "the temperature of attention", make(tokenizer))
    assert given["input_ids"].tolist() == [tokenizer("the temperature of attention")["input_ids"]]
    assert check(untold, "the temperature of attention", tokenizer=make(tokenizer)).record.model.tokens == 6
    assert check(untold, tokenizer=make(tokenizer)).record.model.tokens == 256


def test_several_texts_are_padded(untold, tokenizer):
    given = prepared(untold, ["the temperature of attention", "a key"], tokenizer)
    assert given["attention_mask"].sum(1).tolist() == [6, 4]


class Plain(nn.Module):
    """A model that is not of transformers."""

    def __init__(self):
        super().__init__()
        self.embedding, self.inner = nn.Embedding(14, 64), Model(Attention())

    def forward(self, ids, mask=None):
        return self.inner(self.embedding(ids))


IDS = {
    "one list": ([1, 2, 3], [[1, 2, 3]]),
    "lists": ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    "tuples": (((1, 2), (3, 4)), [[1, 2], [3, 4]]),
    "array": (np.array([1, 2, 3]), [[1, 2, 3]]),
    "array of two sequences": (np.array([[1, 2], [3, 4]], dtype=np.int32), [[1, 2], [3, 4]]),
}


@pytest.mark.parametrize(("given", "ids"), IDS.values(), ids=IDS.keys())
def test_plain_ids(bert, given, ids):
    found = prepared(bert, given)
    assert found["input_ids"].tolist() == ids
    assert prepared(Plain(), given).tolist() == ids
    assert check(bert, given).record.model.tokens == len(ids[0])
    assert check(Plain(), given).layers


def test_ids_for_an_encoder_and_a_decoder():
    from tests.probe.architectures import build

    model, _ = build("t5")
    found = prepared(model, [1, 2, 3])
    assert found["decoder_input_ids"].tolist() == [[0, 1, 2, 3]]
    model(**found)


def test_text_for_a_plain_model(tokenizer):
    assert prepared(Plain(), "a key", tokenizer).tolist() == [tokenizer("a key")["input_ids"]]


def test_tensors_stay_as_they_are(bert):
    x = batch()
    assert prepared(Model(Attention()), x) is x
    for given in ((x,), [x]):
        assert prepared(Model(Attention()), given)[0] is x
    ids = torch.tensor([[1, 2, 3]])
    assert prepared(bert, {"input_ids": ids})["input_ids"] is ids


def test_an_array_of_decimals_gets_the_precision_of_the_model():
    given = np.random.default_rng(0).normal(size=(1, 5, 64))
    assert prepared(Model(Attention()), given).dtype == torch.float32
    assert check(Model(Attention()), given).layers


@pytest.mark.parametrize("form", ["pt", "np", None])
def test_what_a_tokenizer_returns(bert, tokenizer, form):
    encoded = tokenizer("the temperature of attention", return_tensors=form)
    assert check(bert, encoded).record.model.tokens == 6
    assert check(bert, dict(encoded)).record.model.tokens == 6


class Features(Plain):
    """A model whose forward takes one dict, as those of sentence-transformers do."""

    def forward(self, features: dict, **how):
        return super().forward(features["input_ids"])


class Batches(Plain):
    """The same without an annotation."""

    def forward(self, batch):
        return super().forward(batch["input_ids"])


@pytest.mark.parametrize("kind", [Features, Batches])
def test_a_dict_that_forward_takes_as_a_whole(kind):
    assert check(kind(), {"input_ids": torch.tensor([[1, 2, 3]])}).layers


class Sentences(Features):
    """What tells a model of sentence-transformers: it has a tokenizer, and encodes sentences."""

    def tokenize(self, texts):
        longest = max(len(text.split()) for text in texts)
        rows = [[len(word) for word in text.split()] for text in texts]
        return {"input_ids": torch.tensor([[1, *row, *[0] * (longest - len(row))] for row in rows])}

    def encode(self, texts):
        raise NotImplementedError


def test_a_model_with_sentences_of_its_own():
    model = Sentences()
    assert prepared(model, "of a key")[0]["input_ids"].tolist() == [[1, 2, 1, 3]]
    assert prepared(model, ["of a key"])[0]["input_ids"].tolist() == [[1, 2, 1, 3]]
    assert prepared(model, ["of a key", "of"])[0]["input_ids"].tolist() == [[1, 2, 1, 3], [1, 2, 0, 0]]
    assert prepared(model, None)[0]["input_ids"].shape[0] == 1
    given = prepared(model, "of a key", lambda text: [7, 8])
    assert given.tolist() == [[7, 8]], "a tokenizer that is given comes first"


def test_one_text_in_a_list_is_that_text(untold, tokenizer):
    assert prepared(untold, ["a key"], tokenizer)["input_ids"].tolist() == [tokenizer("a key")["input_ids"]]


def test_several_texts_need_a_tokenizer_that_pads(untold):
    with pytest.raises(ArgumentError, match=r"batch: expected one text, or a tokenizer that pads \(.*\), got 2"):
        prepared(untold, ["a", "b"], lambda text: [1])


def test_a_sentence_transformer(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    word = modules.Transformer(str(folder))
    model = sentence_transformers.SentenceTransformer(modules=[word, modules.Pooling(32)], device="cpu")
    assert len(check(model, "the temperature of attention").layers) == 2
    assert len(check(model, ["the temperature of attention", "a key"]).layers) == 2
    assert len(check(model).layers) == 2
    assert len(check(model, dict(model.tokenize(["a key"]))).layers) == 2


@pytest.mark.parametrize("kind", ["vit", "whisper"])
def test_models_of_other_senses_need_no_batch(kind):
    from tests.probe.architectures import build

    model, _ = build(kind)
    assert check(model).layers


WRONG = {
    "a set": ({1, 2}, "a tensor, a dict of keyword arguments, a list of positional ones, ids or text, got set"),
    "a number": (3, "a tensor, .*, got int"),
    "bytes": (b"text", "a tensor, .*, got bytes"),
    "a generator": ((x for x in "ab"), "a tensor, .*, got generator"),
    "ragged lists": ([[1, 2], [3]], "numbers, in lists of equal length"),
    "words in an array": (np.array(["a"]), "numbers, in lists of equal length"),
    "numbers without end": ([10**400], "numbers, in lists of equal length"),
    "empty text": (" ", "a text with words in it, got ' '"),
    "ids beyond the vocabulary": ([1, 14], "ids from 0 to 13, got 14"),
    "ids below zero": ([-1], "ids from 0 to 13, got -1"),
    "keys that are no names": ({1: torch.zeros(1)}, "names of arguments as keys"),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_used_is_one_sentence(bert, given, message):
    with pytest.raises(ArgumentError, match=f"batch: expected {message}"):
        check(bert, given)


def test_text_without_a_tokenizer(untold):
    with pytest.raises(
        ArgumentError, match=r"batch: expected ids, or a tokenizer= to read text with \(model: no tokenizer"
    ):
        prepared(untold, "some text")
    with pytest.raises(ArgumentError, match="tokenizer: expected a tokenizer to read text with, got None"):
        check(Plain(), "some text")
    with pytest.raises(ArgumentError, match="tokenizer: expected a function from text to ids, or a tokenizer, got int"):
        check(Plain(), "some text", tokenizer=3)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (None, "None"),
        ((), "0 positional"),
        ((torch.zeros(1),) * 3, "3 positional"),
        ({"input_ids": torch.zeros(1)}, "keywords input_ids"),
        ({}, "0 positional"),
    ],
    ids=["none", "too few", "too many", "unknown", "empty"],
)
def test_arguments_that_forward_does_not_take(given, got):
    with pytest.raises(
        ArgumentError, match=rf"batch: expected arguments that forward\(ids, mask=…\) takes, got {got}$"
    ):
        check(Plain(), given)


class Failing(Plain):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, ids):
        raise self.error


@pytest.mark.parametrize("error", [TypeError("mine"), RuntimeError("shapes"), KeyError("x")], ids=repr)
def test_errors_of_the_model_itself_are_passed_on(error):
    with pytest.raises(type(error)) as raised:
        check(Failing(error), [1, 2])
    assert raised.value is error


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_forward_that_cannot_be_inspected_is_tried():
    scripted = torch.jit.script(nn.Linear(3, 3))
    check_arguments(scripted, torch.zeros(1, 3))


@pytest.mark.parametrize("model", [3, None, object(), [nn.Linear(1, 1)]], ids=["number", "None", "object", "list"])
def test_what_is_no_model(model):
    with pytest.raises(ArgumentError, match=r"model: expected a torch.nn.Module, a folder or a name on the hub, got"):
        check(model, torch.zeros(1))


def test_a_name_that_is_nothing():
    with pytest.raises(InputError, match="no such folder"):
        check("./nothing")


def test_a_misspelt_rule_is_refused_before_a_model_is_loaded():
    with pytest.raises(ArgumentError, match="what_if"):
        isotherm.check("./nothing", what_if=["logn"])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_printing_a_report_shows_what_the_terminal_shows(capsys, folder, monkeypatch, language):
    from isotherm.cli import run

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")
    isotherm.language.choose(language)
    report = check(folder)
    shown = str(report)
    assert "\x1b" not in shown
    assert repr(report).count("\n") == 0
    monkeypatch.delenv("FORCE_COLOR")
    run(["check", str(folder), "--what-if", "", "--one-implementation", "--lang", language])
    printed = capsys.readouterr().out
    assert shown.splitlines()[:-1] == printed.rstrip("\n").splitlines()[:-1]  # the last line tells how long it took
