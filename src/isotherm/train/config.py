"""A run's configuration: four tables, each key with its default and its bounds.

docs/train.md says what each key means, and docs/train.zh.md in Chinese; a test compares their tables with these.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from isotherm.errors import ArgumentError, named
from isotherm.language import Text
from isotherm.record.files import checked
from isotherm.record.plain import one_of
from isotherm.train.text_files import read_toml

TASKS = ("copy", "reverse", "recall", "align")
PARALLEL = ("tsv", "jsonl", "files", "gettext")
NEEDED = {
    "tsv": ("path",),
    "jsonl": ("path",),
    "text": ("path",),
    "files": ("source", "target"),
    "gettext": ("packages",),
}
MOST_PARAMETERS = 10**11
OPTIONAL = {"tsv": ("columns",), "jsonl": ("columns",), "gettext": ("where",)}


def key(default: Any, *, least: float | None = None, most: float | None = None, free: bool = False) -> Any:
    """A key of the configuration. A `free` key may differ in a resumed run: the training computes the same."""
    return field(default=default, metadata={"least": least, "most": most, "free": free})


@dataclass(frozen=True)
class DataSettings:
    """Where the examples come from."""

    kind: Literal["tsv", "jsonl", "files", "gettext", "text", "copy", "reverse", "recall", "align"] = key("tsv")
    path: str = key("")
    columns: tuple[str, ...] = key(())
    source: str = key("")
    target: str = key("")
    packages: tuple[str, ...] = key(())
    where: str = key("")
    lang: str = key("zh_Hans")
    held_out: float = key(0.05, least=0.0, most=0.5)
    vocabulary: int = key(4000, least=6, most=2**24)
    length: int = key(64, least=1, most=2**17)


@dataclass(frozen=True)
class ModelSettings:
    """The model."""

    kind: Literal["transformer", "decoder", "recurrent", "bert"] = key("transformer")
    rule: str = key("1/sqrt(d)")
    width: int = key(128, least=1, most=2**17)
    heads: int = key(4, least=1, most=2**14)
    head_dim: int | None = key(None, least=1, most=2**17)
    layers: int = key(2, least=1, most=1024)
    hidden: int | None = key(None, least=1, most=2**20)
    dropout: float = key(0.1, least=0.0, most=0.9)
    norm: Literal["pre", "post"] = key("pre")

    def __post_init__(self) -> None:
        if self.kind == "recurrent" and self.rule == "1/sqrt(d)":
            object.__setattr__(self, "rule", "scaled-dot")  # what 1/√d is called there


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its learning rate."""

    lr: float = key(1e-3, least=0.0, most=1e30)
    schedule: Literal["noam", "cosine", "constant"] = key("noam")
    warmup: int = key(100, least=0, most=10**9)
    beta1: float = key(0.9, least=0.0, most=0.9999)
    beta2: float = key(0.98, least=0.0, most=0.9999)
    eps: float = key(1e-9, least=0.0, most=1.0)
    weight_decay: float = key(0.01, least=0.0, most=1e6)
    clip: float = key(1.0, least=0.0, most=1e30)
    smoothing: float = key(0.1, least=0.0, most=0.9)


@dataclass(frozen=True)
class RunSettings:
    """How long the run is, how much it computes at once and where, and how often it reports."""

    steps: int = key(1000, least=1, most=10**9, free=True)
    batch_tokens: int = key(2048, least=1, most=2**30)
    accumulate: int = key(1, least=1, most=2**20, free=True)
    precision: Literal["float32", "bfloat16", "float16"] = key("float32")
    compile: bool = key(False)
    device: str = key("auto", free=True)
    threads: int = key(1, least=1, most=256, free=True)
    seed: int = key(0, least=0, most=2**62)
    log_every: int = key(10, least=1, most=10**9, free=True)
    evaluate_every: int = key(100, least=0, most=10**9, free=True)
    evaluate_batches: int = key(50, least=1, most=10**9, free=True)
    checkpoint_every: int = key(200, least=0, most=10**9, free=True)
    watch_every: int = key(50, least=0, most=10**9, free=True)
    samples: int = key(200, least=0, most=10**9, free=True)
    beam: int = key(4, least=1, most=1024, free=True)


