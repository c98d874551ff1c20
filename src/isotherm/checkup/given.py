"""Turn what a person passes as `batch` into arguments of the model: text, ids, arrays, or nothing at all."""

import inspect
import re
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.checkup.batch import PASSAGE, TOKENS, decoder_tokens, is_diffusion, make_batch, parameters, place
from isotherm.checkup.generated import moved
from isotherm.checkup.loading.loaded import Loaded
from isotherm.checkup.measure import Batch
from isotherm.checkup.wrappers import inner
from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text

IDS = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask")
"""Arguments of which one sequence may be given without a batch dimension."""
DICTS = ("batch", "features", "inputs", "data", "sample")
"""What people call a parameter that takes the whole batch as a dict."""
DICT = re.compile(r"\b(dict|Dict|Mapping|MutableMapping)\b")
LONGEST = 2**20
"""The most tokens of a text that are read, where the model names no limit of its own."""
KINDS = Text(
    "a tensor, a dict of keyword arguments, a list of positional ones, ids or text",
    "张量、关键字参数的字典、位置参数的列表、编号或文本",
)


def prepare(loaded: Loaded, batch: Any, tokenizer: Any = None) -> Batch:
    """Arguments for the model. None stands for our own passage, picture or sound; text goes through `tokenizer`, or the
    model's own; tensors stay as they are. An `ArgumentError` says why something cannot be used."""
    model = loaded.model
    if isinstance(batch, list | tuple) and batch and _is_empty(batch):
        raise ArgumentError("batch", KINDS, got=repr(batch)[:40])
    if batch is None:
        prepared = _generated(loaded, tokenizer)
    elif isinstance(batch, str):
        prepared = _text(loaded, batch, LONGEST, tokenizer)
    elif isinstance(batch, Tensor):
        prepared = batch
    elif isinstance(batch, Mapping):
        prepared = _keywords(model, batch)
    elif isinstance(batch, np.ndarray) or _is_numbers(batch):
        prepared = _ids(model, _tensor(batch))
    elif isinstance(batch, Sequence) and not isinstance(batch, bytes | bytearray | range):
        if batch and all(isinstance(text, str) for text in batch):
            prepared = _texts(loaded, list(batch), tokenizer)
        else:
            prepared = tuple(_tensor(value) if isinstance(value, np.ndarray) else value for value in batch)
    else:
        raise ArgumentError("batch", KINDS, got=type(batch).__name__)
    check_arguments(model, prepared)
    return prepared


def check_arguments(model: nn.Module, batch: Batch) -> None:
    """Refuse a batch that holds no numbers, or that the model's forward has no parameters for, before anything runs."""
    positional, keywords = _arguments(batch)
    if any(isinstance(value, Tensor) and value.is_meta for value in (*positional, *keywords.values())):
        got = Text("a tensor on the meta device", "meta 设备上的张量")
        raise ArgumentError("batch", Text("tensors with values", "有数值的张量"), got=got)
    tensors = [value for value in (*positional, *keywords.values()) if isinstance(value, Tensor)]
    if tensors and not any(tensor.numel() for tensor in tensors):
        expected = Text("at least one sequence with at least one position", "至少一个序列，且至少有一个位置")
        raise ArgumentError("batch", expected, got=list(tensors[0].shape))
    if _fits(model, positional, keywords):
        return
    got = Text("{n} positional", "{n} 个位置参数").format(n=len(positional))
    if keywords:
        got = Text("keywords {names}", "关键字参数 {names}").format(names=", ".join(map(str, keywords))[:200])
    raise ArgumentError("batch", TAKES.format(signature=_shown(model)), got=got)


TAKES = Text("arguments that forward({signature}) takes", "forward({signature}) 所需的参数")


def _arguments(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Tensor):
        return (batch,), {}
    return ((), dict(batch)) if isinstance(batch, Mapping) else (tuple(batch), {})


