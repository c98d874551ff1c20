"""Model folders made on the spot, whole and broken."""

import json
from pathlib import Path

import torch


def bert_folder(path: Path) -> Path:
    """A small random BERT with its tokenizer, as transformers saves it."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "the",
        "temperature",
        "attention",
        "of",
        "key",
        "query",
        "温",
        "度",
    ]
    (path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(path)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37
    )
    BertModel(config).save_pretrained(path)
    return path


def change_config(path: Path, **keys: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | keys))
