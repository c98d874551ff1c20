"""Two check-ups side by side, for people: in a terminal and in a pull request; the largest changes first."""

from collections.abc import Iterator

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import State
from isotherm.report import digits, vocabulary
from isotherm.report.changes import Change, ComparedFinding, CompareRecord, LayerChange, compare
from isotherm.report.layout import MORE, heading, indented, rest, table
from isotherm.report.markdown import escaped, markdown_table

__all__ = ["CompareRecord", "compare", "show", "to_markdown"]

MOST = 12
_TITLE = Text("{before} → {after}", "{before} → {after}")
_NEW = Text("New findings", "新出现的发现")
_GONE = Text("Findings gone", "已消失的发现")
_MOVED = Text("Layers that moved", "有变化的层")
_FLIPPED = Text("Heads in another state", "状态改变的注意力头")
_ADDED = Text("Layers added", "新增的层")
_REMOVED = Text("Layers removed", "移除的层")
_SAME = Text("Nothing changed.", "没有变化。")
_FINDING = Text("{glyph} {code} ({place}) {message}", "{glyph} {code}（{place}）{message}")
_FLIP = Text("layer {layer}, {heads}: {before} → {after}", "第 {layer} 层，{heads}：{before} → {after}")
_HEAD, _SEVERAL_HEADS = Text("head {heads}", "头 {heads}"), Text("heads {heads}", "头 {heads}")
_HEADS = (
    Text("Layer", "层"),
    Text("Scale", "缩放"),
    Text("Entropy / ln n", "熵 / ln n"),
    Text("Gate p50", "闸门 p50"),
    Text("Gate p10", "闸门 p10"),
    Text("Max logit", "最大 logit"),
)


def show(record: CompareRecord, console: Console, language: Language) -> None:
    """Print a comparison."""
    console.print(Styled(_title(record, language), style="bold"))
    if not any(_parts(record)):
        console.print(Styled(_SAME.to(language), style="green"))
    for title, findings, style in ((_NEW, record.new_findings, ""), (_GONE, record.gone_findings, "green")):
        _listed(console, title, [_finding_line(found, language) for found in findings], language, style)
    if moved := moved_layers(record):
        heading(console, _MOVED, language)
        # Two digits where three do not fit: a cut-off number would be another one.
        made = _moved_table(moved[:MOST], language, 3)
        fits = Measurement.get(console, console.options.update(max_width=1000), made).maximum <= console.width
        console.print(made if fits else _moved_table(moved[:MOST], language, 2))
        rest(console, len(moved) - MOST, language)
    _listed(console, _FLIPPED, _flip_lines(record, language), language)
    for title, names in ((_ADDED, record.added_layers), (_REMOVED, record.removed_layers)):
        _listed(console, title, [printable(name, 100) for name in names], language)


def _moved_table(moved: list[LayerChange], language: Language, places: int) -> Table:
    made = table(_HEADS, language, gap=2 if places > 2 else 1, left=())
    for line in moved:
        made.add_row(str(line.index), *(_arrow(change, places) for change in _changes(line)))
    return made


def to_markdown(record: CompareRecord, language: Language) -> str:
    """The comparison as a pull request's comment."""
    blocks = [f"### {escaped(_title(record, language))}"]
    if not any(_parts(record)):
        blocks.append(_SAME.to(language))
    for title, findings in ((_NEW, record.new_findings), (_GONE, record.gone_findings)):
        blocks += _bullets(title, [_finding_line(found, language) for found in findings], language)
    if moved := moved_layers(record):
        rows = ([escaped(f"{line.index} {line.name}", 80), *map(_arrow, _changes(line))] for line in moved[:MOST])
        blocks += [f"**{_MOVED.to(language)}**", markdown_table([head.to(language) for head in _HEADS], rows)]
    blocks += _bullets(_FLIPPED, _flip_lines(record, language), language)
    for title, names in ((_ADDED, record.added_layers), (_REMOVED, record.removed_layers)):
        blocks += _bullets(title, list(names), language)
    return "\n\n".join(blocks) + "\n"


def moved_layers(record: CompareRecord) -> list[LayerChange]:
    """Layers whose rounded numbers differ, the largest relative change first."""
    moved = [(size, line) for line in record.layers if (size := _size(line)) > 0]
    return [line for _, line in sorted(moved, key=lambda item: (-item[0], item[1].index))]


def _size(line: LayerChange) -> float:
    sizes = [0.0]
    for change in _changes(line):
        if change.difference is None:
            sizes.append(0.0 if change.before == change.after else 1.0)
        elif digits.number(change.before) != digits.number(change.after):
            sizes.append(abs(change.difference) / max(abs(change.before or 0), abs(change.after or 0), 0.05))
    return max(sizes)


def _changes(line: LayerChange) -> tuple[Change, ...]:
    return line.scale, line.entropy_fraction, line.gate_p50, line.gate_p10, line.max_logit


def _arrow(change: Change, places: int = 3) -> str:
    before, after = digits.number(change.before, places), digits.number(change.after, places)
    return before if before == after else f"{before} → {after}"


def _title(record: CompareRecord, language: Language) -> str:
    names = printable(record.before, 80), printable(record.after, 80)
    return _TITLE.format(before=names[0], after=names[1]).to(language)


def _parts(record: CompareRecord) -> Iterator[bool]:
    yield bool(record.new_findings or record.gone_findings or record.flips)
    yield bool(record.added_layers or record.removed_layers or moved_layers(record))


def _finding_line(found: ComparedFinding, language: Language) -> str:
    finding = found.finding
    return _FINDING.format(
        glyph=vocabulary.SEVERITY_GLYPHS[finding.severity],
        code=printable(finding.code, 60),
        place=vocabulary.place(finding.layer, finding.head),
        message=printable(finding.message.to(language), 300),
    ).to(language)


def _flip_lines(record: CompareRecord, language: Language) -> list[str]:
    """One line for all heads of a layer that changed between the same two states."""
    groups: dict[tuple[int, State, State], list[str]] = {}
    for flip in record.flips:
        groups.setdefault((flip.layer, flip.before, flip.after), []).append(str(flip.head))
    lines = []
    for (layer, before, after), heads in groups.items():
        states = {"before": _state(before), "after": _state(after)}
        named = (_HEAD if len(heads) == 1 else _SEVERAL_HEADS).format(heads=", ".join(heads))
        lines.append(_FLIP.format(layer=layer, heads=named, **states).to(language))
    return lines


def _state(state: State) -> Text:
    name, glyph = vocabulary.STATES[state], vocabulary.STATE_GLYPHS[state]
    return Text(f"{glyph} {name.en}", f"{glyph} {name.zh}")


def _listed(console: Console, title: Text, lines: list[str], language: Language, style: str = "") -> None:
    if not lines:
        return
    heading(console, title, language)
    for line in lines[:MOST]:
        indented(console, Styled(line, style=style))
    rest(console, len(lines) - MOST, language)


def _bullets(title: Text, lines: list[str], language: Language) -> list[str]:
    if not lines:
        return []
    more = [MORE.format(n=len(lines) - MOST).to(language)] if len(lines) > MOST else []
    return [f"**{title.to(language)}**", "\n".join(f"- {escaped(line, 400)}" for line in [*lines[:MOST], *more])]
