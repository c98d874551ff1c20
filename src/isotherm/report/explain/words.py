"""The words around the claims, in both languages; the words of a claim are in its record."""

from collections.abc import Sequence
from typing import Final

from isotherm.language import Text
from isotherm.record import Measured, Verdict
from isotherm.report import digits
from isotherm.report.draw.series import SOURCES

VERDICTS: Final[dict[Verdict, Text]] = {
    "confirmed": Text("confirmed", "成立"),
    "conditional": Text("conditional", "有条件成立"),
    "refuted": Text("refuted", "不成立"),
}
GLYPHS: Final[dict[Verdict, str]] = {"confirmed": "✔", "conditional": "◐", "refuted": "✖"}
STYLES: Final[dict[Verdict, str]] = {"confirmed": "green", "conditional": "yellow", "refuted": "red"}
DOCUMENTS: Final = ("000", "001", "002", "003", "004")
"""The documents that claims name; `page/explain.html` lists their titles."""
PAGE_TITLE: Final = Text("Why divide by √d? · isotherm", "为什么要除以 √d？· isotherm")
STATEMENT: Final = Text("The statement", "命题")
QUOTED: Final = Text("In the documents' words", "文档原文")
HYPOTHESIS: Final = Text("Tested inequality", "检验的不等式")
DERIVATION: Final = Text("Why it should be so", "推导")
ANSWER: Final = Text("Result", "结果")
CONDITION: Final = Text("Condition", "条件")
DOCUMENT: Final = Text("document {name}", "文档 {name}")
PLACE: Final = Text("document {name}, line {line}", "文档 {name} 第 {line} 行")
DOCUMENTS_NAMED: Final = Text("documents {name}", "文档 {name}")
FROM: Final = Text("from {names}", "出自{names}")
BEYOND: Final = Text("beyond the documents", "文档之外")
QUANTITY: Final = Text("quantity", "量")
MEASURED: Final = SOURCES["measured"]
INTERVAL: Final = Text("95 % interval", "95 % 区间")
PREDICTED: Final = SOURCES["predicted"]
IN_DOCUMENT: Final = SOURCES["document"]
HOLDS: Final = Text("holds", "成立")
YES: Final = Text("yes", "是")
NO: Final = Text("no", "否")
MORE_NUMBERS: Final = Text("More numbers ({n})", "另外 {n} 个数")
TIMES: Final = Text(
    "Wall-clock times are of this run and machine; no seed fixes them.",
    "用时属于这次运行和这台机器，种子无法固定它们。",
)
CHANGED: Final = Text("on record: {verdict}", "记录在案的结论：{verdict}")
ERRATA: Final = Text("Errata", "勘误")
ERRATUM: Final = Text("Erratum", "勘误")
ERRATA_LEAD: Final = Text(
    "What the documents get wrong, as measured or derived here, and the corrected statement. The questions are theirs.",
    "以下是经实测或推导表明文档有误之处，以及应有的表述。问题本身正是由这些文档提出的。",
)
REMARK: Final = Text("Remark", "附注")
REMARKS: Final = Text("Remarks", "附注")
REMARKS_LEAD: Final = Text(
    "What the documents say is right or harmless here as far as it goes; there is more to say.",
    "以下各处文档所说并无大碍，只是还有可补充之处。",
)
ADDED: Final = Text("To add", "补充")
NO_ERRATA: Final = Text("None among the claims that were run.", "所运行的论断中没有。")
WRONG: Final = Text("It says", "原文")
RIGHT: Final = Text("It should read", "应为")
RUN: Final = Text("This run", "本次运行")
SIZE: Final = Text("size", "规模")
SIZES: Final[dict[str, Text]] = {"quick": Text("quick", "快速"), "full": Text("full", "完整")}
DEVICE: Final = Text("device", "设备")
VERSIONS: Final = Text("versions", "版本")
CREATED: Final = Text("measured on", "测量时间")
AGAIN: Final = Text("again", "复现命令")
CLAIM: Final = Text("claim", "论断")
VERDICT: Final = Text("verdict", "结论")
PARAMETERS: Final = Text("parameters", "参数")
SEED: Final = Text("seed", "种子")
CODE: Final = Text("code", "代码")
SECONDS: Final = Text("seconds", "秒")
ERRATA_COUNT: Final = Text("errata in the documents: {n}", "文档勘误 {n} 处")
SIDES: Final = Text("Side chapters", "旁支")
GLOSSARY: Final = Text("Words", "词汇")
FREE_PLAY: Final = Text("Free play", "自由尝试")
TRAINING_RUN: Final = Text("A training run", "一次训练")
EVIDENCE: Final = Text("The evidence", "证据")
CONTENTS: Final = Text("Questions and results", "问了什么，结果如何")
METHOD: Final = Text("Method", "方法")
FAILED: Final = Text("failed", "失败")
NOT_RUN: Final = Text("not run", "未运行")
FIGURE: Final = Text("Figure {n}", "图 {n}")
TABLE_LABEL: Final = Text("Numbers of «{title}»", "“{title}”的数据")
WORKED: Final = Text("One row, worked out", "算一行看看")
BEFORE_AFTER: Final = Text("A real model, before and after", "真实模型：缩放改变前后")
SUPPORTED: Final = Text("What was measured", "实测结果")
PREDICT: Final = Text("Predict, then see", "先猜，再看")
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NO_RECORD: Final = Text("Without a record", "没有记录的论断")


def interval(measured: Measured) -> str:
    """«low … high», or a dash."""
    if measured.low is None or measured.high is None:
        return digits.NOTHING
    low, high = (_number(end, measured) for end in (measured.low, measured.high))
    return f"{low} … {high}"


def _number(value: float | None, measured: Measured) -> str:
    """A number with its power of ten as the sentences write it: 2.8·10⁻⁸."""
    mantissa, _, power = digits.number(value, _shown(measured)).partition("e")
    return f"{mantissa}·10{power.translate(_RAISED)}" if power else mantissa


def _shown(measured: Measured) -> int:
    """How many digits to show; a record comes from outside, and a float has no more than 17."""
    return min(max(measured.digits, 1), 17)


def columns(measured: Sequence[Measured]) -> dict[str, Text]:
    """The columns of a table of numbers: fields and their heads, without those that hold no number."""
    heads = {"value": MEASURED, "low": INTERVAL, "predicted": PREDICTED, "document": IN_DOCUMENT}
    return {field: head for field, head in heads.items() if any(getattr(it, field) is not None for it in measured)}


def cell(measured: Measured, field: str) -> str:
    """One cell of such a table; the field `low` stands for the whole interval."""
    return interval(measured) if field == "low" else _number(getattr(measured, field), measured)


def place(document: str, line: str) -> Text:
    """«document 001, line 72»; a document that is not in `DOCUMENTS` is named as it is."""
    if document not in DOCUMENTS:
        return Text(document, document)
    return PLACE.format(name=document, line=line) if line else DOCUMENT.format(name=document)


def sources(names: tuple[str, ...]) -> Text:
    """«from documents 000, 002»; a source that is not in `DOCUMENTS` is named as it is."""
    if not names:
        return BEYOND
    ours = [name for name in names if name in DOCUMENTS]
    named = Text(", ".join(ours), "、".join(ours))
    told = [(DOCUMENT if len(ours) == 1 else DOCUMENTS_NAMED).format(name=named)] if ours else []
    told += [Text(name, name) for name in names if name not in DOCUMENTS]
    return FROM.format(names=Text("; ".join(it.en for it in told), "；".join(it.zh for it in told)))
