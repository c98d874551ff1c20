"""Small texts to train on, and the smallest run that still does everything a large one does."""

import json
import struct
from pathlib import Path

from isotherm.record import plain
from isotherm.train.config import Config

ENGLISH = ("red", "blue", "old", "new", "small", "large", "good", "warm")
CHINESE = ("红", "蓝", "旧", "新", "小", "大", "好", "暖")
THINGS = (("cat", "猫"), ("dog", "狗"), ("book", "书"), ("house", "房子"), ("tea", "茶"))


SMALL = """
[data]
path = "{path}"
vocabulary = 300
length = 40
held_out = 0.2
[model]
width = 16
heads = 2
layers = 1
"""
"""The beginning of a configuration file; what it does with these is each test's own."""


def from_plain(table: object) -> Config:
    """The configuration in plain tables, read as a file's would be."""
    return plain.from_plain(Config, table, where="", strict=True)


def pairs() -> list[tuple[str, str]]:
    """Every adjective with every thing, in English and Chinese: 40 pairs."""
    words = zip(ENGLISH, CHINESE, strict=True)
    return [(f"the {a} {thing}", f"{b}的{other}") for a, b in words for thing, other in THINGS]


def write_tsv(path: Path) -> Path:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs()), encoding="utf-8")
    return path


def tiny(path: Path, **changes: object) -> Config:
    """A run of a second or so; a change is named as in `run__steps=5`."""
    table: dict[str, dict[str, object]] = {
        "data": {"path": str(path), "vocabulary": 300, "length": 40, "held_out": 0.2},
        "model": {"width": 16, "heads": 2, "layers": 1, "hidden": 32, "dropout": 0.1},
        "optimizer": {"lr": 0.01, "warmup": 5, "smoothing": 0.0},
        "run": {
            "steps": 23,
            "batch_tokens": 160,
            "log_every": 3,
            "evaluate_every": 10,
            "checkpoint_every": 7,
            "samples": 2,
            "beam": 2,
            "device": "cpu",
        },
    }
    for name, value in changes.items():
        section, key = name.split("__")
        table[section][key] = value
    if table["data"].get("kind", "tsv") not in ("tsv", "jsonl", "text"):
        del table["data"]["path"]
    return from_plain(table)


def learned(folder: Path) -> list[dict[str, object]]:
    """A run's measurements, without the ones a clock made."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def last_state(folder: Path) -> tuple[int, str]:
    """The last checkpoint's step, and the hash of everything in it."""
    manifest = json.loads(max((folder / "checkpoints").glob("*.json")).read_text())
    return manifest["step"], manifest["sha256"]


def write_mo(path: Path, messages: dict[str, str], order: str = "<") -> Path:
    """A compiled gettext catalogue, as msgfmt writes it."""
    keys, values = [key.encode() for key in messages], [value.encode() for value in messages.values()]
    place = 28 + 16 * len(messages)
    tables, body = [], b""
    for texts in (keys, values):
        for text in texts:
            tables.append(struct.pack(f"{order}2I", len(text), place + len(body)))
            body += text + b"\0"
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(messages), 28, 28 + 8 * len(messages), 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b"".join(tables) + body)
    return path


def install(where: Path, name: str, files: list[Path], metadata: str) -> None:
    """What pip leaves of a package: its metadata and the list of its files."""
    info = where / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n{metadata}", encoding="utf-8")
    listed = [*(path.relative_to(where).as_posix() for path in files), f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in listed), encoding="utf-8")
