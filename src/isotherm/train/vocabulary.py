"""A vocabulary learned from the corpus, kept in tokenizer.json. The same corpus gives the same vocabulary.

Byte-level pair encoding: it starts from bytes, so no character is ever unknown, Chinese included. (Unigram was tried and
is a tenth shorter on Chinese, but two trainings on one corpus gave two vocabularies, and «<end>» in a text became the end.)
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.language import Text
from isotherm.record.files import parse_json, read_bytes
from isotherm.train.tokens import FIRST, SPECIAL


class Vocabulary:
    """A trained tokenizer, with the special ids of `tokens.py` first."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # «<end>» in a text is seven letters, not the end

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    @classmethod
    def learn(cls, sentences: Iterable[str], size: int, *, rarest: int = 2, normalise: bool = True) -> "Vocabulary":
        """Learn at most `size` entries from pairs of bytes that occur at least `rarest` times, after Unicode's NFC."""
        if size < FIRST + 256:
            least = Text("at least {n}: the special ids and every byte", "至少 {n}：特殊标记与全部字节")
            raise ArgumentError("vocabulary", least.format(n=FIRST + 256), got=size)
        made = _tokenizers()
        tokenizer = made.Tokenizer(made.models.BPE())
        if normalise:
            tokenizer.normalizer = made.normalizers.NFC()
        tokenizer.pre_tokenizer = made.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = made.decoders.ByteLevel()
        trainer = made.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=rarest,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(made.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(list(sentences), trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """From a tokenizer.json; its special ids must be ours."""
        data = read_bytes(path)
        try:
            _check_sizes(parse_json(path, data))
            tokenizer = _tokenizers().Tokenizer.from_str(data.decode())
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(path, Text("not a tokenizer.json", "不是 tokenizer.json")) from error
        found = [tokenizer.id_to_token(index) for index in range(FIRST)]
        if tuple(found) != SPECIAL:
            why = Text("its first entries are {found}, not {ours}", "其前几项是 {found}，而非 {ours}")
            raise InputError(path, why.format(found=found, ours=list(SPECIAL)))
        return cls(tokenizer)

    def to_json(self) -> str:
        """The contents of tokenizer.json."""
        return str(self._tokenizer.to_str(pretty=True))

    @property
    def digest(self) -> str:
        """A fingerprint: two vocabularies with the same one give the same ids."""
        return sha256(self.to_json().encode()).hexdigest()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The ids of each sentence, without start and end."""
        return [list(encoding.ids) for encoding in self._tokenizer.encode_batch(list(sentences))]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The sentences of these ids; special ids are left out."""
        return [text.strip() for text in self._tokenizer.decode_batch([list(row) for row in rows])]


def _check_sizes(plain: Any) -> None:
    """Raise ValueError for a size that tokenizers would count up to: an id beyond the vocabulary, or padding."""
    ids = plain["model"]["vocab"].values()
    places = set(range(len(ids)))
    if {index for index in ids if type(index) is int} != places:
        raise ValueError("ids")
    if plain.get("padding") is not None or any(token["id"] not in places for token in plain.get("added_tokens") or ()):
        raise ValueError("sizes")


def _tokenizers() -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise missing("tokenizers") from error
    return tokenizers


def missing(package: str) -> IsothermError:
    """The error for a package that training needs and that is not there."""
    why = Text(
        "training needs {package}; install it with: pip install 'isotherm[train]'",
        "训练需要 {package}；安装：pip install 'isotherm[train]'",
    )
    return IsothermError(why.format(package=package))
