"""A tuned model on a terminal: what to do, a line for each length, laws, steps, the steepest heads."""

from rich.console import Console
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record.tune import TemperatureGradient, TuneRecord
from isotherm.report.digits import number, thousands
from isotherm.report.layout import heading, indented, table
from isotherm.report.tune import words

STEEPEST = 6
LENGTHS = Text("Lengths", "各长度")
LENGTHS_NOTE = Text(
    "best: the factor on the scale in force with the least loss, and its 95 % interval. gain: on documents that had no part in"
    " choosing it. interval open: it reaches the end of what was tried.\n"
    "critical, freezing: factors at which the median row keeps only its largest logits, by gaps and by spread.",
    "最佳：使损失最小的倍数（相对实际缩放）及其 95 % 区间。收益：在未参与选择的文档上。区间未闭合：已到所试范围的边缘。\n"
    "临界、冻结：中位行只剩最大 logits 时的倍数，分别按间隙与按标准差。",
)
COLUMNS = (
    Text("tokens", "词元"),
    Text("loss", "损失"),
    Text("best", "最佳"),
    Text("95 %", "95 %"),
    Text("gain", "收益"),
    Text("critical", "临界"),
    Text("freezing", "冻结"),
    Text("", ""),
)
LAWS = Text("Laws over the length", "随长度的规律")
LAW_COLUMNS = (Text("law", "规律"), Text("factor", "倍数"), Text("c", "c"), Text("χ²", "χ²"), Text("", ""))
STEPS = Text("Steps along the temperature gradient", "沿温度梯度的步骤")
STEP_COLUMNS = (
    Text("where", "位置"),
    Text("gradient", "梯度"),
    Text("best", "最佳"),
    Text("95 %", "95 %"),
    Text("gain", "收益"),
    Text("loss", "损失"),
    Text("", ""),
)
GRADIENT = Text("Temperature gradient", "温度梯度")
GRADIENT_NOTE = Text(
    "∂loss/∂ln scale at {n} tokens: below 0 sharper is better, above 0 softer; ± 95 % over groups of documents. Listed are"
    " heads beyond noise for all heads at once.",
    "{n} 词元处的 ∂损失/∂ln 缩放：小于 0 则更尖锐为好，大于 0 则更平缓为好；± 为对文档分组的 95 %。"
    "列出的头，对所有头一并考虑时仍超出噪声。",
)
GRADIENT_COLUMNS = (Text("layer", "层"), Text("head", "头"), Text("gradient", "梯度"), Text("", ""))
SHARPER, SOFTER = Text("wants to be sharper", "应更尖锐"), Text("wants to be softer", "应更平缓")


def show(record: TuneRecord, console: Console, language: Language) -> None:
    """Print everything."""
    worth = any(best.worth for best in record.bests)
    sign, style = ("▲", "bold yellow") if worth else ("✔", "bold green")
    console.print(Styled(printable(record.model, 120), style="bold"))
    console.print(Styled(words.shape(record).to(language), style="dim"))
    console.print(Styled(f"{sign} {words.verdict(record).to(language)}", style=style))
    _lengths(record, console, language)
    if (said := words.laws(record)) is not None:
        heading(console, LAWS, language, words.LAWS_ABOUT)
        _laws(record, console, language)
        indented(console, Styled(said.to(language)), by=0)
    if record.steps:
        heading(console, STEPS, language)
        _steps(record, console, language)
    if record.gradient is not None:
        show_gradient(record.gradient, console, language)


def _lengths(record: TuneRecord, console: Console, language: Language) -> None:
    heading(console, LENGTHS, language)
    made = table(COLUMNS, language, gap=1, left=(7,))
    for one in record.lengths:
        best = one.best
        made.add_row(
            thousands(one.length),
            number(one.loss, 4),
            number(best.factor, 3),
            words.interval(best),
            words.gain(best),
            number(one.critical),
            number(one.freezing),
            words.judged(best).to(language),
        )
    console.print(made)
    indented(console, Styled(LENGTHS_NOTE.to(language), style="dim"), by=0)


def _laws(record: TuneRecord, console: Console, language: Language) -> None:
    made = table(LAW_COLUMNS, language, gap=3, left=(0, 1, 4))
    least = min(law.chi_squared for law in record.laws)
    for law in record.laws:
        name = words.LAW_NAMES.get(law.name, Text(law.name, law.name)).to(language)
        worse = words.LAW_WORSE.format(by=number(law.chi_squared - least, 2))
        state = words.LAW_SUPPORTED if law.supported else worse
        cells = (printable(name, 40), printable(law.formula, 40), number(law.constant), number(law.chi_squared, 2))
        made.add_row(*cells, state.to(language))
    console.print(made)


def _steps(record: TuneRecord, console: Console, language: Language) -> None:
    made = table(STEP_COLUMNS, language, gap=1, left=(0, 6))
    for step in record.steps:
        best = step.best
        made.add_row(
            printable(words.numbered(step, record).to(language), 48),
            number(step.gradient, 2),
            number(best.factor),
            words.interval(best),
            words.gain(best),
            number(step.loss, 4),
            words.judged(best).to(language),
        )
    console.print(made)


def show_gradient(found: TemperatureGradient, console: Console, language: Language) -> None:
    """Print the steepest heads beyond noise."""
    heading(console, GRADIENT, language, GRADIENT_NOTE.format(n=thousands(found.length)))
    steep = words.sure(found)
    if not steep:
        indented(console, Styled(words.of_heads(found).to(language)), by=0)
        return
    made = table(GRADIENT_COLUMNS, language, gap=3, left=(0, 3))
    for one in steep[:STEEPEST]:
        shown = f"{number(one.value, 2)} ± {number(one.margin, 2)}"
        wants = SHARPER if one.value < 0 else SOFTER
        made.add_row(printable(one.layer, 48), str(one.head), shown, wants.to(language))
    console.print(made)
