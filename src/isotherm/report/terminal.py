"""A check-up at a glance, in a terminal: what to act on first, then the picture, then the numbers behind it.

It fits 80 columns and needs no colour: every colour has a sign beside it.
"""

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import CheckRecord, Finding, ScaleAudit
from isotherm.report import digits, summary, vocabulary
from isotherm.report.curve import factors_of, show_curves
from isotherm.report.draw import palette
from isotherm.report.draw.terminal import bar
from isotherm.report.head_map import head_map
from isotherm.report.layout import heading, indented, rest, table
from isotherm.report.summary import LayerSummary
from isotherm.report.tune.terminal import show_gradient

FEW_LAYERS = 24
FEW_FINDINGS = 12

_FINDINGS = Text("Findings", "发现")
_HEADS = Text("Heads", "注意力头")
_LAYERS = Text("Layers", "各层")
_CURVE = Text("Temperature curve", "温度曲线")
_WHAT_IF = Text("What if", "假如换一条规则")
_ADVICE = Text("Advice", "建议")
_IMPLEMENTATIONS = Text("Implementations", "实现对比")
_UNSEEN = Text("Not seen", "未能观察")
_CONTEXT = Text("Longer context", "更长的上下文")
_WORST_ONLY = Text(
    "The {shown} layers most worth a look; the other {hidden} are in the report.",
    "以下是最值得一看的 {shown} 层；其余 {hidden} 层见报告。",
)
_PARAMETERS = Text("{n} parameters", "{n} 参数")
_AT_INITIALISATION = Text("at initialisation", "初始化状态")
_FACTOR = Text(
    "{place}: logit spread {spread}, target {target} (factor {factor}): {how}",
    "{place}：logit 标准差 {spread}，目标 {target}（倍数 {factor}）：{how}",
)
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
    "Scale as passed to the kernel, measured, declared. Medians over heads: σ, the logit spread; σ_c = √(2 ln n), where the "
    "softmax freezes; entropy over ln n; gradient gate 1 − Σp² (p10 and p50 over rows). max: the largest logit of all heads.",
    "缩放依次为传给内核的、实测的、声明的。各注意力头取中位数：σ 为 logit 标准差；σ_c = √(2 ln n)，softmax 在此冻结；"
    "熵除以 ln n；梯度闸门 1 − Σp²（各行的 p10 与 p50）。最大：所有头中最大的 logit。",
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
_SAME = Text("{first} and {second} agree: every statistic is the same", "{first} 与 {second} 一致：各统计量完全相同")
_ON = Text("{sentence}; compared on {part}", "{sentence}；比较范围：{part}")
_NOT_COMPARED = Text("{name} was not compared: {why}", "未与 {name} 比较：{why}")
_KIND = Text("layer {layers}: attention {kind}", "第 {layers} 层：{kind}")
_KINDS = Text("layers {layers}: attention {kind}", "第 {layers} 层：{kind}")
_DISAGREE = Text(
    "{first} and {second} disagree at {place}: {statistic} differs by {difference} (allowed {tolerance})",
    "{first} 与 {second} 在{place}不一致：{statistic} 相差 {difference}（容许 {tolerance}）",
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
        note = _WORST_ONLY.format(shown=len(lines), hidden=hidden) if hidden else None
        heading(console, _HEADS, language, note)
        console.print(head_map(record, lines, language, console))
        heading(console, _LAYERS, language, note)
        console.print(_layer_table(lines, language, console))
        for said in _kind_lines(record):
            indented(console, Styled(said.to(language), style="dim"))
        if factors_of(lines):
            heading(console, _CURVE, language, note)
            show_curves(lines, console, language)
    if record.what_if:
        heading(console, _WHAT_IF, language)
        console.print(_what_if_table(record, language))
    if record.temperature_gradient is not None:
        show_gradient(record.temperature_gradient, console, language)
    _advice(record, console, language)
    if record.comparisons or record.not_compared:
        heading(console, _IMPLEMENTATIONS, language)
        for line in _comparison_lines(record, language):
            indented(console, line)
    _rest(record, console, language)


def show_findings(record: CheckRecord, console: Console, language: Language) -> None:
    """Print only the verdict and what to act on."""
    _title(record, console, language)
    _findings(record, console, language)


def _title(record: CheckRecord, console: Console, language: Language) -> None:
    model = record.model
    facts = [
        printable(model.architecture, 60),
        vocabulary.shape(len(record.layers), summary.widest(record)).to(language),
        _PARAMETERS.format(n=digits.magnitude(model.parameters)).to(language),
        vocabulary.amount(model).to(language),
        f"{printable(model.dtype, 20)} · {printable(model.device, 20)}",
        summary.how_got(record).to(language),
    ]
    if model.at_initialisation:
        facts.append(_AT_INITIALISATION.to(language))
    if model.compiled:
        facts.append(vocabulary.COMPILED.to(language))
    severity = summary.verdict_severity(record)
    glyph, style = ("✔", "bold green") if severity is None else _sign(severity)
    console.print(Styled(printable(model.name, 120), style="bold"))
    console.print(Styled(" · ".join(facts), style="dim"))
    console.print(Styled(f"{glyph} {summary.verdict(record).to(language)}", style=style))


def _sign(severity: str) -> tuple[str, str]:
    return vocabulary.SEVERITY_GLYPHS[severity], vocabulary.SEVERITY_STYLES[severity]  # type: ignore[index]


def _findings(record: CheckRecord, console: Console, language: Language) -> None:
    ordered = summary.ordered_findings(record)
    if not ordered:
        return
    heading(console, _FINDINGS, language)
    for _, group in groupby(ordered[:FEW_FINDINGS], key=lambda found: (found.code, found.advice, found.threshold)):
        _group(list(group), console, language)
    rest(console, len(ordered) - FEW_FINDINGS, language, by=0)


def _group(findings: list[Finding], console: Console, language: Language) -> None:
    """Findings that share their advice, which is printed once."""
    for finding in findings:
        glyph, style = _sign(finding.severity)
        place = vocabulary.place(finding.layer, finding.head).to(language)
        code = printable(finding.code, 40)
        console.print(Styled.assemble((f"{glyph} ", style), (code, "bold"), (f"  {place}", "dim")))
        indented(console, Styled(printable(finding.message.to(language), 600)))
    if advice := findings[0].advice.to(language):
        indented(console, Styled(f"→ {printable(advice, 600)}", style="green"))
    if threshold := findings[0].threshold.to(language):
        indented(console, Styled(printable(threshold, 300), style="dim"))


def _advice(record: CheckRecord, console: Console, language: Language) -> None:
    advised = [(layer, layer.advice) for layer in record.layers if layer.advice is not None]
    if not advised:
        return
    heading(console, _ADVICE, language)
    for layer, advice in advised[:FEW_FINDINGS]:
        where = vocabulary.place(layer.index, None)
        factor = _FACTOR.format(
            place=Text(where.en.capitalize(), where.zh),
            spread=digits.number(advice.spread),
            target=digits.number(advice.target),
            factor=digits.number(advice.factor),
            how=Text(printable(advice.how.en, 600), printable(advice.how.zh, 600)),
        )
        indented(console, Styled(factor.to(language)))
    rest(console, len(advised) - FEW_FINDINGS, language)


def _rest(record: CheckRecord, console: Console, language: Language) -> None:
    if record.unseen:
        heading(console, _UNSEEN, language)
        for module in record.unseen[:FEW_FINDINGS]:
            name, kind = printable(module.name, 80), printable(module.module, 60)
            why = printable(module.why.to(language), 300)
            indented(console, Styled.assemble(("? ", "yellow"), name, (f" ({kind}) ", "dim"), why))
        rest(console, len(record.unseen) - FEW_FINDINGS, language)
    if record.context is not None:
        heading(console, _CONTEXT, language)
        indented(console, Styled(printable(record.context.message.to(language), 600)))
    cost = _COST.format(
        seconds=digits.number(record.cost.seconds),
        model=digits.number(record.cost.model_seconds),
        peak=digits.number(record.cost.peak_mib),
    )
    console.print()
    for remark in record.remarks[:FEW_FINDINGS]:
        console.print(Styled(printable(remark.to(language), 300), style="dim"))
    console.print(Styled(cost.to(language), style="dim"))


def _layer_table(lines: list[LayerSummary], language: Language, console: Console) -> Table:
    """One line per layer: its scale, the spread of its logits, and entropy and gate of its rows. Bars that do not fit are left
    out: a shortened one would say something else."""
    made = _layer_lines(lines, language, bars=True)
    fits = Measurement.get(console, console.options.update(max_width=1000), made).maximum <= console.width
    made = made if fits else _layer_lines(lines, language, bars=False)
    made.caption, made.caption_justify, made.caption_style = _NOTE.to(language), "left", "dim"
    return made


def _layer_lines(lines: list[LayerSummary], language: Language, *, bars: bool) -> Table:
    made = table(_COLUMNS, language, gap=1, left={4, 10})
    made.pad_edge = False
    for line in lines:
        scale = line.layer.scale
        spread = Styled(digits.number(line.sigma))
        if line.sigma is not None and line.critical is not None and line.sigma > line.critical:
            spread.stylize("bold red")
        gate = "" if line.gate_p50 is None else palette.ramp_colour(line.gate_p50)
        made.add_row(
            str(line.layer.index),
            digits.number(scale.passed),
            digits.number(scale.effective),
            digits.number(scale.declared),
            _agreement(scale),
            spread,
            digits.number(line.critical),
            digits.number(line.entropy_fraction, 2),
            digits.number(line.gate_p10, 2),
            digits.number(line.gate_p50, 2),
            Styled(bar(line.gate_p50, 4) if bars else "", style=gate),
            digits.number(line.max_logit),
        )
    return made


def _agreement(scale: ScaleAudit) -> Styled:
    """✓, ✗, or ? where the declared or the effective scale is unknown."""
    if scale.agrees is None:
        return Styled("?", style="yellow")
    return Styled("✓", style="green") if scale.agrees else Styled("✗", style="bold red")


def _what_if_table(record: CheckRecord, language: Language) -> Table:
    """Every rule over the whole model, beside the model as it is."""
    made = table(_RULES, language, gap=3)
    for what_if in record.what_if:
        line = summary.rule_summary(what_if)
        made.add_row(
            Styled(printable(vocabulary.rule_name(line.rule).to(language), 40)),
            digits.number(line.entropy_fraction),
            digits.number(line.gate_p50, 2),
            digits.number(line.gate_p10, 2),
            digits.number(line.max_logit),
            style="bold" if line.rule == "as is" else "",
        )
    return made


def _comparison_lines(record: CheckRecord, language: Language) -> Iterator[Styled]:
    """One line per pair of implementations: whether they agree and, if not, where; then what was not compared."""
    for comparison in record.comparisons:
        first, second = (printable(name, 30) for name in comparison.implementations)
        agree = _AGREE if comparison.difference else _SAME
        sentence = (agree if comparison.agree else _DISAGREE).format(
            first=first,
            second=second,
            place=vocabulary.place(comparison.layer, None),
            statistic=printable(comparison.statistic, 40),
            difference=digits.number(comparison.difference, 2),
            tolerance=digits.number(comparison.tolerance, 2),
        )
        if comparison.on is not None:
            sentence = _ON.format(
                sentence=sentence, part=Text(printable(comparison.on.en, 120), printable(comparison.on.zh, 120))
            )
        glyph, style = ("✓", "green") if comparison.agree else ("✗", "bold red")
        yield Styled.assemble((f"{glyph} ", style), sentence.to(language))
    for skipped in record.not_compared:
        why = Text(printable(skipped.why.en, 300), printable(skipped.why.zh, 300))
        sentence = _NOT_COMPARED.format(name=printable(skipped.implementation, 30), why=why)
        yield Styled.assemble(("? ", "yellow"), sentence.to(language))


def _kind_lines(record: CheckRecord) -> Iterator[Text]:
    """Which layers attend over something else than a sequence."""
    for kind in ("channel", "batch", "landmark"):
        layers = [str(layer.index) for layer in record.layers if layer.kind == kind]
        shown = ", ".join(layers[:FEW_FINDINGS]) + (" …" if len(layers) > FEW_FINDINGS else "")
        if layers:
            yield (_KIND if len(layers) == 1 else _KINDS).format(layers=shown, kind=vocabulary.KINDS[kind])
