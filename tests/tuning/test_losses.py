import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel, T5Config, T5Model

from isotherm.checkup.loading.loaded import Loaded
from isotherm.errors import ArgumentError, InputError
from isotherm.tuning.documents import Material, TextReader
from isotherm.tuning.losses import SHARPNESS, make_task, takes_first_token, task_of
from isotherm.tuning.tune import TuneSettings, tuned

VOCABULARY, LENGTH = 40, 12
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def encode(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def text(words: int = 400, seed: int = 0) -> str:
    drawn = torch.randint(3, VOCABULARY, (words,), generator=torch.Generator().manual_seed(seed))
    return " ".join(map(str, drawn.tolist()))


@pytest.fixture(scope="module")
def gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=64)).eval()


@pytest.fixture(scope="module")
def masked() -> nn.Module:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SMALL)).eval()


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    torch.manual_seed(0)
    return BertModel(BertConfig(**SMALL)).eval()


def task(model, name, words=None, length=LENGTH, most=8, last=None, reading=None):
    material = Material("x", text() if words is None else words, reading or TextReader(encode, (1,), (2,), mask=0))
    return make_task(Loaded(model, "model", "python"), material, name, length, most, last)


def losses(model, made) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([made.losses(model, group) for group in made.groups])


@pytest.mark.parametrize("last", [None, 3])
def test_next_token_is_the_cross_entropy_of_what_follows(gpt, last):
    made = task(gpt, "next", last=last)
    ids = torch.cat(list(made.groups))
    with torch.no_grad():
        logits = gpt(ids).logits
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    expected = each.mean(1) if last is None else each[:, -last:].mean(1)
    assert torch.allclose(losses(gpt, made), expected, atol=1e-6)
    assert (made.count, made.scored) == (8, 11 if last is None else 3)


def test_masked_tokens_are_always_the_same_and_never_special(masked):
    one, two = task(masked, "masked"), task(masked, "masked")
    for (shown, chosen, answers), (again, *_) in zip(one.groups, two.groups, strict=True):
        assert torch.equal(shown, again)
        assert ((shown == 0).sum(1) == one.scored).all()
        assert chosen.min() >= 1
        assert chosen.max() <= LENGTH - 2
        assert (shown.gather(1, chosen) == 0).all()
        assert (answers >= 3).all()
    assert one.scored == round(0.15 * (LENGTH - 2))


def test_masked_token_is_the_cross_entropy_of_what_was_hidden(masked):
    made = task(masked, "masked")
    shown, chosen, answers = made.groups[0]
    with torch.no_grad():
        logits = masked(shown).logits
    expected = torch.stack([F.cross_entropy(logits[i][chosen[i]], answers[i]) for i in range(len(shown))])
    assert torch.allclose(losses(masked, made)[: len(shown)], expected, atol=1e-6)


def test_pairs_are_found_among_the_others_of_their_group(encoder):
    made = task(encoder, "pairs", most=8)
    assert made.count == 8
    (one, seen), (two, _) = made.groups[0]
    assert seen.all()
    with torch.no_grad():
        a, b = (F.normalize(encoder(ids).last_hidden_state.mean(1), dim=-1) for ids in (one, two))
    alike = SHARPNESS * a @ b.T
    answers = torch.arange(len(a))
    expected = (
        F.cross_entropy(alike, answers, reduction="none") + F.cross_entropy(alike.T, answers, reduction="none")
    ) / 2
    assert torch.allclose(losses(encoder, made)[: len(a)], expected, atol=1e-5)


def test_two_columns_are_pairs_whatever_their_lengths(encoder):
    rows = "\n".join(f"{3 + i} {4 + i} {5 + i}\t{6 + i}" for i in range(8))
    made = task(encoder, "pairs", rows)
    (one, seen), (two, other) = made.groups[0]
    assert one.shape[1] == 5  # three words and two special tokens
    assert two.shape[1] == 3
    alone = task(encoder, "pairs", rows, most=99)
    assert torch.allclose(losses(encoder, made), losses(encoder, alone))
    assert seen.all()
    assert other.all()


def test_padding_changes_no_loss(encoder):
    rows = [f"{3 + i} {9 + i}\t{5 + i} {7 + i}" for i in range(8)]
    made = task(encoder, "pairs", "\n".join(rows))
    (ids, seen), second = made.groups[0]
    wide = torch.cat([ids, torch.zeros_like(ids[:, :2])], 1), torch.cat([seen, torch.zeros_like(seen[:, :2])], 1)
    with torch.no_grad():
        assert torch.allclose(made.losses(encoder, (wide, second)), made.losses(encoder, made.groups[0]), atol=1e-5)


def test_the_task_is_told_by_the_class(gpt, masked, encoder):
    assert [task_of(model, "auto") for model in (gpt, masked, encoder)] == ["next", "masked", "pairs"]
    assert task_of(encoder, "next") == "next"
    with pytest.raises(ArgumentError, match="Linear"):
        task_of(nn.Linear(1, 1), "auto")
    two_parts = T5Model(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    with pytest.raises(InputError, match="T5Model"):
        task_of(two_parts, "auto")


@pytest.mark.parametrize("kind", ["next", "masked", "pairs"])
def test_every_task_can_be_tuned_at_two_lengths(kind, request):
    model = request.getfixturevalue({"next": "gpt", "masked": "masked", "pairs": "encoder"}[kind])
    material = Material("x", text(), TextReader(encode, (1,), (2,), mask=0))
    record = tuned(Loaded(model, "model", "python"), material, (8, 16), TuneSettings(documents=8))
    assert record.task == kind
    assert [one.length for one in record.lengths] == [8, 16]
    assert record.gradient.gradient[0][0] != 0
    enclosed = [one for one in record.lengths if one.best.enclosed]
    assert len(record.laws) == (5 if len(enclosed) == 2 else 0)


def test_what_a_task_lacks_is_named(gpt, encoder):
    with pytest.raises(ArgumentError, match="tokenizer"):
        task(encoder, "masked", reading=TextReader(encode))
    with pytest.raises(ArgumentError, match="task"):
        losses(encoder, task(encoder, "next"))
    with pytest.raises(InputError, match="pairs"):
        task(encoder, "pairs", "3\t4\n5\t6")


@pytest.mark.parametrize(("modes", "first"), [({"cls": True, "mean": False}, True), ({"mean": True}, False)])
def test_the_pooling_of_a_folder_is_used(tmp_path, modes, first):
    (tmp_path / "1_Pooling").mkdir()
    written = ", ".join(
        f'"pooling_mode_{name}_token{"s" * (name == "mean")}": {str(on).lower()}' for name, on in modes.items()
    )
    (tmp_path / "1_Pooling" / "config.json").write_text("{" + written + "}")
    assert takes_first_token(Loaded(nn.Identity(), "x", "x", str(tmp_path))) is first


def test_unknown_pooling_is_refused(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(InputError, match="pooling"):
        takes_first_token(Loaded(nn.Identity(), "x", "x", str(tmp_path)))
