"""Checkpoints that are whole or not there, whenever the power fails.

A checkpoint is two files: `step-00000200.safetensors` and its manifest `step-00000200.json`, which holds the sha256 of the
first and a seal over itself. Each file is written beside its place, flushed to the disk and renamed, the manifest last. So a
manifest that is there describes a file that was whole, and the hashes say whether both still are.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from torch import Tensor

from isotherm.errors import InputError, IsothermError
from isotherm.language import Text
from isotherm.record.files import checked, parse_json, read_bytes, sealed, unsealed
from isotherm.record.plain import short, to_plain
from isotherm.report.files import write_atomically, write_error
from isotherm.train.vocabulary import missing

SCHEMA = "isotherm.checkpoint/1"
KEPT = 2
_NAME = re.compile(r"step-(\d{8,})\.(json|safetensors)$")

Say = Callable[[Text], object]


@dataclass(frozen=True)
class Notes:
    """What a checkpoint holds besides tensors: hashes of vocabulary and data, and losses since the last line of metrics."""

    vocabulary: str | None = None
    data: str = ""
    processes: int = 1
    losses: tuple[float, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: the steps done, every tensor by name, and the notes."""

    step: int
    tensors: Mapping[str, Tensor]
    notes: Notes


@dataclass(frozen=True)
class _Manifest:
    schema: str
    step: int
    sha256: str
    notes: Notes


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; then remove all but the last two, and whatever an interrupted save left behind."""
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
    manifest = to_plain(_Manifest(SCHEMA, checkpoint.step, digest, checkpoint.notes))
    write_atomically(path.with_suffix(".json"), json.dumps(sealed(manifest)) + "\n")
    _flush_folder(folder)
    _prune(folder)


def latest(folder: Path, say: Say = lambda _: None) -> Checkpoint | None:
    """The last checkpoint that is whole, or None if none was ever finished; `say` is told of each later one that is damaged.

    Where some were finished and none is whole any more, an `InputError` says so.
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
    manifest = _read_manifest(path.with_suffix(".json"))
    try:
        with path.open("rb") as file:
            found = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(path.name, Text("this checkpoint is not there any more", "这个检查点已不存在")) from error
    if found != manifest.sha256:
        raise InputError(
            path.name, Text("this checkpoint is damaged (its sha256 differs)", "这个检查点已损坏（sha256 不符）")
        )
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise missing("safetensors") from error
    try:
        return Checkpoint(manifest.step, load_file(path), manifest.notes)
    except SafetensorError as error:
        raise InputError(path.name, Text("not a safetensors file", "不是 safetensors 文件")) from error


def _read_manifest(path: Path) -> _Manifest:
    """The manifest. It must be sealed, unless it is from a version that sealed none, and of the step its name says."""
    if not path.exists():
        raise InputError(path.name, Text("this checkpoint was not finished", "这个检查点没有写完"))
    plain = parse_json(path.name, read_bytes(path))
    schema = plain.get("schema", SCHEMA) if isinstance(plain, dict) else SCHEMA
    if schema != SCHEMA:
        why = Text("{path}: of schema {got}; this version reads {ours}", "{path}：格式为 {got}；此版本读取 {ours}")
        raise IsothermError(why.format(path=path, got=short(schema).strip("'"), ours=SCHEMA))
    manifest = checked(_Manifest, path.name, unsealed(path.name, plain))
    if path.stem != f"step-{manifest.step:08d}":
        why = Text("it says step {step}", "其中写的是第 {step} 步").format(step=manifest.step)
        raise InputError(path.name, why)
    return manifest


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _prune(folder: Path) -> None:
    """Remove a manifest before its file, so that no manifest ever describes a file that is gone."""
    steps = sorted(
        (path.stem for path in _files(folder) if _NAME.search(path.name) and path.suffix == ".json"), reverse=True
    )
    for path in sorted(_files(folder), key=lambda path: path.suffix):  # .json, then .part, then .safetensors
        if path.name.endswith(".part") or (_NAME.search(path.name) and path.stem not in steps[:KEPT]):
            with suppress(OSError):
                path.unlink()


def _cause(error: Exception) -> OSError | Text:
    """The system's error. safetensors reports it in words only: «… (os error 28)»."""
    if isinstance(error, OSError):
        return error
    code = re.search(r"os error (\d+)", str(error))
    return OSError(int(code[1]), os.strerror(int(code[1]))) if code else Text(str(error), str(error))


def _flush(path: Path) -> str:
    """Flush a file to the disk, let whoever may read the folder read it, and return its sha256.

    safetensors writes files that only their owner may read.
    """
    path.chmod(path.parent.stat().st_mode & 0o666)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        return file_digest(file, "sha256").hexdigest()


def _flush_folder(folder: Path) -> None:
    """Make a rename outlive a power cut. Windows cannot open a folder, and needs no flush."""
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