def _fits(model: nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    try:
        signature = inspect.signature(inner(model).forward)
    except (TypeError, ValueError):  # Python cannot tell, and the model will say
        return True
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


def _shown(model: nn.Module) -> str:
    """The parameters of forward in one line, those that may be left out with an ellipsis."""
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [
        f"{marks.get(p.kind, '')}{p.name}{'' if p.default is p.empty else '=…'}" for p in parameters(model).values()
    ]
    return ", ".join(names)[:300]


def _generated(loaded: Loaded, tokenizer: Any) -> Batch:
    model = loaded.model
    if tokenizer is not None or hasattr(model, "main_input_name") or is_diffusion(model) or _reads_sentences(model):
        return _text(loaded, PASSAGE, TOKENS, tokenizer)
    raise ArgumentError("batch", TAKES.format(signature=_shown(model)), got=None)


def _reads_sentences(model: nn.Module) -> bool:
    """Whether this is a model of sentence-transformers, which has a tokenizer and takes its features as one dict."""
    return callable(getattr(model, "tokenize", None)) and callable(getattr(model, "encode", None))


def _text(loaded: Loaded, text: str, most: int, tokenizer: Any) -> Batch:
    """The text as the model reads it. Models of transformers may need more than tokens, and get it."""
    model = loaded.model
    if not text.strip():
        raise ArgumentError("batch", Text("a text with words in it", "有内容的文本"), got=repr(text[:40]))
    if tokenizer is None and _reads_sentences(model):
        return (moved(dict(model.tokenize([text])), place(model)[0], None),)  # type: ignore[operator]
    if not hasattr(model, "main_input_name") and not is_diffusion(model):
        return _ids(model, _with(_needed(tokenizer), text, most)["input_ids"])
    encode = None if tokenizer is None else lambda text, **how: _with(tokenizer, text, how["max_length"])
    try:
        return make_batch(loaded, text, most, encode)
    except InputError as error:
        if tokenizer is not None or is_diffusion(model):
            raise
        raise ArgumentError("batch", NEEDS_TOKENIZER.format(why=error.text), got=Text("text", "文本")) from error


NEEDS_TOKENIZER = Text("ids, or a tokenizer= to read text with ({why})", "编号，或用 tokenizer= 给出分词器（{why}）")


def _texts(loaded: Loaded, texts: list[str], tokenizer: Any) -> Batch:
    """Several texts, padded to one length by the tokenizer."""
    model = loaded.model
    if len(texts) == 1:
        return _text(loaded, texts[0], LONGEST, tokenizer)
    if tokenizer is None and _reads_sentences(model):
        return (moved(dict(model.tokenize(texts)), place(model)[0], None),)  # type: ignore[operator]
    try:
        encoded = _needed(tokenizer)(texts, return_tensors="pt", padding=True, truncation=True)
        return _keywords(model, dict(encoded))
    except (TypeError, ValueError) as error:
        expected = Text("one text, or a tokenizer that pads ({why})", "一段文本，或能补齐的分词器（{why}）")
        raise ArgumentError("batch", expected.format(why=error), got=len(texts)) from error


def _needed(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise ArgumentError("tokenizer", Text("a tokenizer to read text with", "读取文本所需的分词器"), got=None)
    return tokenizer


def _with(tokenizer: Any, text: str, most: int) -> dict[str, Tensor]:
    """Tokenise with a tokenizer of transformers, one of tokenizers, or any function from text to ids."""
    if hasattr(tokenizer, "model_max_length"):
        return dict(tokenizer(text, return_tensors="pt", truncation=True, max_length=most))
    if hasattr(tokenizer, "token_to_id") and hasattr(tokenizer, "encode"):
        found: Any = tokenizer.encode(text).ids
    elif callable(tokenizer):
        found = tokenizer(text)
    else:
        expected = Text("a function from text to ids, or a tokenizer", "由文本得到编号的函数，或分词器")
        raise ArgumentError("tokenizer", expected, got=type(tokenizer).__name__)
    if isinstance(found, Mapping):
        return {name: _row(_tensor(value))[:, :most] for name, value in found.items() if name in IDS}
    return {"input_ids": _row(_tensor(found))[:, :most]}


def _keywords(model: nn.Module, batch: Mapping[Any, Any]) -> Batch:
    """Keyword arguments, with lists and arrays as tensors. A dict that forward takes as a whole is its only argument."""
    if not all(isinstance(name, str) for name in batch):
        raise ArgumentError("batch", Text("names of arguments as keys", "以参数名为键"), got=repr(list(batch)[:3]))
    device = place(model)[0]
    changed = {
        name: (_row if name in IDS else _same)(_tensor(value)).to(device)
        for name, value in batch.items()
        if isinstance(value, np.ndarray) or _is_numbers(value)
    }
    prepared = {**batch, **changed} if changed else batch
    if _takes_a_dict(model) and not _fits(model, (), dict(prepared)) and _fits(model, (prepared,), {}):
        return (prepared,)
    return prepared


def _takes_a_dict(model: nn.Module) -> bool:
    """Whether the first parameter of forward is a dict, by its annotation or by what it is called."""
    first = next(iter(parameters(model).values()), None)
    return first is not None and (first.name in DICTS or bool(DICT.search(str(first.annotation))))


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _row(ids: Tensor) -> Tensor:
    """One sequence as a batch of one."""
    return ids.unsqueeze(0) if ids.dim() == 1 else ids


def _ids(model: nn.Module, numbers: Tensor) -> Batch:
    """Whole numbers are ids: `input_ids` where forward takes that. Other numbers are the first argument."""
    device, dtype = place(model)
    if numbers.is_floating_point():
        positional: Tensor = moved(numbers, device, dtype)
        return positional
    ids = _row(numbers).to(device)
    _check_ids(model, ids)
    if "input_ids" not in parameters(model):
        return ids
    batch = {"input_ids": ids}
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = decoder_tokens({"input_ids": ids.cpu()}, config).to(device)
    return batch


def _check_ids(model: nn.Module, ids: Tensor) -> None:
    """Refuse ids that the model has no embedding for, where it tells how many it has."""
    try:
        most = int(model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    except (AttributeError, TypeError, NotImplementedError):
        return
    wrong = ids[(ids < 0) | (ids >= most)]
    if wrong.numel():
        expected = Text("ids from 0 to {last}", "0 到 {last} 的编号").format(last=most - 1)
        raise ArgumentError("batch", expected, got=int(wrong[0]))


def _is_numbers(value: Any) -> bool:
    """Whether this is a list of numbers, or of such lists."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(inner, Number) or _is_numbers(inner) for inner in value)


def _is_empty(value: Any) -> bool:
    """Whether this is a list without numbers: [], [[]] or [[], []]."""
    return isinstance(value, list | tuple) and all(_is_empty(inner) for inner in value)


def _tensor(value: Any) -> Tensor:
    """The tensor of an array or of lists of numbers."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        expected = Text("numbers, in lists of equal length", "数，且各列表等长")
        raise ArgumentError("batch", expected, got=" ".join(str(error).split())[:120]) from error
