"""A run's configuration: four tables, each key with its default, its bounds and a sentence about it in both languages.

The tables of keys in docs/train.md are made from these sentences; a test compares them.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from isotherm.errors import ArgumentError, named
from isotherm.language import Text
from isotherm.record.plain import one_of

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


def key(default: Any, text: Text, *, least: float | None = None, most: float | None = None, free: bool = False) -> Any:
    """A key of the configuration. A `free` key may differ in a resumed run: the training computes the same."""
    return field(default=default, metadata={"text": text, "least": least, "most": most, "free": free})


@dataclass(frozen=True)
class DataSettings:
    """Where the examples come from."""

    kind: Literal["tsv", "jsonl", "files", "gettext", "text", "copy", "reverse", "recall", "align"] = key(
        "tsv",
        Text(
            "where examples come from: parallel text (tsv, jsonl, files, gettext), plain text, or a task made on the fly",
            "样本来源：平行文本（tsv、jsonl、files、gettext）、纯文本（text），或随训练生成的任务",
        ),
    )
    path: str = key("", Text("the file, for tsv, jsonl and text", "文件路径，用于 tsv、jsonl 与 text"))
    columns: tuple[str, ...] = key(
        (),
        Text(
            "the two columns (tsv with a header line) or fields (jsonl) to read",
            "要读取的两列（带表头的 tsv）或两个字段（jsonl）",
        ),
    )
    source: str = key("", Text("for files: the sentences, one a line", "files 用：原文，每行一句"))
    target: str = key("", Text("for files: their translations, one a line", "files 用：译文，每行一句"))
    packages: tuple[str, ...] = key(
        (), Text("for gettext: packages whose catalogues are read", "gettext 用：读取哪些软件包的目录文件")
    )
    where: str = key("", Text("for gettext: the folder they are installed in", "gettext 用：软件包所在的文件夹"))
    lang: str = key(
        "zh_Hans",
        Text("language of the translations; also picks BLEU's tokenizer", "译文的语言；也决定 BLEU 的分词方式"),
    )
    held_out: float = key(
        0.05, Text("share of the examples held out for measuring", "留作评测的样本比例"), least=0.0, most=0.5
    )
    vocabulary: int = key(
        4000, Text("entries of the vocabulary, special ids included", "词表大小，含特殊标记"), least=6, most=2**24
    )
    length: int = key(
        64,
        Text(
            "tokens of the longest sentence (longer pairs are left out), of a block of text, words of a task",
            "最长句子的词元数（更长的句对不用）、文本块的词元数，或任务的词数",
        ),
        least=1,
        most=2**17,
    )


@dataclass(frozen=True)
class ModelSettings:
    """The model."""

    kind: Literal["transformer", "decoder", "recurrent", "bert"] = key(
        "transformer",
        Text(
            "transformer and recurrent translate, decoder continues text, bert fills gaps",
            "transformer 与 recurrent 翻译，decoder 续写文本，bert 填空",
        ),
    )
    rule: str = key(
        "1/sqrt(d)",
        Text(
            "scale rule (`isotherm rules`); for recurrent its score: additive, multiplicative, dot or scaled-dot (default)",
            "缩放规则（见 `isotherm rules`）；recurrent 则为其打分方式：additive、multiplicative、dot 或 scaled-dot（默认）",
        ),
    )
    width: int = key(128, Text("features of the residual stream", "残差流的宽度"), least=1, most=2**17)
    heads: int = key(4, Text("attention heads", "注意力头数"), least=1, most=2**14)
    head_dim: int | None = key(
        None, Text("size of a head; width/heads if not given", "每头维数；不给则为 width/heads"), least=1, most=2**17
    )
    layers: int = key(2, Text("layers, of encoder and decoder each", "层数（编码器与解码器各自）"), least=1, most=1024)
    hidden: int | None = key(
        None,
        Text("width of the feed-forward layer; 4·width if not given", "前馈层宽度；不给则为 4·width"),
        least=1,
        most=2**20,
    )
    dropout: float = key(
        0.1, Text("share of activations dropped in training", "训练时随机置零的比例"), least=0.0, most=0.9
    )
    norm: Literal["pre", "post"] = key(
        "pre", Text("layer norm before or after each block", "层归一化在各模块之前或之后")
    )

    def __post_init__(self) -> None:
        if self.kind == "recurrent" and self.rule == "1/sqrt(d)":
            object.__setattr__(self, "rule", "scaled-dot")  # what 1/√d is called there


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its learning rate."""

    lr: float = key(1e-3, Text("the largest learning rate", "学习率的最大值"), least=0.0, most=1e30)
    schedule: Literal["noam", "cosine", "constant"] = key(
        "noam",
        Text(
            "after the warm-up: falls as 1/√step (noam), as a cosine to a tenth at the last step, or stays",
            "预热之后：按 1/√step 下降（noam）、按余弦降至末步的十分之一（cosine），或不变（constant）",
        ),
    )
    warmup: int = key(
        100, Text("steps over which the rate rises from 0", "学习率从 0 上升所用的步数"), least=0, most=10**9
    )
    beta1: float = key(0.9, Text("AdamW's memory of the gradient", "AdamW 对梯度的记忆"), least=0.0, most=0.9999)
    beta2: float = key(0.98, Text("AdamW's memory of its square", "AdamW 对梯度平方的记忆"), least=0.0, most=0.9999)
    eps: float = key(1e-9, Text("AdamW's floor of the denominator", "AdamW 分母的下限"), least=0.0, most=1.0)
    weight_decay: float = key(
        0.01, Text("decay of matrices; vectors have none", "矩阵的权重衰减；向量没有"), least=0.0, most=1e6
    )
    clip: float = key(
        1.0, Text("largest norm of the gradient; 0 for no limit", "梯度范数的上限；0 为不限"), least=0.0, most=1e30
    )
    smoothing: float = key(0.1, Text("label smoothing", "标签平滑"), least=0.0, most=0.9)


