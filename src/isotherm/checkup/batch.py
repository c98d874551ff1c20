"""Make a batch for a model: text, a picture or a sound, in the form its first layer expects."""

import codecs
import sys
from contextlib import nullcontext
from importlib.resources import files
from math import pi
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from isotherm.checkup.load import Loaded, quiet
from isotherm.errors import InputError
from isotherm.language import Text

PASSAGE = (files(__package__) / "passage.txt").read_text(encoding="utf-8")
"""The text a check-up reads when it is given none: our own, in both languages."""
DECODER_TOKENS = 64
READ_AT_MOST = 2**22
BYTES_PER_TOKEN = 64
CHARACTERS_PER_TOKEN = 64
LARGEST_INPUT = 2**26
"""The most numbers in a generated picture or sound: about 4,700 × 4,700 pixels of three colours."""
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
    while left and (piece := file.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def make_batch(loaded: Loaded, text: str, tokens: int) -> dict[str, Any]:
    """Keyword arguments for the model, by its `main_input_name` and configuration."""
    model = loaded.model
    wanted = str(getattr(model, "main_input_name", "input_ids"))
    config = getattr(model, "config", None)
    if wanted == "input_ids":
        batch = _tokens(loaded, text, _length(config, tokens))
        if getattr(config, "vision_config", None) is not None and _takes(model, "pixel_values"):
            batch["pixel_values"] = picture(config.vision_config)  # type: ignore[union-attr]
    elif wanted == "pixel_values":
        batch = {"pixel_values": picture(getattr(config, "vision_config", None) or config)}
        if getattr(config, "text_config", None) is not None and _takes(model, "input_ids"):
            batch |= _tokens(loaded, text, _length(config.text_config, tokens))  # type: ignore[union-attr]
    elif wanted in ("input_features", "input_values"):
        batch = {wanted: sound(config, spectrum=wanted == "input_features")}
    else:
        why = Text("takes {wanted}, which cannot be generated; pass a batch", "需要 {wanted}，无法自动生成；请提供批次")
        raise InputError(loaded.name, why.format(wanted=wanted))
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = _decoder_tokens(batch, config)
    device = next(model.parameters()).device
    dtype = next(model.parameters()).dtype
    return {
        name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in batch.items()
    }


def _tokens(loaded: Loaded, text: str, length: int) -> dict[str, Tensor]:
    encoded = _encode(_tokenizer(loaded), text, length)
    batch = {name: encoded[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in encoded}
    if not batch["input_ids"].shape[1]:
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


def _tokenizer(loaded: Loaded) -> Any:
    import transformers

    where = loaded.folder or loaded.name
    if Path(where).is_dir() and not any((Path(where) / name).exists() for name in TOKENIZER_FILES):
        # transformers would make an empty tokenizer of the right class, for which every word is unknown
        expected = ", ".join(TOKENIZER_FILES)
        raise InputError(
            loaded.name, Text("no tokenizer ({expected})", "没有分词器（{expected}）").format(expected=expected)
        )
    try:
        with quiet(transformers):
            return transformers.AutoTokenizer.from_pretrained(where, local_files_only=Path(where).is_dir())
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        why = Text("no tokenizer could be loaded ({said})", "没有可用的分词器（{said}）").format(said=said)
        raise InputError(loaded.name, why) from error


def _length(config: Any, tokens: int) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    return min(tokens, longest) if isinstance(longest, int) and longest > 0 else tokens


def _takes(model: nn.Module, name: str) -> bool:
    import inspect

    return name in inspect.signature(model.forward).parameters


def _decoder_tokens(batch: dict[str, Tensor], config: Any) -> Tensor:
    start = getattr(config, "decoder_start_token_id", None) or 0
    longest = getattr(config, "max_target_positions", None) or getattr(config, "max_position_embeddings", None)
    length = min(DECODER_TOKENS, longest) if isinstance(longest, int) else DECODER_TOKENS
    if "input_ids" in batch:
        ids = batch["input_ids"][:, : length - 1]
    else:
        ids = torch.arange(1, length).remainder(int(config.vocab_size)).view(1, -1)
    return torch.cat([torch.full((ids.shape[0], 1), int(start)), ids], 1)


def picture(config: Any) -> Tensor:
    """A smooth picture [1, C, H, W] with an edge and some noise, normalised to mean 0 and variance 1."""
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    channels = int(getattr(config, "num_channels", 3))
    _bound("image_size", size, max(3, channels) * height * width)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    grain = torch.randn(3, height, width, generator=torch.Generator().manual_seed(0))
    waves = torch.stack([torch.sin(2 * pi * (k * x + y)) for k in (1, 2, 3)])
    image = waves + (x > 0.6).float() + 0.2 * grain
    return ((image - image.mean()) / image.std())[torch.arange(channels) % 3].unsqueeze(0)


def sound(config: Any, *, spectrum: bool) -> Tensor:
    """A rising tone with a pause: a log-mel-like spectrum [1, M, T], or one second of samples [1, 16000]."""
    if spectrum:
        bins, frames = int(getattr(config, "num_mel_bins", 80)), 2 * int(getattr(config, "max_source_positions", 1500))
        _bound("max_source_positions", frames // 2, bins * frames)
        m, t = torch.meshgrid(torch.linspace(0, 1, bins), torch.linspace(0, 1, frames), indexing="ij")
        return (torch.exp(-((m - t) ** 2) / 0.02) - 0.5 + 0.1 * torch.sin(40 * t)).unsqueeze(0)
    t = torch.linspace(0, 1, 16000)
    return (torch.sin(2 * pi * (200 + 300 * t) * t) * (t % 0.5 < 0.4)).unsqueeze(0)


def _bound(key: str, value: object, numbers: int) -> None:
    """Refuse an input of more numbers than any model takes."""
    if numbers > LARGEST_INPUT:
        raise InputError(
            "config.json", Text("{key} = {value} is too large", "{key} = {value} 过大").format(key=key, value=value)
        )
