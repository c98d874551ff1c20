"""Results of finished claims, kept between runs.

An entry's key holds everything its numbers depend on: the size, the device, the versions of packages, and a hash of the
code, which is the claim's file (with its parameters and seed) and every file of this package that it reaches.
"""

import ast
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from tempfile import NamedTemporaryFile

from isotherm.errors import IsothermError
from isotherm.record import Timed, from_plain, to_plain
from isotherm.record.files import parse_json

SCHEMA = "isotherm.lab-cache/1"
_SOURCE = Path(__file__).parent.parent
_PACKAGES = ("torch", "numpy", "transformers")


def folder() -> Path:
    """Where entries are kept: `lab` under ISOTHERM_CACHE, else under the user's cache folder."""
    if named := os.environ.get("ISOTHERM_CACHE"):
        return Path(named) / "lab"
    if sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "isotherm" / "lab"


@cache
def versions() -> dict[str, str]:
    """Versions of what a record depends on, as installed; nothing is imported to find out."""
    found = {"python": python_version()}
    for package in ("isotherm", *_PACKAGES):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def code_version(module: str, records: Sequence[Path] = ()) -> str:
    """A hash of a claim's own file, the files of the lab it uses, every part of the package those reach, and the records
    it was given, which show under their paths."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {module}")
    digest = sha256()
    origin = Path(spec.origin)
    for path in sorted(_reached(origin) | set(origin.parent.glob("*.md"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for path in records:
        digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _reached(start: Path) -> set[Path]:
    """The files that a file of the lab reaches by imports: of the lab itself one by one (a package with its data), of any
    other part all files, since parts load their pieces by name."""
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting.extend(found for module in _imports(path) for found in _files(module))
    return seen


@cache
def _imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    if path.suffix != ".py":
        return frozenset()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(name for name in found if name.startswith("isotherm."))


@cache
def _files(module: str) -> tuple[Path, ...]:
    part, *rest = module.split(".")[1:]
    if part == "lab":
        home = _SOURCE.joinpath(part, *rest or ["__init__"])
        file = home.with_suffix(".py")
        return (file,) if file.exists() else tuple(_inside(home))
    return (*_inside(_SOURCE / part), *_SOURCE.glob(f"{part}.py"))


def _inside(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


@dataclass(frozen=True)
class CacheEntry:
    """One place in the cache: a claim at a size, on a device, from one version of the code."""

    claim: str
    size: str
    device: str
    code: str

    @property
    def path(self) -> Path:
        """The entry's file, which may not exist yet."""
        told = json.dumps([SCHEMA, self.claim, self.size, self.device, self.code, versions()])
        return folder() / f"{self._stem}{sha256(told.encode()).hexdigest()[:16]}.json"

    @property
    def _stem(self) -> str:
        return f"{self.claim}.{self.size}.{re.sub(r'[^a-z0-9]', '-', self.device)}."

    def read(self) -> Timed | None:
        """The stored result, or None if there is none or it is damaged."""
        try:
            head, body = self.path.read_text(encoding="utf-8").split("\n", 1)
            if head != _seal(body):
                return None
            timed = from_plain(Timed, parse_json(self.path, body.encode()))
        except (OSError, ValueError, IsothermError):
            return None
        return timed if timed.record.id == self.claim else None

    def write(self, timed: Timed) -> None:
        """Write the entry atomically and delete those of older code. A cache folder that cannot be written is ignored."""
        body = json.dumps(to_plain(timed), ensure_ascii=False, allow_nan=False)
        target = self.path
        temporary: Path | None = None
        with suppress(OSError):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=".new-", delete=False) as file:
                    temporary = Path(file.name)
                    file.write(f"{_seal(body)}\n{body}")
                temporary.replace(target)
            finally:
                if temporary is not None:
                    temporary.unlink(missing_ok=True)
            for older in target.parent.glob(f"{self._stem}*.json"):
                if older != target:
                    older.unlink(missing_ok=True)


def _seal(body: str) -> str:
    """The first line of an entry: a hash of the rest, which shows whether the file was cut or changed."""
    return f"{SCHEMA} {sha256(body.encode()).hexdigest()}"
