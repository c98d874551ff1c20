"""The phase diagram drawn: heat maps over d and n under each rule, and the curves that explain them."""

from math import log, sqrt

from torch import Tensor

from isotherm import theory
from isotherm.lab.claim import Setting
from isotherm.lab.figures import figure, predicted
from isotherm.lab.interval import groups, line_over_seeds
from isotherm.lab.phase import Point, Rows, rules
from isotherm.language import Text
from isotherm.record import Figure, Heatmap

Grid = dict[int, dict[Point, Rows]]
"""Rows by number of keys, then by rule and dimension."""


def spread(values: Tensor) -> list[float]:
    """Means of a few groups of rows, for intervals."""
    return groups(values, 32)


def largest(n: int) -> float:
    """The expected largest of n standard normals: where the attended logit stops, in standard deviations."""
    return theory.gaussian_row(n, 1.0).max_logit


def _means(grid: Grid, name: str, d: int, statistic: str) -> list[float]:
    return [float(getattr(cells[name, d], statistic).mean()) for cells in grid.values()]


def heatmaps(grid: Grid, setting: Setting) -> list[Heatmap]:
    """Gate and entropy under each rule; the predicted boundary where there is one."""
    lengths = setting["lengths"]
    edge = {theory.freezing_dimension(n): float(n) for n in lengths}
    inside = [d for d in edge if d >= setting["dimensions"][0]]
    edge_line = predicted(Text("d = 2 ln n", "d = 2 ln n"), inside, lambda d: edge[d])
    maps = []
    for statistic, value in VALUES.items():
        for name in rules():
            dimensions = setting["dimensions"] if name == "none" else setting["dimensions"][::2]
            xs, ys = (tuple(map(float, values)) for values in (dimensions, lengths))
            rows = zip(*(_means(grid, name, d, statistic) for d in dimensions), strict=True)
            edges = edge_line if name == "none" else None
            caption = CAPTIONS[statistic, name]
            maps.append(Heatmap(f"freezing-{statistic}-{IDS[name]}", caption, D, N, value, xs, ys, tuple(rows), edges))
    return maps


def collapse(grid: Grid, setting: Setting) -> Figure:
    """The attended logit against σ, both scaled by σ_c, so that the curves of all n fall together."""
    lines = []
    for n in setting["lengths"][2:]:
        critical = theory.freezing_threshold(n)
        values = [[value / critical for value in spread(grid[n]["none", d].reach)] for d in setting["dimensions"]]
        sigma = [sqrt(d) / critical for d in setting["dimensions"]]
        lines.append(line_over_seeds(Text("n = {n}", "n = {n}").format(n=n), sigma, values))
    grid_x = [10 ** (i / 20) for i in range(-16, 31)]
    lines.append(predicted(Text("limit of large n", "n 很大时的极限"), grid_x, lambda x: min(x, 1.0)))
    y = Text("attended logit ⟨s⟩/(σ√(2 ln n))", "被关注的 logit ⟨s⟩/(σ√(2 ln n))")
    x = Text("σ/√(2 ln n), σ = √d", "σ/√(2 ln n)，σ = √d")
    return figure("freezing-collapse", COLLAPSE, x, y, lines, log="x")


def boundary(frozen_at: dict[int, list[float]]) -> Figure:
    """Where rows freeze, measured and predicted."""
    lengths, squares = list(frozen_at), [[value**2 for value in values] for values in frozen_at.values()]
    expected = Text("square of the expected largest of n normals", "n 个正态数最大值期望的平方")
    lines = (
        line_over_seeds(Text("measured, σ*²", "实测 σ*²"), lengths, squares),
        predicted(expected, lengths, lambda n: largest(n) ** 2),
        predicted(Text("2 ln n", "2 ln n"), lengths, lambda n: 2 * log(n)),
    )
    y_label = Text("d at which unscaled attention freezes (dimensions)", "未缩放注意力冻结时的 d（维）")
    return figure("freezing-boundary", BOUNDARY, N, y_label, lines, log="x")