@dataclass(frozen=True)
class Config:
    """A whole configuration. The checks here are those that concern several keys."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        _check_data(self.data)
        translates = self.model.kind in ("transformer", "recurrent")
        if self.data.kind in PARALLEL and not translates:
            _refuse(
                "model.kind",
                Text("transformer or recurrent for parallel text", "平行文本须为 transformer 或 recurrent"),
                self.model.kind,
            )
        if self.data.kind == "text" and translates:
            _refuse("model.kind", Text("decoder or bert for plain text", "纯文本须为 decoder 或 bert"), self.model.kind)
        if self.data.kind in TASKS and self.model.kind == "bert":
            _refuse(
                "model.kind",
                Text("transformer, recurrent or decoder for a task", "任务须为 transformer、recurrent 或 decoder"),
                self.model.kind,
            )
        if self.model.head_dim is None and self.model.width % self.model.heads:
            _refuse(
                "model.width",
                Text("a multiple of model.heads, or a model.head_dim", "model.heads 的倍数，或给出 model.head_dim"),
                self.model.width,
            )
        if parameters(self.model, self.data.vocabulary) > MOST_PARAMETERS:
            most = Text("at most {n:.0e} parameters in all", "参数总数不超过 {n:.0e}").format(n=MOST_PARAMETERS)
            _refuse("model", most, f"{parameters(self.model, self.data.vocabulary):.0e}")
        _check_rule(self.model)


def load(path: str | Path) -> Config:
    """The configuration in a TOML file."""
    table, _ = read_toml(path)
    return checked(Config, path, table, strict=True)


def to_plain(config: Config) -> dict[str, Any]:
    """The configuration as plain tables, keys without a value left out, for JSON."""
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in asdict(config).items()
    }


def parameters(model: ModelSettings, vocabulary: int) -> int:
    """About how many parameters a model has: its matrices, of which an encoder and a decoder have three sets of attention."""
    inner = model.width if model.head_dim is None else model.heads * model.head_dim
    layer = 12 * model.width * inner + 4 * model.width * (model.hidden or 4 * model.width)
    return model.layers * layer + vocabulary * model.width


def changed(before: Config, after: Config) -> list[str]:
    """The keys that differ and change what the training computes."""
    return [
        f"{table.name}.{item.name}"
        for table in fields(Config)
        for item in fields(table.type)  # type: ignore[arg-type]
        if not item.metadata["free"]
        and getattr(getattr(before, table.name), item.name) != getattr(getattr(after, table.name), item.name)
    ]


def _check_rule(model: ModelSettings) -> None:
    if model.kind != "recurrent":
        from isotherm.scale import parse

        with named(scale="model.rule"):
            parse(model.rule)
        return
    from isotherm.models.recurrent import ScoreKind

    when = Text(" for model.kind = recurrent", "（model.kind = recurrent 时）")
    one_of("model.rule", model.rule, get_args(ScoreKind), when=when)


def _check_data(data: DataSettings) -> None:
    needed, optional = NEEDED.get(data.kind, ()), OPTIONAL.get(data.kind, ())
    for name in ("path", "columns", "source", "target", "packages", "where"):
        given = getattr(data, name)
        expected = Text("a value for data.kind = {kind}", "data.kind = {kind} 时必须给出")
        if given and name not in (*needed, *optional):
            expected = Text("nothing for data.kind = {kind}", "空（data.kind = {kind} 时不用）")
        elif given or name not in needed:
            continue
        _refuse(f"data.{name}", expected.format(kind=data.kind), repr(given))
    if data.columns and len(data.columns) != 2:
        _refuse("data.columns", Text("two names", "两个名称"), list(data.columns))
    if data.kind not in TASKS and data.held_out == 0:
        _refuse(
            "data.held_out",
            Text("above 0: held-out text is how learning is measured", "大于 0：学习效果以留出文本衡量"),
            0,
        )


def _refuse(name: str, expected: Text, got: object) -> None:
    raise ArgumentError(name, expected, got=got)
