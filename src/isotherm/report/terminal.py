"""A check-up at a glance, in a terminal: what to act on first, then the picture, then the numbers behind it.

Made for 80 columns, both languages, colour or none: every colour has a sign beside it.
"""

from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import CheckRecord, Finding
from isotherm.report import digits, glyphs, summary, words
from isotherm.report.terminal_heads import heads_picture
from isotherm.report.terminal_tables import comparison_lines, layer_table, what_if_table

FEW_LAYERS = 24
FEW_FINDINGS = 12

_FINDINGS = Text("Findings", "发现")
_HEADS = Text("Heads", "注意力头")
_LAYERS = Text("Layers", "各层")
_WHAT_IF = Text("What if", "假如换一条规则")
_ADVICE = Text("Advice", "建议")
_IMPLEMENTATIONS = Text("Implementations", "实现对比")
_UNSEEN = Text("Not seen", "未能观察")
_CONTEXT = Text("Longer context", "更长的上下文")
_MORE_FINDINGS = Text("… and {n} more", "…… 另有 {n} 条")
_WORST_ONLY = Text(
    "The {shown} layers most worth a look; the other {hidden} are in the report.",
    "以下是最值得一看的 {shown} 层；其余 {hidden} 层见报告。",
)
_SHAPE = Text("{layers} layers × {heads} heads", "{layers} 层 × {heads} 头")
_TOKENS = Text("{tokens} tokens", "{tokens} 个词元")
_PARAMETERS = Text("{n} parameters", "{n} 参数")
_AT_INITIALISATION = Text("at initialisation", "初始化状态")
_FACTOR = Text(
    "{place}: logit spread {spread}, target {target}: multiply by {factor}.",
    "{place}：logit 标准差 {spread}，目标 {target}：乘以 {factor}。",
)
_COST = Text(
    "{seconds} s, of which one plain forward is {model} s; at most {peak} MiB of memory",
    "用时 {seconds} 秒，其中一次普通前向 {model} 秒；内存峰值 {peak} MiB",
)


