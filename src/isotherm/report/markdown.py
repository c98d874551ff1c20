"""A check-up as a pull request's comment: the verdict, what to act on, which scales disagree, what other rules would do.

Names come from someone's model: everything is escaped, so that a name cannot become markup or mention a person.
"""

import re
from collections.abc import Iterable

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import CheckRecord, Finding
from isotherm.report import digits, summary, vocabulary

MOST_FINDINGS = 20
MOST_LAYERS = 20

_FINDING_HEADS = (
    Text("", ""),
    Text("Finding", "发现"),
    Text("Where", "位置"),
    Text("What", "说明"),
    Text("What to do", "怎么办"),
)
_AUDIT_HEADS = (
    Text("Layer", "层"),
    Text("Passed", "传入"),
    Text("Effective", "实测"),
    Text("Declared", "声明"),
    Text("Rule", "规则"),
)
_RULE_HEADS = (
    Text("Rule", "规则"),
    Text("Entropy / ln n", "熵 / ln n"),
    Text("Gate p50", "闸门 p50"),
    Text("Gate p10", "闸门 p10"),
    Text("Max logit", "最大 logit"),
)
_TITLE = Text("Attention check-up: {name}", "注意力体检：{name}")
_ALL_AGREE = Text(
    "Scale: every layer has the one expected of it ({n} compared).", "缩放：每一层都符合预期（比较了 {n} 层）。"
)
_UNKNOWN = Text("Layers that could not be audited: {n}.", "无法审计的层数：{n}。")
_DIFFER = Text(
    "Scale: {n} of {total} layers have another one than expected.", "缩放：{total} 层中有 {n} 层与预期不符。"
)
_WHAT_IF = Text("What if another rule were used (medians over layers)", "假如换一条规则（各层中位数）")
_MORE = Text("… and {n} more.", "…… 另有 {n} 条。")
_UNSEEN = Text("Attention that could not be looked into ({n}): {names}", "未能观察的注意力模块（{n} 个）：{names}")
_NOT_COMPARED = Text("Not compared with {name}: {why}", "未与 {name} 比较：{why}")
_DISAGREE = Text("Implementations disagree: {pairs}", "实现不一致：{pairs}")


def escaped(text: str, limit: int = 300) -> str:
    """Text that Markdown shows as it is: no cell breaks, no HTML, no links, no mentions, no issue numbers.

    >>> escaped("a|b <i> `c` @d")
    'a\\\\|b &lt;i&gt; \\\\`c\\\\` @\\u200bd'
    """
    clean = printable(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    clean = re.sub(r"([\\`*_\[\]|~])", r"\\\1", clean)
    return re.sub(
        r"([@#])(?=\w)|(?<=http)(?=s?://)|(?<=www)(?=\.)", lambda found: (found.group(1) or "") + "\u200b", clean
    )


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    titles = list(heads)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def to_markdown(record: CheckRecord, language: Language) -> str:
    """The comment, ending with one newline."""
    size = vocabulary.shape(len(record.layers), summary.widest(record))
    shape = vocabulary.joined([size, vocabulary.amount(record.model), summary.how_got(record)])
    facts = [shape, vocabulary.COMPILED] if record.model.compiled else [shape]
    severity = summary.verdict_severity(record)
    glyph = "✔" if severity is None else vocabulary.SEVERITY_GLYPHS[severity]
    blocks = [
        f"### {_TITLE.format(name=escaped(record.model.name, 80)).to(language)}",
        f"**{glyph} {summary.verdict(record).to(language)}** · {' · '.join(fact.to(language) for fact in facts)}",
        *_findings(record, language),
        *_audit(record, language),
        *_what_if(record, language),
        *_rest(record, language),
    ]
    return "\n\n".join(blocks) + "\n"


def _findings(record: CheckRecord, language: Language) -> list[str]:
    ordered = summary.ordered_findings(record)
    if not ordered:
        return []
    heads = [head.to(language) for head in _FINDING_HEADS]
    table = markdown_table(heads, (_finding(finding, language) for finding in ordered[:MOST_FINDINGS]))
    left = len(ordered) - MOST_FINDINGS
    return [table, _MORE.format(n=left).to(language)] if left > 0 else [table]


def _finding(finding: Finding, language: Language) -> list[str]:
    return [
        vocabulary.SEVERITY_GLYPHS[finding.severity],
        escaped(finding.code, 60),
        vocabulary.place(finding.layer, finding.head).to(language),
        escaped(finding.message.to(language)),
        escaped(finding.advice.to(language)),
    ]


def _audit(record: CheckRecord, language: Language) -> list[str]:
    wrong = [layer for layer in record.layers if layer.scale.agrees is False]
    unknown = sum(layer.scale.agrees is None for layer in record.layers)
    unaudited = [_UNKNOWN.format(n=unknown).to(language)] if unknown else []
    if not wrong:
        known = len(record.layers) - unknown
        return [*([_ALL_AGREE.format(n=known).to(language)] if known else []), *unaudited]
    heads = [head.to(language) for head in _AUDIT_HEADS]
    rows = (
        [
            f"{layer.index} {escaped(layer.name, 80)}",
            *(digits.number(value, 4) for value in (layer.scale.passed, layer.scale.effective, layer.scale.declared)),
            escaped(layer.scale.rule, 60),
        ]
        for layer in wrong[:MOST_LAYERS]
    )
    left = len(wrong) - MOST_LAYERS
    more = [_MORE.format(n=left).to(language)] if left > 0 else []
    return [
        _DIFFER.format(n=len(wrong), total=len(record.layers)).to(language),
        markdown_table(heads, rows),
        *more,
        *unaudited,
    ]


def _what_if(record: CheckRecord, language: Language) -> list[str]:
    if not record.what_if:
        return []
    rows = []
    for line in map(summary.rule_summary, record.what_if[:MOST_LAYERS]):
        name = escaped(vocabulary.rule_name(line.rule).to(language), 60)
        values = (line.entropy_fraction, line.gate_p50, line.gate_p10, line.max_logit)
        rows.append([f"**{name}**" if line.rule == "as is" else name, *(digits.number(value) for value in values)])
    return [_WHAT_IF.to(language), markdown_table([head.to(language) for head in _RULE_HEADS], rows)]


def _rest(record: CheckRecord, language: Language) -> list[str]:
    blocks = []
    if apart := [comparison.implementations for comparison in record.comparisons if not comparison.agree]:
        pairs = ", ".join(f"{escaped(first, 40)} ≠ {escaped(second, 40)}" for first, second in apart[:MOST_LAYERS])
        blocks.append(_DISAGREE.format(pairs=pairs).to(language))
    for skipped in record.not_compared:
        why = Text(escaped(skipped.why.en), escaped(skipped.why.zh))
        blocks.append(_NOT_COMPARED.format(name=escaped(skipped.implementation, 40), why=why).to(language))
    blocks += [escaped(remark.to(language)) for remark in record.remarks[:MOST_LAYERS]]
    if record.unseen:
        names = ", ".join(escaped(module.name, 80) for module in record.unseen[:5])
        names += " …" if len(record.unseen) > 5 else ""
        blocks.append(_UNSEEN.format(n=len(record.unseen), names=names).to(language))
    return blocks
