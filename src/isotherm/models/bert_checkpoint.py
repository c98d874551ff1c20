"""BERT as transformers stores it: which number of config.json is which, and which tensor belongs where."""

import re
from dataclasses import MISSING, dataclass
from pathlib import Path

from torch import Tensor

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.models.bert import Bert
from isotherm.models.shape import Shape
from isotherm.record.files import read_record
from isotherm.record.plain import bounded
from isotherm.scale import Rule

NAMES = (
    (r"^bert\.", ""),
    (r"\bLayerNorm\b", "norm"),
    (r"\bgamma$", "weight"),
    (r"\bbeta$", "bias"),
    (r"^embeddings\.(word|position|token_type)_embeddings\b", r"\1"),
    (r"^word\b", "tokens"),
    (r"^position\b", "positions"),
    (r"^token_type\b", "types"),
    (r"^embeddings\.norm\b", "norm"),
    (r"^encoder\.layer\.", "stack.layers."),
    (r"\battention\.self\.", "attention.inner."),
    (r"\battention\.output\.dense\b", "attention.inner.out"),
    (r"\battention\.output\.norm\b", "attention.norm"),
    (r"\bintermediate\.dense\b", "feed_forward.inner.0"),
    (r"(\d)\.output\.dense\b", r"\1.feed_forward.inner.2"),
    (r"(\d)\.output\.norm\b", r"\1.feed_forward.norm"),
    (r"^pooler\.dense\b", "pooler"),
    (r"^cls\.predictions\.transform\.dense\b", "head.0"),
    (r"^cls\.predictions\.transform\.norm\b", "head.2"),
    (r"^cls\.predictions\.bias$", "head_bias"),
)
"""transformers' names → ours, applied one after another."""
DROPPED = re.compile(r"position_ids$|^cls\.seq_relationship|^cls\.predictions\.decoder")
"""What a checkpoint may hold beyond: counters, the next-sentence head, and a second name of tied weights."""
OPTIONAL = re.compile(r"^(pooler|head|head_bias)\b|\.rule\.")
"""What a checkpoint may lack: the two heads, and what a rule learns."""


@dataclass(frozen=True)
class _BertConfig:
    """The keys of config.json that matter here."""

    vocab_size: int = bounded(MISSING, 1, 2**24)
    hidden_size: int = bounded(MISSING, 1, 2**17)
    num_attention_heads: int = bounded(MISSING, 1, 2**14)
    num_hidden_layers: int = bounded(MISSING, 1, 1024)
    intermediate_size: int = bounded(MISSING, 1, 2**20)
    max_position_embeddings: int = bounded(MISSING, 1, 2**24)
    pad_token_id: int | None = bounded(None, 0, 2**24)
    hidden_dropout_prob: float = bounded(0.0, 0.0, 0.99)
    type_vocab_size: int = bounded(2, 1, 2**17)
    layer_norm_eps: float = bounded(1e-12, 0.0, 1.0)
    model_type: str = "bert"
    hidden_act: str = "gelu"
    position_embedding_type: str = "absolute"


def read_bert(folder: Path, rule: Rule | None) -> Bert:
    """The model in this folder; `InputError` says what is wrong with it."""
    config = _config(folder)
    model = Bert(_shape(config), rule, types=config.type_vocab_size, eps=config.layer_norm_eps)
    tensors = {our_name(name): tensor for name, tensor in _tensors(folder).items()}
    found = {name: tensor for name, tensor in tensors.items() if not DROPPED.search(name)}
    try:
        missing, unexpected = model.load_state_dict(found, strict=False)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:200]
        why = Text("weights and config.json do not fit together ({said})", "权重与 config.json 不相符（{said}）")
        raise InputError(folder, why.format(said=said)) from None
    wrong = [name for name in missing if not OPTIONAL.search(name)] + unexpected
    if wrong:
        why = Text("not the weights of a BERT ({names})", "不是 BERT 的权重（{names}）")
        raise InputError(folder, why.format(names=", ".join(wrong[:3])))
    return model.eval()


def our_name(name: str) -> str:
    """What a tensor of transformers' BERT is called here."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _config(folder: Path) -> _BertConfig:
    path = folder / "config.json"
    config = read_record(_BertConfig, path)
    for key, known in (("model_type", "bert"), ("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if getattr(config, key) != known:
            why = Text("{key} is {value}, and only {known} is known here", "{key} 为 {value}，此处只支持 {known}")
            raise InputError(path, why.format(key=key, value=getattr(config, key), known=known))
    return config


def _shape(config: _BertConfig) -> Shape:
    return Shape(
        vocabulary=config.vocab_size,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        hidden=config.intermediate_size,
        longest=config.max_position_embeddings,
        pad=config.pad_token_id or 0,
        dropout=config.hidden_dropout_prob,
        norm="post",
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError:
        why = Text(
            "reading it needs safetensors: pip install 'isotherm[train]'",
            "读取它需要 safetensors：pip install 'isotherm[train]'",
        )
        raise InputError(folder, why) from None
    path = folder / "model.safetensors"
    if not path.is_file():
        raise InputError(path, Text("no such file", "没有这个文件"))
    try:
        return load_file(path)
    except Exception as error:
        said = Text("not a safetensors file ({said})", "不是 safetensors 文件（{said}）").format(said=error)
        raise InputError(path, said) from None