def show(record: CheckRecord, console: Console, language: Language) -> None:
    """Print a check-up."""
    _title(record, console, language)
    _findings(record, console, language)
    if record.layers:
        lines = summary.worst_layers(record, FEW_LAYERS if len(record.layers) <= FEW_LAYERS else FEW_LAYERS // 2)
        hidden = len(record.layers) - len(lines)
        note = _WORST_ONLY.format(shown=len(lines), hidden=hidden).to(language) if hidden else None
        _section(console, _HEADS.to(language), note)
        console.print(heads_picture(record, lines, language, console))
        _section(console, _LAYERS.to(language), note)
        console.print(layer_table(lines, language))
    if record.what_if:
        _section(console, _WHAT_IF.to(language))
        console.print(what_if_table(record, language))
    _advice(record, console, language)
    if record.comparisons:
        _section(console, _IMPLEMENTATIONS.to(language))
        for line in comparison_lines(record, language):
            _indented(console, line)
    _rest(record, console, language)


def show_findings(record: CheckRecord, console: Console, language: Language) -> None:
    """Print only the verdict and what to act on."""
    _title(record, console, language)
    _findings(record, console, language)


def _title(record: CheckRecord, console: Console, language: Language) -> None:
    model = record.model
    facts = [
        printable(model.architecture, 60),
        _SHAPE.format(layers=len(record.layers), heads=summary.widest(record)).to(language),
        _PARAMETERS.format(n=digits.magnitude(model.parameters)).to(language),
        _TOKENS.format(tokens=digits.thousands(model.tokens)).to(language),
        f"{printable(model.dtype, 20)} · {printable(model.device, 20)}",
        summary.how_got(record).to(language),
    ]
    if model.at_initialisation:
        facts.append(_AT_INITIALISATION.to(language))
    severity = summary.verdict_severity(record)
    glyph, style = ("✔", "bold green") if severity is None else _sign(severity)
    console.print(Styled(printable(model.name, 120), style="bold"))
    console.print(Styled(" · ".join(facts), style="dim"))
    console.print(Styled(f"{glyph} {summary.verdict(record).to(language)}", style=style))


def _sign(severity: str) -> tuple[str, str]:
    return glyphs.SEVERITY_GLYPHS[severity], glyphs.SEVERITY_STYLES[severity]  # type: ignore[index]


def _section(console: Console, title: str, note: str | None = None) -> None:
    console.print()
    console.print(Styled(title, style="bold underline"))
    if note:
        console.print(Styled(note, style="dim"))


def _indented(console: Console, line: Styled, by: int = 2) -> None:
    console.print(Padding(line, (0, 0, 0, by), expand=False))


def _findings(record: CheckRecord, console: Console, language: Language) -> None:
    ordered = summary.ordered_findings(record)
    if not ordered:
        return
    _section(console, _FINDINGS.to(language))
    for _, group in groupby(ordered[:FEW_FINDINGS], key=lambda found: (found.code, found.advice, found.threshold)):
        _group(list(group), console, language)
    if len(ordered) > FEW_FINDINGS:
        console.print(Styled(_MORE_FINDINGS.format(n=len(ordered) - FEW_FINDINGS).to(language), style="dim"))


def _group(findings: list[Finding], console: Console, language: Language) -> None:
    """Findings alike, one after another: what to do about them is said once."""
    for finding in findings:
        glyph, style = _sign(finding.severity)
        place = words.place(finding.layer, finding.head).to(language)
        code = printable(finding.code, 40)
        console.print(Styled.assemble((f"{glyph} ", style), (code, "bold"), (f"  {place}", "dim")))
        _indented(console, Styled(printable(finding.message.to(language), 600)))
    if advice := findings[0].advice.to(language):
        _indented(console, Styled(f"→ {printable(advice, 600)}", style="green"))
    if threshold := findings[0].threshold.to(language):
        _indented(console, Styled(printable(threshold, 300), style="dim"))


def _advice(record: CheckRecord, console: Console, language: Language) -> None:
    advised = [(layer, layer.advice) for layer in record.layers if layer.advice is not None]
    if not advised:
        return
    _section(console, _ADVICE.to(language))
    for layer, advice in advised[:FEW_FINDINGS]:
        where = words.place(layer.index, None)
        factor = _FACTOR.format(
            place=Text(where.en.capitalize(), where.zh),
            spread=digits.number(advice.spread),
            target=digits.number(advice.target),
            factor=digits.number(advice.factor),
        )
        _indented(console, Styled(f"{factor.to(language)} {printable(advice.how.to(language), 600)}"))
    if len(advised) > FEW_FINDINGS:
        _indented(console, Styled(_MORE_FINDINGS.format(n=len(advised) - FEW_FINDINGS).to(language), style="dim"))


def _rest(record: CheckRecord, console: Console, language: Language) -> None:
    if record.unseen:
        _section(console, _UNSEEN.to(language))
        for module in record.unseen[:FEW_FINDINGS]:
            name, kind = printable(module.name, 80), printable(module.module, 60)
            why = printable(module.why.to(language), 300)
            _indented(console, Styled.assemble(("? ", "yellow"), name, (f" ({kind}) ", "dim"), why))
        if len(record.unseen) > FEW_FINDINGS:
            _indented(console, Styled(_MORE_FINDINGS.format(n=len(record.unseen) - FEW_FINDINGS).to(language)))
    if record.context is not None:
        _section(console, _CONTEXT.to(language))
        _indented(console, Styled(printable(record.context.message.to(language), 600)))
    cost = _COST.format(
        seconds=digits.number(record.cost.seconds),
        model=digits.number(record.cost.model_seconds),
        peak=digits.number(record.cost.peak_mib),
    )
    console.print()
    console.print(Styled(cost.to(language), style="dim"))
