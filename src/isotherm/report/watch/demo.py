"""The demo of `isotherm watch` on a terminal: a table of runs, and what it says in a few sentences."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.record.watch_demo import DemoRun, DemoTrio
from isotherm.report import layout
from isotherm.report.digits import number

TITLE = Text(
    "A small transformer repeats what it read. W_q and W_k learn 30 times too fast in the second and third run of each seed.",
    "小 Transformer 复述读过的序列。每个种子的后两次训练里，W_q 与 W_k 的学习率高出 30 倍。",
)
HEADS = (
    Text("seed", "种子"),
    Text("run", "训练"),
    Text("last loss", "最后损失"),
    Text("max logit", "最大 logit"),
    Text("first alert", "首次警报"),
    Text("loss shows it", "损失显出"),
)
ALONE, HOT, HELD = Text("left alone", "不干预"), Text("too hot", "过热"), Text("too hot, valve", "过热，有阀门")
AHEAD = Text(
    "In {n} of {total} hot runs the alert came before the loss showed anything, by {steps} steps.",
    "{total} 次过热训练中有 {n} 次先有警报：比损失显出异常早 {steps} 步。",
)
RANGE = Text("{least} to {most}", "{least} 到 {most}")
QUIET = Text("False alarms in runs left alone: {n} of {total}.", "不干预的训练中的误报：{total} 次中有 {n} 次。")
HELD_AT = Text(
    "Mean loss at the end: left alone {alone:.2f}, too hot {hot:.2f} (guessing is 2.77), with the valve {held:.2f}.",
    "最后的平均损失：不干预 {alone:.2f}，过热 {hot:.2f}（瞎猜为 2.77），有阀门 {held:.2f}。",
)


def show(trios: Sequence[DemoTrio], console: Console, language: Language) -> None:
    """Print the runs and what they show."""
    console.print(Styled(TITLE.to(language), style="bold"))
    made = layout.table(HEADS, language, left=(0, 1))
    for trio in trios:
        for name, run in ((ALONE, trio.alone), (HOT, trio.hot), (HELD, trio.held)):
            shows = trio.shows if run is trio.hot else None
            made.add_row(str(trio.seed) if run is trio.alone else "", name.to(language), *_cells(run), _step(shows))
    console.print(made)
    for sentence in sentences(trios):
        console.print(Styled(sentence.to(language)))


def sentences(trios: Sequence[DemoTrio]) -> list[Text]:
    """What the runs say."""
    ahead = [trio.ahead for trio in trios if trio.ahead is not None and trio.ahead > 0]
    means = {name: sum(getattr(trio, name).end for trio in trios) / len(trios) for name in ("alone", "hot", "held")}
    said = [HELD_AT.format(**means), QUIET.format(total=len(trios), n=sum(t.alone.alerted is not None for t in trios))]
    if ahead:
        least, most = min(ahead), max(ahead)
        steps = RANGE.format(least=least, most=most) if least < most else least
        said.insert(0, AHEAD.format(steps=steps, n=len(ahead), total=len(trios)))
    return said


def _cells(run: DemoRun) -> tuple[str, str, str]:
    return f"{run.end:.2f}", number(run.largest), _step(run.alerted)


def _step(step: int | None) -> str:
    return "–" if step is None else str(step)
