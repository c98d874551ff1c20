"""A parallel corpus from the message catalogues of installed Python packages.

People translate programs into many languages under open licences, so `pip install` brings parallel text. A note beside
the corpus says which packages it came from and under which licences.
"""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath
from re import sub

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.report.files import write_atomically
from isotherm.train.gettext_files import messages
from isotherm.train.message_cleaning import clean, key
from isotherm.train.parallel_text import Pair

SCHEMA = "isotherm.corpus/1"
_SAME = (
    {"zh_hans", "zh_cn", "zh_hans_cn"},
    {"zh_hant", "zh_tw", "zh_hant_tw"},
)


@dataclass(frozen=True)
class Provenance:
    """Where part of a corpus came from: catalogues relative to the folder the package is installed in."""

    package: str
    version: str
    licence: str
    catalogues: tuple[str, ...]
    messages: int
    pairs: int


@dataclass(frozen=True)
class GettextCorpus:
    """Pairs, each source once, and where they came from."""

    lang: str
    pairs: tuple[Pair, ...]
    provenance: tuple[Provenance, ...]


def gather(packages: Sequence[str], lang: str, *, where: Path | None = None, longest: int = 200) -> GettextCorpus:
    """Every translation into `lang` in these packages' catalogues, cleaned. The first translation of each source is kept.

    `where` is the folder the packages are installed in (as by `pip install --target`), else this environment.
    `longest` is in characters of the source.
    """
    chinese = _plain_name(lang).startswith("zh")
    seen: set[str] = set()
    pairs: list[Pair] = []
    provenance = []
    for name in packages:
        package = _distribution(name, where)
        paths = _catalogues(package, lang)
        read = [message for path in paths for message in messages(Path(str(package.locate_file(path))))]
        before = len(pairs)
        for pair in filter(None, (clean(message, chinese=chinese) for message in read)):
            if len(pair.source) <= longest and (mark := key(pair.source)) not in seen:
                seen.add(mark)
                pairs.append(pair)
        provenance.append(
            Provenance(
                package=package.metadata["Name"],
                version=package.version,
                licence=_licence(package),
                catalogues=tuple(path.as_posix() for path in paths),
                messages=len(read),
                pairs=len(pairs) - before,
            )
        )
    return GettextCorpus(lang, tuple(pairs), tuple(provenance))


def write(corpus: GettextCorpus, path: Path) -> Path:
    """The pairs as a table, and beside it a JSON note of their provenance, whose path is returned."""
    note = path.with_suffix(".json")
    write_atomically(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in corpus.pairs))
    write_atomically(note, json.dumps(describe(corpus), ensure_ascii=False, indent=2) + "\n")
    return note


def describe(corpus: GettextCorpus) -> dict[str, object]:
    """The note of provenance as plain data."""
    return {
        "schema": SCHEMA,
        "source": "en",
        "target": corpus.lang,
        "pairs": len(corpus.pairs),
        "packages": [asdict(part) for part in corpus.provenance],
    }


def _distribution(name: str, where: Path | None) -> Distribution:
    if where is not None and not os.path.isdir(where):
        raise InputError(where, Text("there is no such folder", "没有这个文件夹"))
    wanted = sub(r"[-_.]+", "-", name).lower()
    found = distributions(path=[str(where)]) if where is not None else distributions()
    damaged: Path | None = None
    for package in found:
        try:
            called = package.metadata["Name"] or ""
        except UnicodeDecodeError:
            damaged = damaged or getattr(package, "_path", None) or where
            continue
        if sub(r"[-_.]+", "-", called).lower() == wanted:
            return package
    if damaged is not None:
        raise InputError(damaged, Text("its METADATA is not UTF-8", "其 METADATA 不是 UTF-8 文本"))
    place = str(where) if where is not None else Text("this environment", "当前环境")
    why = Text("this package is not installed in {place}", "{place} 中没有安装这个包")
    raise InputError(name, why.format(place=place))


def _catalogues(package: Distribution, lang: str) -> list[PurePath]:
    """The package's catalogues in this language, compiled ones where both are there."""
    try:
        files = [PurePath(file) for file in package.files or ()]
    except (ValueError, TypeError, csv.Error):  # not UTF-8 or a bad size; an empty line or too many fields; no CSV
        damaged = Text("its list of files (RECORD) is damaged", "其文件列表（RECORD）已损坏")
        raise InputError(package.metadata["Name"], damaged) from None
    all_of_them = [file for file in files if file.suffix in (".mo", ".po")]
    right = [file for file in all_of_them if _names(file) & _spellings(lang)]
    if not right:
        have = sorted({part for file in all_of_them for part in _folders(file)})
        why = Text("no catalogue for {lang} (it has: {have})", "没有 {lang} 的目录文件（已有：{have}）")
        none = Text("none", "无")
        raise InputError(package.metadata["Name"], why.format(lang=lang, have=", ".join(have) or none))
    compiled = {file.with_suffix("") for file in right if file.suffix == ".mo"}
    return sorted(file for file in right if file.suffix == ".mo" or file.with_suffix("") not in compiled)


def _folders(file: PurePath) -> Iterable[str]:
    """The name of the language in …/zh_Hans/LC_MESSAGES/django.mo."""
    parts = file.parts
    return (parts[index - 1] for index, part in enumerate(parts) if part == "LC_MESSAGES" and index)


def _names(file: PurePath) -> set[str]:
    return {_plain_name(part) for part in (*file.parts[:-1], file.stem)}


def _spellings(lang: str) -> set[str]:
    plain = _plain_name(lang)
    return next((group for group in _SAME if plain in group), {plain})


def _plain_name(lang: str) -> str:
    return lang.lower().replace("-", "_")


def _licence(package: Distribution) -> str:
    """The licence the package states: an expression, a short name, or its classifier. A whole licence text is passed over."""
    told = package.metadata
    for header in ("License-Expression", "License"):
        text = (told[header] or "").strip() if header in told else ""
        if text and text != "UNKNOWN" and "\n" not in text:
            return text
    kinds = [kind.split(" :: ")[-1] for kind in told.get_all("Classifier") or () if kind.startswith("License ::")]
    return ", ".join(kinds) or str(Text("see its LICENSE file", "见其 LICENSE 文件"))
