"""Checkpoints that are whole or not there, whatever moment the plug is pulled.

A checkpoint is two files: `step-00000200.safetensors`, and a small `step-00000200.json` that holds its sha256 and comes
last. Each is written beside its place, flushed to the disk and renamed. So a manifest that is there speaks of a file that
was whole, and the hash says whether it still is.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

from torch import Tensor

from isotherm.errors import InputError, IsothermError
from isotherm.language import Text
from isotherm.report.files import write_atomically, write_error
from isotherm.train.vocabulary import missing

SCHEMA = "isotherm.checkpoint/1"
KEPT = 2
_NAME = re.compile(r"step-(\d{8,})\.(json|safetensors)$")

Say = Callable[[Text], object]


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: the steps done, every tensor by name, and what is no tensor."""

    step: int
    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write it; then remove all but the last two, and whatever an interrupted writing left behind."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise missing("safetensors") from error
    path = folder / f"step-{checkpoint.step:08d}.safetensors"
    temporary = folder / f".{path.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in checkpoint.tensors.items()}, temporary)
        digest = _flush(temporary)
        temporary.replace(path)
        _flush_folder(folder)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise write_error(path, _cause(error)) from error
    manifest = {"schema": SCHEMA, "step": checkpoint.step, "sha256": digest, "notes": dict(checkpoint.notes)}
    write_atomically(path.with_suffix(".json"), json.dumps(manifest) + "\n")
    _flush_folder(folder)
    _prune(folder)


def latest(folder: Path, say: Say = lambda _: None) -> Checkpoint | None:
    """The last checkpoint that is whole; `say` is told of each later one that is not, and why.

    None where none was ever finished. Where some were, and none is whole any more, that is an error: nothing is thrown
    away in silence.
    """
    names = {match[1] for path in _files(folder) if (match := _NAME.search(path.name))}
    finished = False
    for name in (newest_first := sorted(names, key=int, reverse=True)):
        path = folder / f"step-{name}.safetensors"
        finished = finished or path.with_suffix(".json").exists()
        try:
            return _read(path)
        except InputError as error:
            before = Text("", "") if name == newest_first[-1] else Text("; the one before it is used", "；改用前一个")
            say(Text("{why}{before}", "{why}{before}").format(why=error.text, before=before))
    if finished:
        raise InputError(folder, Text("no checkpoint in it is whole", "其中没有完整的检查点"))
    return None


def _read(path: Path) -> Checkpoint:
    try:
        manifest = json.loads(path.with_suffix(".json").read_bytes())
        step, digest, notes = int(manifest["step"]), manifest["sha256"], manifest["notes"]
    except FileNotFoundError as error:
        raise InputError(path.name, Text("this checkpoint was not finished", "这个检查点没有写完")) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(path.name, Text("its manifest cannot be read", "其清单无法读取")) from error
    if manifest.get("schema") != SCHEMA:
        why = Text("of schema {got}; this version reads {ours}", "格式为 {got}；此版本读取 {ours}")
        raise IsothermError(
            Text("{path}: {why}", "{path}：{why}").format(
                path=path, why=why.format(got=manifest.get("schema"), ours=SCHEMA)
            )
        )
    try:
        with path.open("rb") as file:
            found = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(path.name, Text("this checkpoint is not there any more", "这个检查点已不存在")) from error
    if found != digest:
        raise InputError(
            path.name, Text("this checkpoint is damaged (its sha256 differs)", "这个检查点已损坏（sha256 不符）")
        )
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise missing("safetensors") from error
    return Checkpoint(step, load_file(path), notes)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _prune(folder: Path) -> None:
    """A manifest goes before its file, so that no manifest ever speaks of a file that is gone."""
    steps = sorted(
        (path.stem for path in _files(folder) if _NAME.search(path.name) and path.suffix == ".json"), reverse=True
    )
    for path in sorted(_files(folder), key=lambda path: path.suffix):  # .json, then .part, then .safetensors
        if path.name.endswith(".part") or (_NAME.search(path.name) and path.stem not in steps[:KEPT]):
            with suppress(OSError):
                path.unlink()


def _cause(error: Exception) -> OSError | Text:
    """What the system said; safetensors has it in words only: «… (os error 28)»."""
    if isinstance(error, OSError):
        return error
    code = re.search(r"os error (\d+)", str(error))
    return OSError(int(code[1]), os.strerror(int(code[1]))) if code else Text(str(error), str(error))


def _flush(path: Path) -> str:
    """To the disk, open to whoever may read the folder (safetensors writes for the owner alone); and its sha256."""
    path.chmod(path.parent.stat().st_mode & 0o666)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        return file_digest(file, "sha256").hexdigest()


def _flush_folder(folder: Path) -> None:
    """So that a rename outlives a power cut; where a folder cannot be opened (Windows) there is nothing to do."""
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
