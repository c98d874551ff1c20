"""A run's folder: what it was asked to do, its vocabulary, its measurements, its checkpoints and its result.

config.json   tokenizer.json   metrics.jsonl   checkpoints/   result.json   .lock
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.errors import InputError, IsothermError
from isotherm.language import Text
from isotherm.report.files import write_atomically, write_error
from isotherm.train import config_file
from isotherm.train.config import Config, changed
from isotherm.train.text import read


@dataclass(frozen=True)
class Folder:
    """Where a run lives."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        """The vocabulary's file."""
        return self.path / "tokenizer.json"

    @property
    def metrics(self) -> Path:
        """The file with a line for every measurement."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """The file with what came of it."""
        return self.path / "result.json"

    @property
    def begun(self) -> bool:
        """Whether there is something to go on from: a start that failed leaves a configuration, and no more."""
        return self.metrics.is_file() or any(self.checkpoints.glob("step-*"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the block runs no other process trains here. A process that dies, however it dies, lets go."""
        self._make()
        try:
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise write_error(self.path, error) from error
        with lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(self.path, Text("another process is training here", "另一个进程正在此训练")) from error
            except (ImportError, OSError):
                pass  # a system, or a disk, without locks
            yield

    def admit(self, config: Config, *, resume: bool) -> None:
        """Refuse a new run where one is, and to go on with one that was asked to do something else."""
        if not self.begun:
            return
        if not resume:
            why = Text(
                "holds a run already; --resume continues it, --out names another folder",
                "其中已有一次训练；--resume 可继续它，--out 可另指定文件夹",
            )
            raise InputError(self.path, why)
        different = changed(self.config(), config)
        if different:
            why = Text(
                "the run there was started with other values of: {keys}; --out names another folder",
                "那里的训练开始时用的是另外的值：{keys}；--out 可另指定文件夹",
            )
            raise InputError(self.path, why.format(keys=", ".join(different)))

    def begin(self, config: Config) -> None:
        """Make the folder of a new run."""
        self._make()
        self.ask(config)

    def _make(self) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = Text("the folder cannot be made ({why})", "无法创建文件夹（{why}）")
            raise InputError(self.path, why.format(why=error.strerror or error)) from error

    def ask(self, config: Config) -> None:
        """Write down what the run is asked to do."""
        write_atomically(self.path / "config.json", _json(config_file.to_plain(config)))

    def config(self) -> Config:
        """What the run was asked to do."""
        path = self.path / "config.json"
        if not path.is_file():
            why = Text(
                "no run is there; `isotherm train CONFIG.toml --out {path}` makes one",
                "这里没有训练记录；可用 `isotherm train CONFIG.toml --out {path}` 训练一个",
            )
            raise InputError(self.path, why.format(path=self.path))
        try:
            return config_file.from_plain(json.loads(read(path)))
        except (ValueError, IsothermError) as error:
            why = error.text if isinstance(error, IsothermError) else Text("not JSON", "不是 JSON")
            raise InputError(path, why) from error

    def record(self, line: Mapping[str, Any]) -> None:
        """One more line of metrics."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dict(line)) + "\n")
        except OSError as error:
            raise write_error(self.metrics, error) from error

    def measured(self) -> list[dict[str, Any]]:
        """The lines of metrics; one that a kill cut short is left out."""
        found = []
        for line in read(self.metrics).split(b"\n") if self.metrics.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def rewind(self, step: int) -> None:
        """Forget what was measured after this step: it is about to be measured again."""
        kept = [line for line in self.measured() if line["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write what came of it."""
        write_atomically(self.result, _json(result))


def _json(table: Mapping[str, Any]) -> str:
    return json.dumps(table, ensure_ascii=False, indent=2) + "\n"
