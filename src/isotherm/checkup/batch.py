"""Make a batch for a model: text, a picture or a sound, in the form its first layer expects."""

import codecs
import inspect
import sys
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from isotherm.checkup.generated import diffusion_input, moved, picture, sound
from isotherm.checkup.loading.chatter import quiet
from isotherm.checkup.loading.loaded import Loaded
from isotherm.checkup.wrappers import inner
from isotherm.errors import InputError
from isotherm.language import Text

PASSAGE = (files(__package__) / "passage.txt").read_text(encoding="utf-8")
"""The text a check-up reads when it is given none: our own, in both languages."""
TOKENS = 256
"""So many tokens of it are read unless told otherwise."""
DECODER_TOKENS = 64
READ_AT_MOST = 2**22
BYTES_PER_TOKEN = 64
CHARACTERS_PER_TOKEN = 64
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)


def read_text(source: str | None, tokens: int = 0) -> str:
    """Read a file, standard input ("-"), or the built-in passage (None). Of a long text, only the beginning is read: as much
    as `tokens` tokens can need, with room to spare."""
    if source is None:
        return PASSAGE
    name = Text("standard input", "标准输入") if source == "-" else source
    most = max(READ_AT_MOST, BYTES_PER_TOKEN * tokens)
    try:
        with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file:
            data = _read(file, most)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(name, Text("cannot be read ({why})", "无法读取（{why}）").format(why=why)) from None
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=len(data) < most)
    except UnicodeDecodeError as error:
        where = Text("not UTF-8 text (byte {at})", "不是 UTF-8 文本（第 {at} 字节）").format(at=error.start)
        raise InputError(name, where) from None
    if not text.strip():
        raise InputError(name, Text("empty", "没有内容"))
    return text


def _read(file: BinaryIO, most: int) -> bytes:
    """The first `most` bytes; a pipe gives them in pieces."""
    pieces, left = [], most
    while left and (piece := file.read(min(left, READ_AT_MOST))):  # read sets aside what it is asked for
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def make_batch(loaded: Loaded, text: str, tokens: int, tokenizer: Any = None) -> dict[str, Any]:
    """Keyword arguments for the model, by its `main_input_name` and configuration. Without a tokenizer, its own is used."""
    model = loaded.model
    wanted = str(getattr(model, "main_input_name", "input_ids"))
    config = getattr(model, "config", None)
    batch: dict[str, Any] | None
    if is_diffusion(model):
        wanted = ", ".join(name for name in parameters(model) if name != "return_dict")
        batch = diffusion_input(type(model).__name__, config)
    elif wanted == "input_ids":
        batch = _tokens(loaded, text, _length(config, tokens), tokenizer)
        if getattr(config, "vision_config", None) is not None and "pixel_values" in parameters(model):
            batch["pixel_values"] = picture(config.vision_config)  # type: ignore[union-attr]
    elif wanted == "pixel_values":
        batch = {"pixel_values": picture(getattr(config, "vision_config", None) or config)}
        if getattr(config, "text_config", None) is not None and "input_ids" in parameters(model):
            batch |= _tokens(loaded, text, _length(config.text_config, tokens), tokenizer)  # type: ignore[union-attr]
    elif wanted in ("input_features", "input_values"):
        batch = {wanted: sound(config, spectrum=wanted == "input_features")}
    else:
        batch = None
    if batch is None:
        why = Text(
            "takes {wanted}, which cannot be generated; pass a batch to isotherm.check, or return one from"
            " package.module:function",
            "需要 {wanted}，无法自动生成；请将批次传给 isotherm.check，或由 package.module:function 返回",
        )
        raise InputError(loaded.name, why.format(wanted=wanted))
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = decoder_tokens(batch, config)
    placed: dict[str, Any] = moved(batch, *place(model))
    return placed


def is_diffusion(model: nn.Module) -> bool:
    """Whether this is a model of diffusers, which writes the class into the configuration."""
    config = getattr(model, "config", None)
    return hasattr(config, "get") and "_class_name" in config  # type: ignore[operator]


def place(model: nn.Module) -> tuple[torch.device, torch.dtype | None]:
    """The device that the model's input belongs on, and the precision of its first weights with decimals. Weights that are
    kept elsewhere until they are needed are on no device; their input is moved when they run."""
    device = next((tensor.device for tensor in model.parameters() if not tensor.is_meta), torch.device("cpu"))
    return device, next((tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()), None)


def _tokens(loaded: Loaded, text: str, length: int, tokenizer: Any) -> dict[str, Any]:
    encoded = _encode(tokenizer_of(loaded) if tokenizer is None else tokenizer, text, length)
    names = ("input_ids", "attention_mask", "token_type_ids")
    batch = {name: encoded[name] for name in names if name in encoded and not refuses(loaded.model, name)}
    if "input_ids" not in batch or not batch["input_ids"].shape[1]:
        raise InputError(
            loaded.name, Text("the tokenizer makes no tokens of this text", "分词器没有从这段文本得到任何词元")
        )
    return batch


def _encode(tokenizer: Any, text: str, length: int) -> Any:
    """Tokenise the beginning of the text, and more of it while that gives fewer tokens than asked for."""
    characters = CHARACTERS_PER_TOKEN * length
    while True:
        encoded = tokenizer(text[:characters], return_tensors="pt", truncation=True, max_length=length)
        if characters >= len(text) or encoded["input_ids"].shape[1] >= length:
            return encoded
        characters *= 4


def tokenizer_of(loaded: Loaded) -> Any:
    """The tokenizer in the folder or snapshot that the model came from."""
    import transformers

    where = loaded.folder
    if where is None or (Path(where).is_dir() and not any((Path(where) / name).exists() for name in TOKENIZER_FILES)):
        # transformers would make an empty tokenizer of the right class, for which every word is unknown
        expected = ", ".join(TOKENIZER_FILES)
        raise InputError(
            loaded.name, Text("no tokenizer ({expected})", "没有分词器（{expected}）").format(expected=expected)
        )
    try:
        with quiet():
            return transformers.AutoTokenizer.from_pretrained(where, local_files_only=Path(where).is_dir())
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        why = Text("no tokenizer could be loaded ({said})", "没有可用的分词器（{said}）").format(said=said)
        raise InputError(loaded.name, why) from error


def _length(config: Any, tokens: int) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    return min(tokens, longest) if isinstance(longest, int) and longest > 0 else tokens


def parameters(model: nn.Module) -> dict[str, inspect.Parameter]:
    """The parameters of a model's forward; none if Python cannot tell."""
    try:
        return dict(inspect.signature(inner(model).forward).parameters)
    except (TypeError, ValueError):  # a scripted or compiled forward
        return {}


def refuses(model: nn.Module, name: str) -> bool:
    """Whether forward has neither a parameter of this name nor room for any."""
    known = parameters(model)
    return bool(known) and name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values())


def decoder_tokens(batch: dict[str, Tensor], config: Any) -> Tensor:
    """Tokens for a decoder: the start token, then the encoder's own tokens, or numbers where it reads none."""
    start = getattr(config, "decoder_start_token_id", None) or 0
    longest = getattr(config, "max_target_positions", None) or getattr(config, "max_position_embeddings", None)
    length = min(DECODER_TOKENS, longest) if isinstance(longest, int) else DECODER_TOKENS
    if "input_ids" in batch:
        ids = batch["input_ids"][:, : length - 1]
    else:
        ids = torch.arange(1, length).remainder(int(config.vocab_size)).view(1, -1)
    return torch.cat([torch.full((ids.shape[0], 1), int(start)), ids], 1)
