"""A run that is watched, on a terminal: sparklines by layer, the worst heads, the latest events."""

from collections.abc import Callable
from math import isfinite, log
from statistics import median

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record.watch import EventKind, WatchRecord
from isotherm.report import layout
from isotherm.report.digits import number, thousands
from isotherm.report.draw.terminal import sparks
from isotherm.report.watch import series

MOST_LAYERS, MOST_HEADS, MOST_EVENTS = 24, 6, 8
STYLES: dict[EventKind, str] = {
    "alert": "bold yellow",
    "valve": "bold cyan",
    "trouble": "bold red",
    "gap": "bold red",
    "resumed": "bold cyan",
}
SHAPE = Text(
    "{layers} layers · {heads} heads · every {every} steps · {rows}",
    "{layers} 层 · {heads} 个头 · 每 {every} 步 · {rows}",
)
ALL_ROWS = Text("every row", "所有行")
SOME_ROWS = Text("{rows} rows a head", "每头 {rows} 行")
NOW = Text("step {step} · {readings} readings", "第 {step} 步 · {readings} 条读数")
LOSS = Text(" · loss {loss}", " · 损失 {loss}")
COST = Text(" · {ms:.1f} ms a reading", " · 每条读数 {ms:.1f} 毫秒")
SET_ASIDE = Text(" · {n} set aside by a resumption", " · 续训搁置 {n} 条")
NOTHING = Text("No reading yet", "还没有读数")
COPIED = Text(
    "If this store was copied, copy the file beside it whose name ends in -wal, too: it holds the latest readings.",
    "如果读数库是复制来的，请把旁边以 -wal 结尾的文件也一起复制：最新的读数在其中。",
)
LAYERS = Text("Layers", "各层")
LAYERS_NOTE = Text(
    "largest logit on one scale for all layers; entropy and saturated rows from 0 to 1, mean over heads; |∂q|, |∂k|: norm of"
    " the gradient that reached q and k",
    "最大 logit 各层同一尺度；熵与饱和行从 0 到 1，取各头均值；|∂q|、|∂k| 为到达 q、k 的梯度的范数",
)
WORST = Text("Largest logits now", "当前最大的 logits")
EVENTS = Text("Events", "事件")
NO_EVENTS = Text("none", "无")
STEP = Text("step {step}", "第 {step} 步")
LAYER, HEAD, NAME = Text("layer", "层"), Text("head", "头"), Text("module", "模块")
GRADIENT = Text("|∂q| · |∂k|", "|∂q| · |∂k|")


def show(record: WatchRecord, console: Console, language: Language) -> None:
    """Print the view."""
    console.print(view(record, language, console.width))


def view(record: WatchRecord, language: Language, width: int) -> RenderableType:
    """The whole view, to print once or to show again and again."""
    pieces: list[RenderableType] = [*_head(record, language)]
    if record.readings and record.layers:
        pieces += [*_layers(record, language, width), *_worst(record, language)]
    return Group(*pieces, *_events(record, language))


def _head(record: WatchRecord, language: Language) -> list[RenderableType]:
    heads = sum(layer.heads for layer in record.layers)
    rows = ALL_ROWS if record.rows is None else SOME_ROWS.format(rows=record.rows)
    shape = SHAPE.format(layers=len(record.layers), heads=thousands(heads), every=record.every, rows=rows)
    alerts = any(event.kind == "alert" for event in record.events)
    sign, style = ("▲", "bold yellow") if alerts else ("✔", "bold green")
    lines = [Styled(printable(record.model, 100), style="bold"), Styled(shape.to(language), style="dim")]
    if not record.readings:
        return [*lines, Styled(NOTHING.to(language), style="bold"), Styled(COPIED.to(language), style="dim")]
    return [
        *lines,
        Styled(_now(record, language)),
        Styled(f"{sign} {series.verdict(record).to(language)}", style=style),
    ]


