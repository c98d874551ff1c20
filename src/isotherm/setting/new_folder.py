"""A new model folder, made beside its place and moved there whole: nothing is half-written, and nothing is lost."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex

from isotherm.errors import ArgumentError, IsothermError
from isotherm.language import Text
from isotherm.report.files import write_error

OTHER_WEIGHTS = (
    "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.ot", "*.tflite",
    "consolidated*.safetensors", "onnx", "openvino", "coreml", "original", ".git", ".cache", "__pycache__",
)  # fmt: skip
"""The same weights in other formats, which would stay as they were, and what version control keeps."""
EXISTS = Text("{out} exists; --force (force=True) replaces it", "{out} 已存在；--force（force=True）可替换它")
NO_MODEL = Text(
    "it holds files and no model, so --force does not replace it", "其中有文件却没有模型，--force 不会替换它"
)
OF_MODELS = ("config.json", "modules.json", "model_index.json")
"""A model's folder has one of these."""
NO_ROOM = Text(
    "cannot write {out}: {needed:.3g} MiB are needed, and {there:.3g} are free",
    "无法写入 {out}：需要 {needed:.3g} MiB，仅剩 {there:.3g} MiB",
)
APART = Text("a folder outside of the model's own", "模型自身文件夹之外的文件夹")


def check_place(out: Path, source: Path, *, force: bool) -> None:
    """Refuse a place that is taken, is the model's own, or has too little room, before any work is done."""
    target, own = out.resolve(), source.resolve()
    if target == own or own in target.parents or target in own.parents:
        raise ArgumentError("out", APART, got=str(out))
    if os.path.lexists(out) and not force:
        raise IsothermError(EXISTS.format(out=out))
    if out.exists() and not out.is_dir():
        raise write_error(out, Text("it is not a folder", "它不是文件夹"))
    if out.exists() and any(out.iterdir()) and not any((out / name).is_file() for name in OF_MODELS):
        raise write_error(out, NO_MODEL)
    if not target.parent.is_dir():
        raise write_error(out, Text("the folder around it does not exist", "其所在的文件夹不存在"))
    needed, there = _size(source), shutil.disk_usage(target.parent).free
    if needed > there:
        raise IsothermError(NO_ROOM.format(out=out, needed=needed / 2**20, there=there / 2**20))


@contextmanager
def copied(source: Path, part: Path, out: Path) -> Iterator[Path]:
    """A copy of a folder, of which `part` holds the model, without the same weights in other formats.

    At the end of the block it becomes `out`, and what was there before is removed. After an error it is gone, and what was
    there before stays.
    """
    target = out.resolve()
    beside = target.with_name(f".{target.name}.{token_hex(4)}.part")
    try:
        try:
            shutil.copytree(
                source,
                beside,
                ignore=lambda at, names: _left(Path(at), names, part),
                copy_function=partial(_copy, out),
                ignore_dangling_symlinks=True,
            )
            yield beside
            _move(beside, target)
        except shutil.Error as error:
            first = error.args[0][0]
            raise write_error(out, Text(str(first[2]), str(first[2]))) from None
        except OSError as error:
            raise write_error(out, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _left(folder: Path, names: list[str], part: Path) -> set[str]:
    """What is not copied of a folder. A link to a folder around it would never end."""
    links = {
        name
        for name in names
        if (folder / name).is_symlink() and folder.resolve().is_relative_to((folder / name).resolve())
    }
    return links | (shutil.ignore_patterns(*OTHER_WEIGHTS)(str(folder), names) if folder == part else set())


def _copy(out: Path, source: str, target: str) -> None:
    """Copy a file (of a link, its target) with its mode, but writable by its owner: a cache's files may be read-only. A disk
    that is full ends all copying at once."""
    try:
        shutil.copyfile(source, target)
        os.chmod(target, os.stat(source).st_mode | 0o200)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise write_error(out, error) from error
        raise


def _move(beside: Path, target: Path) -> None:
    """Put a finished folder in its place."""
    if not target.exists():
        beside.rename(target)
        return
    before = target.with_name(f".{target.name}.{token_hex(4)}.old")
    try:
        target.rename(before)
        beside.rename(target)
    except BaseException:  # Ctrl-C, too
        if before.exists() and not target.exists():
            before.rename(target)
        raise
    finally:
        if target.exists():
            shutil.rmtree(before, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
