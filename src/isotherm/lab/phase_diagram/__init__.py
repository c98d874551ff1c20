"""The phase diagram drawn: heat maps over d and n under each rule, and the curves that explain them."""

from math import log, sqrt

from torch import Tensor

from isotherm import theory
from isotherm.lab.claim import Setting
from isotherm.lab.content import read_words
from isotherm.lab.figures import figure, predicted
from isotherm.lab.interval import groups, line_over_seeds
from isotherm.lab.phase import Point, Rows, rules
from isotherm.language import Text
from isotherm.record import Figure, Heatmap

Grid = dict[int, dict[Point, Rows]]
"""Rows by number of keys, then by rule and dimension."""
SAYS = read_words(__file__)
IDS = {"none": "none", "1/√d": "sqrt", "1/d": "d", "log n": "logn"}
"""Each rule in the name of a file."""


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
    for statistic in ("gate", "entropy"):
        for name in rules():
            dimensions = setting["dimensions"] if name == "none" else setting["dimensions"][::2]
            xs, ys = (tuple(map(float, values)) for values in (dimensions, lengths))
            rows = zip(*(_means(grid, name, d, statistic) for d in dimensions), strict=True)
            edges = edge_line if name == "none" else None
            file, caption = f"freezing-{statistic}-{IDS[name]}", SAYS[f"{statistic} {name}"]
            maps.append(Heatmap(file, caption, SAYS["d"], SAYS["n"], SAYS[statistic], xs, ys, tuple(rows), edges))
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
    lines.append(predicted(SAYS["limit"], grid_x, lambda x: min(x, 1.0)))
    return figure("freezing-collapse", SAYS["collapse"], SAYS["collapse-x"], SAYS["collapse-y"], lines, log="x")


def boundary(frozen_at: dict[int, list[float]]) -> Figure:
    """Where rows freeze, measured and predicted."""
    lengths, squares = list(frozen_at), [[value**2 for value in values] for values in frozen_at.values()]
    lines = (
        line_over_seeds(SAYS["measured"], lengths, squares),
        predicted(SAYS["expected"], lengths, lambda n: largest(n) ** 2),
        predicted(Text("2 ln n", "2 ln n"), lengths, lambda n: 2 * log(n)),
    )
    return figure("freezing-boundary", SAYS["boundary"], SAYS["n"], SAYS["boundary-y"], lines, log="x")


def cut(grid: Grid, setting: Setting) -> Figure:
    """The gate over d at one n, with the exact expectation and the limit."""
    n, lines = setting["shown"], []
    for name in rules():
        dimensions = setting["dimensions"] if name == "none" else setting["dimensions"][::2]
        values = [spread(grid[n][name, d].gate) for d in dimensions]
        lines.append(line_over_seeds(SAYS.get(name, Text(name, name)), dimensions, values))
    dimensions = setting["dimensions"]
    exact = [theory.gaussian_attention(n, d, 1.0).jacobian_trace for d in dimensions]
    limit = [theory.asymptotic_jacobian_trace(n, sqrt(d)) for d in dimensions]
    lines.append(predicted(SAYS["exact"], dimensions, exact))
    lines.append(predicted(SAYS["no-scale-limit"], dimensions, limit))
    return figure("freezing-cut", SAYS["cut"].format(n=n), SAYS["d"], SAYS["gate"], lines, log="xy")