def _now(record: WatchRecord, language: Language) -> str:
    last = record.readings[-1]
    said = NOW.format(step=thousands(last.step), readings=thousands(len(record.readings))).to(language)
    took = [reading.seconds for reading in record.readings if reading.seconds is not None and isfinite(reading.seconds)]
    if last.loss is not None:
        said += LOSS.format(loss=number(last.loss) if isfinite(last.loss) else "NaN").to(language)
    if took:
        said += COST.format(ms=1000 * median(took)).to(language)
    return said + (SET_ASIDE.format(n=record.superseded).to(language) if record.superseded else "")


def _layers(record: WatchRecord, language: Language, width: int) -> list[RenderableType]:
    keys = ("max_logit", "entropy", "saturated")
    room = max((width - 46) // 3, 6)
    parts = series.stretches(record, room)
    lines = {key: series.over(series.by_layer(record, key), parts, series.statistic(key).of_several) for key in keys}
    now = {key: series.by_layer(record, key)[-1] for key in keys}
    heads = [LAYER, *(text for key in keys for text in (series.statistic(key).short, Text("", ""))), GRADIENT]
    made = layout.table(heads, language, gap=1, left=(1, 3, 5))
    order = sorted(np.argsort(-np.nan_to_num(now["max_logit"], nan=-np.inf), kind="stable")[:MOST_LAYERS])
    scale = _log_scale(lines["max_logit"])
    for row in order:
        sparkled = [sparks(scale(lines["max_logit"][:, row])), *(sparks(list(lines[key][:, row])) for key in keys[1:])]
        cells = [cell for key, spark in zip(keys, sparkled, strict=True) for cell in (spark, number(now[key][row]))]
        gradients = " · ".join(number(float(record.readings[-1].gradients[name][row]), 2) for name in ("q", "k"))
        made.add_row(str(record.layers[row].number), *cells, gradients)
    pieces: list[RenderableType] = [*_title(LAYERS, language, LAYERS_NOTE), made]
    left = len(record.layers) - len(order)
    return [*pieces, Styled(f"  {layout.MORE.format(n=left).to(language)}", style="dim")] if left else pieces


def _log_scale(values: series.Values) -> Callable[[series.Values], list[float | None]]:
    """A function that places logits between 0 and 1, on one logarithmic scale for all layers."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = (log(known.min()), log(known.max())) if known.size else (0.0, 1.0)

    def place(column: series.Values) -> list[float | None]:
        return [
            None if np.isnan(one) else 1.0 if one == np.inf else (log(max(one, 1e-9)) - low) / ((high - low) or 1.0)
            for one in column.tolist()
        ]

    return place


def _worst(record: WatchRecord, language: Language) -> list[RenderableType]:
    shown = [series.statistic(key) for key in ("max_logit", "entropy", "gate", "saturated", "invalid")]
    made = layout.table([LAYER, HEAD, *(one.short for one in shown), NAME], language, left=(len(shown) + 2,))
    now = record.readings[-1].values
    for flat in series.worst_heads(record, MOST_HEADS):
        row, head = series.place_of(record, flat)
        cells = [number(float(now[one.key][flat])) for one in shown]
        name = Styled(printable(record.layers[row].name, 32), overflow="ellipsis", no_wrap=True)
        made.add_row(str(record.layers[row].number), str(head), *cells, name)
    return [*_title(WORST, language), made]


def _events(record: WatchRecord, language: Language) -> list[RenderableType]:
    pieces = _title(EVENTS, language)
    if not record.events:
        return [*pieces, Styled(f"  {NO_EVENTS.to(language)}", style="dim")]
    for event in series.latest(record, MOST_EVENTS):
        when = STEP.format(step=thousands(event.step)).to(language)
        sign = (f"  {series.GLYPHS[event.kind]} {series.KINDS[event.kind].to(language)} ", STYLES[event.kind])
        pieces.append(Styled.assemble(sign, (f"{when}  ", "dim"), printable(event.message.to(language), 300)))
    left = len(record.events) - MOST_EVENTS
    return [*pieces, Styled(f"  {layout.MORE.format(n=left).to(language)}", style="dim")] if left > 0 else pieces


def _title(title: Text, language: Language, note: Text | None = None) -> list[RenderableType]:
    lines: list[RenderableType] = [Styled(), Styled(title.to(language), style="bold underline")]
    return lines if note is None else [*lines, Styled(note.to(language), style="dim")]
