"""A run's folder: what it was asked to do, its vocabulary, its measurements, its checkpoints and its result.

config.json   tokenizer.json   metrics.jsonl   watch.db   checkpoints/   result.json   .lock
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

from isotherm.errors import InputError, IsothermError
from isotherm.language import Text
from isotherm.record.files import checked, parse_json, read_bytes
from isotherm.record.plain import bounded
from isotherm.report.files import write_atomically, write_error
from isotherm.train.config import Config, changed, to_plain


@dataclass(frozen=True)
class _MetricsLine:
    """What every line of metrics has; the rest depends on its kind."""

    kind: Literal["train", "held_out"]
    loss: float | None
    step: int = bounded(MISSING, 0, 10**9)
    accuracy: float | None = None
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    lr: float | None = None
    gate_p50: float | None = None
    gate_p10: float | None = None
    max_logit: float | None = None


OTHER = Text(
    "its config.json is not that of a run and would be overwritten; --out names another folder",
    "其中的 config.json 不属于训练，会被覆盖；--out 可另指定文件夹",
)


class RunFolder:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.tokenizer = path / "tokenizer.json"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.watched = path / "watch.db"

    @property
    def begun(self) -> bool:
        """Whether the run has trained at all: a start that failed leaves a configuration, and no more."""
        return os.path.exists(self.metrics) or any(self.checkpoints.glob("step-*"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training here while the block runs. The lock goes with the process that holds it."""
        self._refuse_other()
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
        self._refuse_other()
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

    def _refuse_other(self) -> None:
        """Refuse a folder of something else, such as a model of transformers, whose files of the same names would be lost."""
        if self.begun or not os.path.lexists(self.path / "config.json"):
            return
        try:
            self.config()
        except IsothermError as error:
            raise InputError(self.path, OTHER) from error

    def _make(self) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = Text("the folder cannot be made ({why})", "无法创建文件夹（{why}）")
            raise InputError(self.path, why.format(why=error.strerror or error)) from error

    def write_config(self, config: Config) -> None:
        """Write down what the run is asked to do."""
        self._make()
        write_atomically(self.path / "config.json", _json(to_plain(config)))

    def config(self) -> Config:
        """What the run was asked to do."""
        path = self.path / "config.json"
        if not os.path.isfile(path):
            why = Text(
                "no run is there; `isotherm train CONFIG.toml --out {path}` makes one",
                "这里没有训练记录；可用 `isotherm train CONFIG.toml --out {path}` 训练一个",
            )
            raise InputError(self.path, why.format(path=self.path))
        return checked(Config, path, parse_json(path, read_bytes(path)), strict=True)

    def record(self, line: Mapping[str, Any]) -> None:
        """One more line of metrics."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dict(line)) + "\n")
        except OSError as error:
            raise write_error(self.metrics, error) from error

    def measured(self) -> list[dict[str, Any]]:
        """The lines of metrics, without the last one if a kill cut it short."""
        found = []
        lines = read_bytes(self.metrics).rstrip(b"\0\n").split(b"\n") if self.metrics.exists() else []
        for number, line in enumerate(lines, 1):
            name = Text("{path}: line {n}", "{path}：第 {n} 行").format(path=self.metrics, n=number)
            try:
                plain = parse_json(name, line)
            except InputError:
                if number == len(lines):
                    break
                raise
            checked(_MetricsLine, name, plain)
            found.append(plain)
        return found

    def rewind(self, step: int) -> None:
        """Drop the measurements after this step: they are about to be made again."""
        kept = [line for line in self.measured() if line["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        write_atomically(self.result, _json(result))


def _json(table: Mapping[str, Any]) -> str:
    return json.dumps(table, ensure_ascii=False, indent=2) + "\n"
