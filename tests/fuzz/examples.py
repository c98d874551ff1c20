"""Valid files to start from. Each set is made once and held in memory as {path: bytes}."""

import json
import tempfile
import tomllib
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from isotherm.lab.cache import CacheEntry, code_version
from isotherm.lab.claims import module_of
from isotherm.record import to_plain
from tests.report import claims, records
from tests.train.corpora import SMALL, install, write_mo, write_tsv

CACHE = "cache"
"""ISOTHERM_CACHE: a folder beside the files of the case."""
CLAIM = "a-a-2a"
"""A claim that reaches few files, whose hash names its entry in the cache."""
ROOT = Path(__file__).parent.parent.parent
RUN = """
[run]
steps = 4
batch_tokens = 160
log_every = 2
evaluate_every = 2
checkpoint_every = 2
samples = 2
beam = 2
device = "cpu"
"""


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@cache
def reports() -> tuple[Any, ...]:
    """Reports of `isotherm check` as plain trees."""
    found = [records.gpt2(), records.ugly(), records.bare()]
    return tuple(shortened(json.loads(json.dumps(to_plain(record)))) for record in found)


def shortened(tree: Any) -> Any:
    """The tree with at most two items of each list, which makes a reader quick and loses nothing."""
    if isinstance(tree, dict):
        return {key: shortened(child) for key, child in tree.items()}
    return [shortened(child) for child in tree[:2]] if isinstance(tree, list) else tree


@cache
def configurations() -> tuple[Any, ...]:
    """The configurations of this repository as plain trees."""
    return tuple(tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "configs").glob("*.toml")))


@cache
def specifications() -> tuple[Any, ...]:
    """The sweeps of this repository as plain trees."""
    return tuple(tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "sweeps").glob("*.toml")))


@cache
def recorded() -> Any:
    """A recorded sweep that claims can show, with few outcomes."""
    plain = json.loads((ROOT / "src/isotherm/lab/recorded/attention-kind.json").read_text(encoding="utf-8"))
    plain["outcomes"] = [one for one in plain["outcomes"] if one["trial"]["model"] == "recurrent"][:3]
    return {**shortened(plain), "axes": plain["axes"], "outcomes": [shortened(one) for one in plain["outcomes"]]}


@cache
def site() -> dict[str, bytes]:
    """An installed package with message catalogues, compiled and as text."""
    with tempfile.TemporaryDirectory() as made:
        where = Path(made)
        files = [write_mo(where / "p/locale/zh_Hans/LC_MESSAGES/d.mo", {"": "charset=UTF-8", "Open": "打开"})]
        text = where / "p/locale/zh_Hans/LC_MESSAGES/e.po"
        text.write_text(
            'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "Close"\nmsgstr "关闭"\n'
        )
        install(where, "p", [*files, text], "License-Expression: MIT\n")
        return {f"site/{name}": data for name, data in files_of(where).items()}


@cache
def trained() -> dict[str, bytes]:
    """A finished run in `run/`, with its configuration in `c.toml` and its corpus."""
    from isotherm.train.config import load
    from isotherm.train.loop import train

    with tempfile.TemporaryDirectory() as made, chdir(made):
        write_tsv(Path("pairs.tsv"))
        Path("c.toml").write_text(SMALL.format(path="pairs.tsv") + RUN, encoding="utf-8")
        train(load("c.toml"), Path("run"), quiet=True)
        return files_of(Path())


SWEEP = """
title = "one trial"
[report]
x = "lr"
series = ["rule"]
[base]
model = "decoder"
task = "copy"
width = 8
heads = 2
layers = 1
vocabulary = 8
length = 2
batch = 1
steps = 1
warmup = 1
[grid]
rule = ["none", "1/d"]
"""


@cache
def swept() -> dict[str, bytes]:
    """A finished small sweep in `store/`, with its specification in `s.toml`."""
    from isotherm.cli import run

    with tempfile.TemporaryDirectory() as made, chdir(made):
        Path("s.toml").write_text(SWEEP, encoding="utf-8")
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            run(["sweep", "s.toml", "--store", "store", "--workers", "1"])
        return {name: data for name, data in files_of(Path()).items() if not name.endswith((".png", ".svg"))}


@cache
def kept() -> Any:
    """A claim's record as a plain tree, as the cache keeps it."""
    return shortened(json.loads(json.dumps(to_plain(claims.timed(CLAIM)))))


@cache
def kept_path() -> str:
    """Where the claim's entry lies below the cache folder."""
    entry = CacheEntry(CLAIM, "quick", "cpu", code_version(module_of(CLAIM)))
    return f"lab/{entry.path.name}"


@cache
def model() -> dict[str, bytes]:
    """A BERT in `model/`, as small as can be."""
    from transformers import BertConfig, BertModel

    from tests.checkup.folders import bert_folder

    with tempfile.TemporaryDirectory() as made:
        folder = bert_folder(Path(made) / "m")
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        BertModel(BertConfig(vocab_size=14, max_position_embeddings=32, **sizes)).save_pretrained(folder)
        return {f"model/{name}": data for name, data in files_of(folder).items()}


@cache
def watched() -> tuple[bytes, Any]:
    """A run that was watched: its store, and its record as a plain tree."""
    from tests.monitor.runs import run

    with tempfile.TemporaryDirectory() as made:
        record = run(Path(made) / "run.db", steps=range(0, 3000, 100))
        return (Path(made) / "run.db").read_bytes(), json.loads(json.dumps(to_plain(record)))


BASES = {"site": site, "trained": trained, "swept": swept, "model": model}


def environment(home: str) -> dict[str, str]:
    """Variables that keep libraries off the network and out of the user's own folders."""
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "ISOTHERM_CACHE": CACHE,
        "HF_HOME": f"{home}/hf",
    }