def cut(grid: Grid, setting: Setting) -> Figure:
    """The gate over d at one n, with the exact expectation and the limit."""
    n, lines = setting["shown"], []
    for name in rules():
        dimensions = setting["dimensions"] if name == "none" else setting["dimensions"][::2]
        lines.append(line_over_seeds(NAMES[name], dimensions, [spread(grid[n][name, d].gate) for d in dimensions]))
    dimensions = setting["dimensions"]
    exact = [theory.gaussian_attention(n, d, 1.0).jacobian_trace for d in dimensions]
    limit = [theory.asymptotic_jacobian_trace(n, sqrt(d)) for d in dimensions]
    lines.append(predicted(Text("no scale: exact expectation", "不缩放：精确期望"), dimensions, exact))
    lines.append(predicted(Text("no scale: limit of large n", "不缩放：n 很大时的极限"), dimensions, limit))
    return figure("freezing-cut", CUT.format(n=n), D, VALUES["gate"], lines, log="xy")


IDS = {"none": "none", "1/√d": "sqrt", "1/d": "d", "log n": "logn"}
NAMES = {
    "none": Text("no scale", "不缩放"),
    "1/√d": Text("1/√d", "1/√d"),
    "1/d": Text("1/d", "1/d"),
    "log n": Text("log n: max(1, ln n/ln 512)/√d", "log n 规则：max(1, ln n/ln 512)/√d"),
}
D, N = Text("d (dimensions, logarithmic)", "d（维，对数轴）"), Text("n (keys, logarithmic)", "n（键数，对数轴）")
VALUES = {
    "gate": Text("mean gate 1 − Σp²", "闸门 1 − Σp² 的均值"),
    "entropy": Text("mean entropy/ln n", "熵/ln n 的均值"),
}
CAPTIONS = {
    ("gate", "none"): Text(
        "Without a scale: to the right of d = 2 ln n the gate shuts, for any number of keys. A real head (d = 64 or "
        "128) lies deep in the dark part.",
        "不缩放：在 d = 2 ln n 右侧闸门关闭，无论有多少键。真实的注意力头（d = 64 或 128）深处暗区。",
    ),
    ("gate", "1/√d"): Text(
        "With 1/√d: the picture no longer depends on d. That is all the square root does, and it is enough.",
        "用 1/√d：图像不再依赖 d。平方根的作用仅此而已，也就够了。",
    ),
    ("gate", "1/d"): Text(
        "With 1/d: open everywhere, but the wider the head the flatter the softmax; it stops choosing.",
        "用 1/d：处处畅通，但头越宽 softmax 越平，不再作选择。",
    ),
    ("gate", "log n"): Text(
        "With ln n/ln 512 on top of 1/√d for long contexts: a little sharper at large n, still far from freezing.",
        "在 1/√d 之上对长上下文再乘 ln n/ln 512：n 大时略尖锐，但离冻结还很远。",
    ),
    ("entropy", "none"): Text(
        "Entropy without a scale, as a part of ln n: it is used up along the same line.",
        "不缩放时的熵（占 ln n 的比例）：沿同一条线耗尽。",
    ),
    ("entropy", "1/√d"): Text(
        "Entropy with 1/√d: about ln n − ½ at every d.",
        "用 1/√d 时的熵：在任何 d 下约为 ln n − ½。",
    ),
    ("entropy", "1/d"): Text(
        "Entropy with 1/d: all of ln n already at moderate d. The gate is open, but nothing is chosen.",
        "用 1/d 时的熵：d 稍大就已达到 ln n。闸门虽开，却什么也没选。",
    ),
    ("entropy", "log n"): Text(
        "Entropy with log n: its share of ln n no longer creeps up to 1 as the context grows beyond 512.",
        "用 log n 时的熵：上下文超过 512 后，它占 ln n 的比例不再一味升向 1。",
    ),
}
COLLAPSE = Text(
    "How far above the mean the attended keys lie, in units of √(2 ln n) standard deviations. Left of 1 attention "
    "climbs with σ over many keys; at 1 it arrives at the largest key there is and can go no further: it is frozen. "
    "The curves for all n fall nearly together, and come closer to the corner as n grows.",
    "被关注的键高出均值多少（以 √(2 ln n) 个标准差为单位）。在 1 的左侧，注意力随 σ 在许多键上攀升；到 1 时抵达现有的"
    "最大键，再无可升：这就是冻结。各个 n 的曲线几乎重合，n 越大越贴近拐角。",
)
BOUNDARY = Text(
    "Where the two straight parts of that curve meet. The measured point is the expected largest of n normals, "
    "squared; 2 ln n is its limit, approached from below and slowly.",
    "上图两段直线的交点。实测值是 n 个正态数最大值期望的平方；2 ln n 是其极限，从下方缓慢逼近。",
)
CUT = Text("The gate along one row of the diagram, n = {n}.", "相图中一行上的闸门，n = {n}。")