@dataclass(frozen=True)
class RunSettings:
    """How long the run is, how much it computes at once and where, and how often it reports."""

    steps: int = key(1000, Text("optimizer steps", "优化步数"), least=1, most=10**9, free=True)
    batch_tokens: int = key(
        2048,
        Text(
            "padded tokens of the longer side in one step, over all processes",
            "每步（所有进程合计）较长一侧含填充的词元数",
        ),
        least=1,
        most=2**30,
    )
    accumulate: int = key(
        1, Text("pieces a step's batch is worked off in", "每步的批次分几份计算"), least=1, most=2**20, free=True
    )
    precision: Literal["float32", "bfloat16", "float16"] = key(
        "float32",
        Text("arithmetic of the forward pass; float16 needs a CUDA device", "前向计算的精度；float16 需要 CUDA 设备"),
    )
    compile: bool = key(False, Text("use torch.compile", "使用 torch.compile"))
    device: str = key(
        "auto",
        Text("where to compute: auto, cpu, cuda, cuda:1, mps", "计算设备：auto、cpu、cuda、cuda:1、mps"),
        free=True,
    )
    threads: int = key(
        1,
        Text(
            "threads of PyTorch's operations on a CPU; a resumed run repeats exactly with the same number only",
            "CPU 上 PyTorch 运算所用的线程数；续训时线程数相同才逐位一致",
        ),
        least=1,
        most=256,
        free=True,
    )
    seed: int = key(0, Text("of weights, order and dropout", "权重、次序与随机置零的种子"), least=0, most=2**62)
    log_every: int = key(
        10, Text("steps between lines of metrics.jsonl", "metrics.jsonl 每隔几步一行"), least=1, most=10**9, free=True
    )
    evaluate_every: int = key(
        100,
        Text("steps between held-out measurements; 0 for the end only", "每隔几步评测；0 为仅在最后"),
        least=0,
        most=10**9,
        free=True,
    )
    evaluate_batches: int = key(
        50, Text("held-out batches measured, at most", "评测时最多用多少留出批次"), least=1, most=10**9, free=True
    )
    checkpoint_every: int = key(
        200,
        Text("steps between checkpoints; 0 for the end only", "每隔几步存检查点；0 为仅在最后"),
        least=0,
        most=10**9,
        free=True,
    )
    samples: int = key(
        200,
        Text("held-out sentences translated at the end for BLEU and chrF", "结束时翻译多少留出句以计算 BLEU 与 chrF"),
        least=0,
        most=10**9,
        free=True,
    )
    beam: int = key(4, Text("width of the beam when translating", "翻译时的束宽"), least=1, most=1024, free=True)


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
