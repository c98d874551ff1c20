"""Figures as PNG, from the same records with the same looks, where matplotlib is installed."""

import contextlib
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import Figure, Heatmap
from isotherm.report.draw import palette
from isotherm.report.draw.axes import axes, boundary, label, value_axis
from isotherm.report.draw.bars import groups
from isotherm.report.draw.series import Series, legend, series
from isotherm.report.draw.svg import PANELS
from isotherm.report.files import write_atomically

MISSING = Text(
    "no PNG figures: matplotlib is not installed (pip install 'isotherm[plots]'); the SVG ones are there",
    "没有 PNG 图：未安装 matplotlib（pip install 'isotherm[plots]'）；SVG 图已写出",
)
NO_FONT = Text(
    "no PNG figures in Chinese: no font with Chinese characters was found; the SVG ones are there",
    "没有中文 PNG 图：未找到含中文字符的字体；SVG 图已写出",
)
_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Serif CJK SC",
    "PingFang SC",
    "Microsoft YaHei",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "SimHei",
)
_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "wedge": "v", "cross": "x"}


def obstacle(language: Language) -> Text | None:
    """Why there can be no PNG here; None when there can."""
    if find_spec("matplotlib") is None:
        return MISSING
    return NO_FONT if language == "zh" and _chinese_font() is None else None


def write(pictures: Sequence[Figure | Heatmap], path: Path, language: Language, title: Text | None = None) -> None:
    """Draw pictures with the same lines side by side, with one legend; several stand under their captions."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    font = _chinese_font() if language == "zh" else None
    families = [*([font] if font else []), "DejaVu Sans"]
    columns, rows = min(len(pictures), PANELS), -(-len(pictures) // PANELS)
    width, height = (8.6, 5.6) if isinstance(pictures[0], Heatmap) else (6.4, 4.4)
    settings: Any = {"font.family": families, "font.size": 9, "axes.unicode_minus": False, "text.parse_math": False}
    with rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing glyph or a tight margin is no reason to fail
        sheet = Sheet(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(sheet)
        for number, picture in enumerate(pictures):
            plane = sheet.add_subplot(rows, columns, number + 1)
            _panel(picture, plane, sheet, language)
            if len(pictures) > 1:
                plane.set_title(_said(picture.caption, language), fontsize=9, loc="left")
        _legend(pictures[0], sheet, language)
        if title is not None:
            sheet.suptitle(_said(title, language), fontsize=10)
        about = _said(title or pictures[0].caption, language)
        image = BytesIO()
        sheet.savefig(image, format="png", dpi=150, metadata={"Software": "isotherm", "Description": about})
    write_atomically(path, image.getvalue())


def _said(text: Text, language: Language) -> str:
    return printable(text.to(language), 200)


def _panel(picture: Figure | Heatmap, plane: Any, sheet: Any, language: Language) -> None:
    plane.spines[["top", "right"]].set_visible(False)
    plane.set_xlabel(_said(picture.x, language))
    plane.set_ylabel(_said(picture.y, language))
    if isinstance(picture, Heatmap):
        _heatmap(picture, plane, sheet, language)
        return
    across, upward = axes(picture)
    plane.grid(axis="y", color=palette.RULE["light"], linewidth=0.7)
    plane.set_axisbelow(True)
    if picture.bars:
        _bars(picture, plane)
    else:
        for look in series(picture):
            _curve(look, plane)
        plane.set_xscale("log" if picture.x_log else "linear")
        plane.set_xticks(across.ticks, [across.label(tick) for tick in across.ticks])
    plane.set_yscale("log" if picture.y_log else "linear")
    plane.set_yticks(upward.ticks, [upward.label(tick) for tick in upward.ticks])
    plane.set_ylim(upward.low, upward.high)
    plane.minorticks_off()


def _known(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _dashes(look: Series) -> Any:
    return "-" if look.dash is None else (0, [float(part) for part in look.dash.split()])


def _curve(look: Series, plane: Any) -> None:
    line, colour = look.line, look.colour_on("light")
    plane.plot(line.x, _known(line.y), **_looks(look), markevery=max(1, len(line.x) // 12))
    if line.low is not None and line.high is not None and not look.joined:
        plane.vlines(line.x, _known(line.low), _known(line.high), color=colour, linewidth=1.2)
    elif line.low is not None and line.high is not None:
        plane.fill_between(line.x, _known(line.low), _known(line.high), color=colour, alpha=0.16, linewidth=0)


def _looks(look: Series) -> dict[str, Any]:
    colour = look.colour_on("light")
    return {
        "color": colour,
        "linestyle": _dashes(look) if look.joined else "",
        "linewidth": 1.6,
        "marker": _MARKERS[look.marker] if look.marker else None,
        "markersize": 5,
        "markerfacecolor": "none" if look.line.source != "measured" else colour,
    }


def _bars(figure: Figure, plane: Any) -> None:
    xs, looks = groups(figure), series(figure)
    width = 0.8 / len(looks)
    for number, look in enumerate(looks):
        places = [xs.index(x) + (number + 0.5) * width - 0.4 for x in look.line.x]
        plane.bar(places, [value or 0.0 for value in look.line.y], width * 0.9, **_fill(look))
    plane.set_xticks(range(len(xs)), [label(x) for x in xs])


def _fill(look: Series) -> dict[str, Any]:
    colour = look.colour_on("light")
    return {"facecolor": colour if look.line.source == "measured" else "none", "edgecolor": colour}


def _heatmap(heatmap: Heatmap, plane: Any, sheet: Any, language: Language) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    ramp = LinearSegmentedColormap.from_list("isotherm", palette.RAMP)
    scale = value_axis(heatmap)
    values = [_known(row) for row in heatmap.values]
    image = plane.imshow(values, origin="lower", aspect="auto", cmap=ramp, vmin=scale.low, vmax=scale.high)
    for setter, marks in ((plane.set_xticks, heatmap.xs), (plane.set_yticks, heatmap.ys)):
        every = -(-len(marks) // 12)
        setter(range(0, len(marks), every), [label(mark) for mark in marks[::every]])
    if points := boundary(heatmap):
        across, upward = zip(*points, strict=True)
        plane.plot(across, upward, color=palette.ON_PALE, linewidth=4)
        plane.plot(across, upward, color=palette.ON_DEEP, linewidth=2, linestyle="--")
    sheet.colorbar(image, ax=plane, label=_said(heatmap.value, language))


def _legend(picture: Figure | Heatmap, sheet: Any, language: Language) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    signs: list[Any]
    if isinstance(picture, Heatmap):
        names = [] if picture.boundary is None else [picture.boundary.name]
        signs = [Line2D([], [], color=palette.ON_PALE, linewidth=2, linestyle="--") for _ in names]
    else:
        entries = legend(picture)
        names = [name for _, name in entries]
        signs = [Patch(**_fill(look)) if picture.bars else Line2D([], [], **_looks(look)) for look, _ in entries]
    if names:
        texts = [_said(name, language) for name in names]
        columns = max(2, min(5, 80 // max(map(len, texts))))
        sheet.legend(
            signs, texts, loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=3.2
        )


def _chinese_font() -> str | None:
    from matplotlib import font_manager

    manager = font_manager.fontManager
    if (font := _listed()) is not None:
        return font
    # matplotlib keeps its list of fonts from run to run: some may have been installed since.
    old = {font.fname for font in manager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in old:
            with contextlib.suppress(OSError, RuntimeError):
                manager.addfont(path)
    return _listed()


def _listed() -> str | None:
    from matplotlib import font_manager

    known = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in _FONTS if name in known), None)
