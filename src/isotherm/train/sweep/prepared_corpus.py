"""A corpus as token ids, made once and kept beside the text: `news.tsv` → `news.tsv.translation-2048.npz`.

The prepared file is all that training needs: it can be carried to a machine without the text and without `tokenizers`.
It remembers the text's fingerprint, and is made again when the text has changed or the file is damaged.
"""

import os
import zlib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.record.files import LARGEST_FILE, read_bytes
from isotherm.train.parallel_text import from_tsv, split
from isotherm.train.text_files import lines
from isotherm.train.vocabulary import Vocabulary

HELD_OUT = 0.05
"""The share held out: of pairs by a hash of the source, of running text its end."""
LEAST_VOCABULARY = 300
"""All bytes and the special ids must fit."""


DAMAGE = (OSError, EOFError, TypeError, ValueError, KeyError, RuntimeError, BadZipFile, zlib.error)
"""What reading a damaged archive may raise."""


@dataclass(frozen=True)
class Side:
    """Sentences as ids, one after the other: sentence i ends before `ends[i]`. Running text is one sentence."""

    ids: NDArray[np.uint16]
    ends: NDArray[np.int64]


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus: its sides (source and target, or the text alone), of which the first `learned` are learned from."""

    sides: tuple[Side, ...]
    learned: int
    vocabulary: int
    digest: str


def fingerprint(path: Path) -> str:
    """Twelve digits that change with the text, also where only the prepared file is at hand."""
    if path.suffix == ".npz":
        return _load(path).digest
    if not os.path.exists(path):
        cached = sorted(path.parent.glob(f"{path.name}.*.npz"))
        if cached:
            return _load(cached[0]).digest
    return sha256(read_bytes(path)).hexdigest()[:12]


def read_corpus(name: str, task: str, vocabulary: int, root: Path) -> PreparedCorpus:
    """The corpus `name` (with or without `@fingerprint`) under `root`, prepared first if it has not been."""
    bare, _, expected = name.partition("@")
    path = root / bare
    cached = path if path.suffix == ".npz" else prepared_path(path, task, vocabulary)
    if cached != path and not _is_current(cached, path):
        prepare(path, task, vocabulary)
    corpus = _load(cached)
    if corpus.vocabulary != vocabulary:
        raise ArgumentError("vocabulary", Text(*(f"{corpus.vocabulary} ({bare})",) * 2), got=vocabulary)
    if len(corpus.sides) != (1 if task == "text" else 2):
        raise InputError(cached, Text("not prepared for task {task}", "不是为 {task} 任务准备的").format(task=task))
    if expected and corpus.digest != expected:
        raise InputError(cached, Text("not the text this trial was made for", "不是该次训练所用的文本"))
    return corpus


def _is_current(cached: Path, path: Path) -> bool:
    """Whether the prepared file is whole and of this text; where the text is not at hand, whether it is there."""
    if not os.path.exists(path):
        return os.path.exists(cached)
    try:
        return _load(cached).digest == fingerprint(path)
    except InputError:
        return False


def prepared_path(path: Path, task: str, vocabulary: int) -> Path:
    """Where the prepared file of a text lies."""
    return path.with_name(f"{path.name}.{task}-{vocabulary}.npz")


def prepare(path: Path, task: str, vocabulary: int) -> Path:
    """Learn a byte-pair vocabulary, turn the text into ids, and write them beside it."""
    if not LEAST_VOCABULARY <= vocabulary < 1 << 16:
        expected = Text("{least} to 65535 for a corpus", "语料任务须为 {least} 到 65535").format(least=LEAST_VOCABULARY)
        raise ArgumentError("vocabulary", expected, got=vocabulary)
    if task == "text":
        columns, learned = [["\n".join(lines(path))]], 1
    else:
        learn, held_out = split(from_tsv(path), HELD_OUT)
        pairs, learned = [*learn, *held_out], len(learn)
        columns = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
    texts = [sentence for column in columns for sentence in column]
    words = Vocabulary.learn(texts, vocabulary, rarest=0, normalise=False)
    arrays: dict[str, Any] = {"learned": learned, "vocabulary": vocabulary, "digest": fingerprint(path)}
    for index, column in enumerate(columns):
        encoded = words.encode(column)
        arrays[f"ids{index}"] = np.concatenate([np.asarray(ids, np.uint16) for ids in encoded])
        arrays[f"ends{index}"] = np.cumsum([len(ids) for ids in encoded])
    target = prepared_path(path, task, vocabulary)
    _save(target, arrays)
    return target


def _save(path: Path, arrays: dict[str, Any]) -> None:
    """Written beside its place and moved there, so that no half file is ever read."""
    with NamedTemporaryFile(dir=path.parent, prefix=".isotherm-", suffix=".npz", delete=False) as file:
        np.savez_compressed(file, **arrays)
    os.replace(file.name, path)
    path.chmod(0o644)


def _is_whole(side: Side, corpus: PreparedCorpus) -> bool:
    """Whether the sentences lie within the ids, the ids within the vocabulary, and those learned from within the sentences."""
    ids, ends = side.ids, side.ends
    typed = ids.dtype == np.uint16 and ids.ndim == ends.ndim == 1 and ends.dtype.kind == "i" and len(ends) > 0
    return bool(
        typed
        and ends[0] >= 0
        and (np.diff(ends) >= 0).all()
        and ends[-1] == len(ids)
        and (ids < corpus.vocabulary).all()
        and 0 <= corpus.learned <= len(ends)
    )


def _load(path: Path) -> PreparedCorpus:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            if sum(entry.file_size for entry in found.zip.infolist()) > LARGEST_FILE:
                raise ValueError("too large")
            sides = tuple(Side(found[f"ids{i}"], found[f"ends{i}"]) for i in range(2) if f"ids{i}" in found)
            corpus = PreparedCorpus(sides, int(found["learned"]), int(found["vocabulary"]), str(found["digest"]))
            if not all(_is_whole(side, corpus) for side in sides):
                raise ValueError("made up")
            return corpus
    except FileNotFoundError:
        raise InputError(path, Text("there is no such file", "没有这个文件")) from None
    except DAMAGE:
        raise InputError(path, Text("not a prepared corpus", "不是准备好的语料")) from None
