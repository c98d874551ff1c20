"""The tables of the terminal view: layers, rules, implementations. Narrow enough for 80 columns."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import CheckRecord, ScaleAudit
from isotherm.report import digits, glyphs, summary, words
from isotherm.report.summary import LayerSummary

_COLUMNS = (
    Text("layer", "层"),
    Text("passed", "传入"),
    Text("effective", "实测"),
    Text("declared", "声明"),
    Text("", ""),
    Text("σ", "σ"),
    Text("σ_c", "σ_c"),
    Text("entropy", "熵占比"),
    Text("gate p10", "闸门 p10"),
    Text("p50", "p50"),
    Text("", ""),
    Text("max", "最大"),
)
_NOTE = Text(
    "Scale as passed to the kernel, measured, declared. σ: logit spread; σ_c = √(2 ln n), where the softmax freezes. "
    "Entropy over ln n, gradient gate 1 − Σp² (p10 and p50 over rows), largest logit; medians over heads.",
    "缩放依次为传给内核的、实测的、声明的。σ：logit 标准差；σ_c = √(2 ln n)，softmax 在此冻结。"
    "熵除以 ln n、梯度闸门 1 − Σp²（各行的 p10 与 p50）、最大 logit；各注意力头取中位数。",
)
_RULES = (
    Text("rule", "规则"),
    Text("entropy", "熵占比"),
    Text("gate p50", "闸门 p50"),
    Text("gate p10", "闸门 p10"),
    Text("max logit", "最大 logit"),
)
_AGREE = Text(
    "{first} and {second} agree: {statistic} differs by at most {difference} (allowed {tolerance})",
    "{first} 与 {second} 一致：{statistic} 至多相差 {difference}（容许 {tolerance}）",
)
_DISAGREE = Text(
    "{first} and {second} disagree at {place}: {statistic} differs by {difference} (allowed {tolerance})",
    "{first} 与 {second} 在{place}不一致：{statistic} 相差 {difference}（容许 {tolerance}）",
)


def layer_table(lines: list[LayerSummary], language: Language) -> Table:
    """One line per layer: the scale in force, the spread it makes, and what the softmax does with it."""
    table = Table(
        box=None, padding=(0, 1, 0, 0), caption=_NOTE.to(language), caption_justify="left", caption_style="dim"
    )
    for number, column in enumerate(_COLUMNS):
        table.add_column(
            column.to(language), justify="left" if number in {4, 10} else "right", no_wrap=True, header_style="dim"
        )
    for line in lines:
        scale = line.layer.scale
        spread = Styled(digits.number(line.sigma))
        if line.sigma is not None and line.critical is not None and line.sigma > line.critical:
            spread.stylize("bold red")
        bar = Styled(
            glyphs.bar(line.gate_p50, 4), style="" if line.gate_p50 is None else glyphs.ramp_colour(line.gate_p50)
        )
        table.add_row(
            str(line.layer.index),
            digits.number(scale.passed),
            digits.number(scale.effective),
            digits.number(scale.declared),
            agreement(scale),
            spread,
            digits.number(line.critical),
            digits.number(line.entropy_fraction, 2),
            digits.number(line.gate_p10, 2),
            digits.number(line.gate_p50, 2),
            bar,
            digits.number(line.max_logit),
        )
    return table


def agreement(scale: ScaleAudit) -> Styled:
    """✓, ✗, or ? where one of the two sides could not be had."""
    if scale.agrees is None:
        return Styled("?", style="yellow")
    return Styled("✓", style="green") if scale.agrees else Styled("✗", style="bold red")


def what_if_table(record: CheckRecord, language: Language) -> Table:
    """Every rule over the whole model, beside the model as it is."""
    table = Table(box=None, padding=(0, 3, 0, 0))
    for number, column in enumerate(_RULES):
        table.add_column(column.to(language), justify="right" if number else "left", header_style="dim")
    for what_if in record.what_if:
        line = summary.rule_summary(what_if)
        table.add_row(
            Styled(printable(words.rule_name(line.rule).to(language), 40)),
            digits.number(line.entropy_fraction),
            digits.number(line.gate_p50, 2),
            digits.number(line.gate_p10, 2),
            digits.number(line.max_logit),
            style="bold" if line.rule == "as is" else "",
        )
    return table


def comparison_lines(record: CheckRecord, language: Language) -> Iterator[Styled]:
    """Two implementations a line: do they agree, and if not, where."""
    for comparison in record.comparisons:
        first, second = (printable(name, 30) for name in comparison.implementations)
        sentence = (_AGREE if comparison.agree else _DISAGREE).format(
            first=first,
            second=second,
            place=words.place(comparison.layer, None),
            statistic=printable(comparison.statistic, 40),
            difference=digits.number(comparison.difference, 2),
            tolerance=digits.number(comparison.tolerance, 2),
        )
        glyph, style = ("✓", "green") if comparison.agree else ("✗", "bold red")
        yield Styled.assemble((f"{glyph} ", style), sentence.to(language))
