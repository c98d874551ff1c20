"""Figures as PNG, from the same records with the same looks, where matplotlib is installed."""

import contextlib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isotherm.language import Language, Text
from isotherm.record import Figure, Heatmap
from isotherm.report import glyphs
from isotherm.report.explain import palette
from isotherm.report.explain.axes import axes
from isotherm.report.explain.heat import rank, value_axis
from isotherm.report.explain.series import PREDICTED, Series, is_paired, series

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
    "PingFang SC",
    "Microsoft YaHei",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
)
_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "wedge": "v", "cross": "x"}


def obstacle(language: Language) -> Text | None:
    """Why there can be no PNG here; None when there can."""
    if find_spec("matplotlib") is None:
        return MISSING
    return NO_FONT if language == "zh" and _chinese_font() is None else None


def write(picture: Figure | Heatmap, path: Path, language: Language) -> None:
    """Draw one figure to a file."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    font = _chinese_font() if language == "zh" else None
    families = [*([font] if font else []), "DejaVu Sans"]
    with rc_context({"font.family": families, "font.size": 9, "axes.unicode_minus": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph or a tight margin that is missing is no reason to fail
        sheet = Sheet(figsize=(6.4, 4.4) if isinstance(picture, Figure) else (8.6, 5.6), layout="constrained")
        FigureCanvasAgg(sheet)
        plane = sheet.add_subplot()
        plane.spines[["top", "right"]].set_visible(False)
        if isinstance(picture, Heatmap):
            _heatmap(picture, plane, sheet, language)
        else:
            _figure(picture, plane, language)
        plane.set_xlabel(picture.x.to(language))
        plane.set_ylabel(picture.y.to(language))
        sheet.savefig(path, dpi=150, metadata={"Software": "isotherm", "Description": picture.caption.to(language)})


def _figure(figure: Figure, plane: Any, language: Language) -> None:
    if figure.x_log and not figure.bars:
        plane.set_xscale("log")
        ticks = axes(figure)[0].ticks
        plane.set_xticks(ticks, [axes(figure)[0].label(tick) for tick in ticks])
        plane.minorticks_off()
    if figure.y_log:
        plane.set_yscale("log")
    looks = series(figure)
    if figure.bars:
        _bars(figure, looks, plane, language)
    else:
        for look in looks:
            _curve(look, plane, language)
    if is_paired(figure):
        dash = (0, [float(part) for part in palette.DASHES[0].split()])
        plane.plot([], [], color=palette.INK["light"], linestyle=dash, label=PREDICTED.to(language))
    plane.grid(axis="y", color=palette.RULE["light"], linewidth=0.7)
    plane.set_axisbelow(True)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 1 + (len(looks) > 4)}
    plane.legend(frameon=False, fontsize=8, handlelength=3.2, **below)


def _curve(look: Series, plane: Any, language: Language) -> None:
    line, colour = look.line, _colour(look)
    y = [float("nan") if value is None else value for value in line.y]
    dash = "-" if look.dash is None else (0, [float(part) for part in look.dash.split()])
    hollow = "none" if line.source != "measured" else colour
    plane.plot(
        line.x,
        y,
        color=colour,
        linestyle=dash,
        linewidth=1.6,
        marker=_MARKERS[look.marker] if look.marker else None,
        markersize=5,
        markevery=max(1, len(line.x) // 12),
        markerfacecolor=hollow,
        label=None if look.name is None else look.name.to(language),
    )
    if line.low is not None and line.high is not None:
        low, high = ([float("nan") if value is None else value for value in side] for side in (line.low, line.high))
        plane.fill_between(line.x, low, high, color=colour, alpha=0.16, linewidth=0)


def _bars(figure: Figure, looks: tuple[Series, ...], plane: Any, language: Language) -> None:
    xs = sorted({x for line in figure.lines for x in line.x})
    width = 0.8 / len(looks)
    for number, look in enumerate(looks):
        places = [xs.index(x) + (number + 0.5) * width - 0.4 for x in look.line.x]
        heights = [0.0 if value is None else value for value in look.line.y]
        filled = look.line.source == "measured"
        looks_like = {"color": _colour(look) if filled else "none", "edgecolor": _colour(look)}
        plane.bar(places, heights, width * 0.9, label=look.line.name.to(language), **looks_like)
    plane.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])


def _heatmap(heatmap: Heatmap, plane: Any, sheet: Any, language: Language) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    ramp = LinearSegmentedColormap.from_list("isotherm", glyphs.RAMP)
    values = [[float("nan") if value is None else value for value in row] for row in heatmap.values]
    scale = value_axis(heatmap)
    image = plane.imshow(values, origin="lower", aspect="auto", cmap=ramp, vmin=scale.low, vmax=scale.high)
    for setter, marks in ((plane.set_xticks, heatmap.xs), (plane.set_yticks, heatmap.ys)):
        every = -(-len(marks) // 12)
        setter(range(0, len(marks), every), [f"{mark:g}" for mark in marks[::every]])
    if heatmap.boundary is not None:
        pairs = [
            (rank(heatmap.xs, x), None if y is None else rank(heatmap.ys, y))
            for x, y in zip(heatmap.boundary.x, heatmap.boundary.y, strict=True)
        ]
        inside = [(x, y) for x, y in pairs if x is not None and y is not None]
        across, upward = [x for x, _ in inside], [y for _, y in inside]
        plane.plot(across, upward, color="#17181c", linewidth=4)
        plane.plot(across, upward, color="white", linewidth=2, linestyle="--", label=heatmap.boundary.name.to(language))
        plane.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), facecolor="#8a8f98", fontsize=8)
    sheet.colorbar(image, ax=plane, label=heatmap.value.to(language))


def _colour(look: Series) -> str:
    if look.colour.isdigit():
        return palette.SERIES["light"][int(look.colour)]
    return palette.DOCUMENT["light"] if look.colour == "doc" else palette.INK["light"]


def _chinese_font() -> str | None:
    from matplotlib import font_manager

    manager = font_manager.fontManager
    if (font := _listed()) is not None:
        return font
    # matplotlib keeps its list from run to run: fonts may have come since.
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
