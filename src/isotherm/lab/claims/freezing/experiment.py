"""The phase diagram of attention: for which d and n a softmax over random scores is frozen, with and without a scale."""

from dataclasses import replace
from math import log, sqrt

from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.claim import Result, Setting, all_hold, at_most, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import multiplier
from isotherm.lab.interval import interval, over_seeds, power
from isotherm.lab.numerals import numeral, percent
from isotherm.lab.phase import dot_rows, rows_over, rules
from isotherm.lab.phase_diagram import Grid, boundary, collapse, cut, heatmaps, largest, spread
from isotherm.language import Text
from isotherm.record import Measured

SAYS = read_content(__file__)
AS_WRITTEN, EXACT, SOUND = 0.1, 0.03, 0.9
"""How near σ* must come to √(2 ln n) and to its finite-n value, and the share of cells that must agree with theory."""
FALLS = 0.1
"""How near −½ the power of d must come with which the gate goes on to close."""
HEADS = (64, 128)
"""The dimensions of real heads, which are always reported."""
FREE = 64
"""With this many keys or more, a scaled row is expected to stay open at every d."""


def experiment(setting: Setting) -> Result:
    """Measure rows under every rule over d and n, and find where the unscaled ones freeze."""
    lengths, coarse = setting["lengths"], setting["dimensions"][::2]
    points = [("none", d) for d in setting["dimensions"]] + [(name, d) for name in list(rules())[1:] for d in coarse]
    grid: Grid = {}
    for i, n in enumerate(lengths):
        grid[n] = rows_over(setting, n, points, rules())
        setting.progress(0.7 * (i + 1) / len(lengths))
    frozen_at = {n: spread(grid[n]["none", setting["dimensions"][-1]].reach) for n in lengths}
    limits = [_limit(n, values) for n, values in frozen_at.items()]
    closing = _closing(setting)
    falls = _falls(setting["shown"], closing)
    checks = (_distance(frozen_at), _agreement(grid, coarse), _real(setting, grid), *_scaled(grid, coarse), *falls)
    return conclude(
        all_hold((*limits, *checks)),
        _sentence(grid, setting, closing),
        (*limits, *checks),
        (collapse(grid, setting), boundary(frozen_at), cut(grid, setting)),
        heatmaps(grid, setting),
        under=all_hold(checks),
        condition=SAYS["condition"],
    )


def _limit(n: int, values: list[float]) -> Measured:
    limit = theory.freezing_threshold(n)
    near = abs(interval(values).mean / limit - 1) <= AS_WRITTEN
    name = SAYS["freezes-at"].format(n=n, limit=numeral(limit))
    return over_seeds(name, values, predicted=largest(n), holds=near)


def _distance(frozen_at: dict[int, list[float]]) -> Measured:
    """How far σ* is from the expected largest of n normals, beyond what its interval allows."""
    far = [
        max(interval(values).low - largest(n), largest(n) - interval(values).high, 0.0) / largest(n)
        for n, values in frozen_at.items()
    ]
    return at_most(SAYS["distance"], max(far), EXACT, predicted=0.0)


def _agreement(grid: Grid, dimensions: tuple[int, ...]) -> Measured:
    """Cells whose 95 % interval of the attended logit contains its exact expectation, to a part in 10⁴."""
    inside = []
    for n, cells in grid.items():
        for (name, d), rows in cells.items():
            if d in dimensions:
                expected = theory.gaussian_attention(n, d, multiplier(rules()[name], d, n))
                found = interval(spread(rows.stats.lse - rows.stats.entropy))
                wanted = expected.lse - expected.entropy
                inside.append(found.low - 1e-4 * wanted <= wanted <= found.high + 1e-4 * wanted)
    part = sum(inside) / len(inside)
    return Measured(SAYS["agreement"].format(count=len(inside)), part, predicted=0.95, holds=part >= SOUND)


def _real(setting: Setting, grid: Grid) -> Measured:
    """Rows of whole dot products against rows of components along q, in standard errors of their difference."""
    apart = []
    for n in setting["real_lengths"]:
        for d in setting["real_dimensions"]:
            seeds = [dot_rows(setting, n, d, scale.NoScale(), seed) for seed in range(setting["seeds"])]
            for statistic in ("gate", "entropy"):
                ours = interval([float(getattr(rows, statistic).mean()) for rows in seeds])
                theirs = interval(spread(getattr(grid[n]["none", d], statistic)))
                error = sqrt(ours.spread**2 / ours.count + theirs.spread**2 / theirs.count)
                apart.append(abs(ours.mean - theirs.mean) / error)
    return at_most(SAYS["real"], max(apart), 4)


def _scaled(grid: Grid, dimensions: tuple[int, ...]) -> tuple[Measured, ...]:
    """With 1/√d and with log n no row freezes; with 1/d every row goes flat."""
    wide = [n for n in grid if n >= FREE]
    lowest = {
        name: min(float(grid[n][name, d].gate.mean()) for n in wide for d in dimensions) for name in ("1/√d", "log n")
    }
    last = dimensions[-1]
    flat = min(float(grid[n]["1/d", last].entropy.mean()) for n in grid)
    shut = max(float(grid[n]["none", last].gate.mean()) for n in grid)
    return (
        *(
            Measured(SAYS["lowest-gate"].format(rule=name, n=FREE), value, holds=value >= SOUND)
            for name, value in lowest.items()
        ),
        Measured(SAYS["flat"].format(d=last), flat, predicted=1.0, holds=flat >= 0.99),
        Measured(SAYS["shut"].format(d=last), shut, holds=shut <= 0.2),
    )


def _closing(setting: Setting) -> dict[int, Tensor]:
    """Gates of many unscaled rows at d = 2 ln n and from the dimensions of real heads on; few rows carry the mean there."""
    n = setting["shown"]
    dimensions = [round(2 * log(n)), *HEADS, *(d for d in setting["dimensions"] if d > HEADS[-1])]
    many = replace(setting, parameters={**setting.parameters, "rows": {n: setting["closing_rows"]}})
    found = rows_over(many, n, [("none", d) for d in dimensions], rules())
    return {d: found["none", d].gate for d in dimensions}


def _falls(n: int, closing: dict[int, Tensor]) -> tuple[Measured, ...]:
    """The gate where it begins to close and at the dimensions of real heads; the power of d with which it goes on."""
    first, *wide = closing
    falls = power(wide, [float(closing[d].mean()) for d in wide])
    near = abs(falls + 0.5) <= FALLS
    return (
        *(_gate(n, d, closing[d]) for d in (first, *HEADS)),
        Measured(SAYS["falls"].format(n=n, d=wide[0]), falls, predicted=-0.5, holds=near),
    )


def _gate(n: int, d: int, gate: Tensor) -> Measured:
    expected = theory.gaussian_attention(n, d, multiplier(scale.NoScale(), d, n)).jacobian_trace
    return over_seeds(SAYS["gate-at"].format(n=n, d=d), spread(gate), predicted=expected)


def _sentence(grid: Grid, setting: Setting, closing: dict[int, Tensor]) -> Text:
    n, first = setting["shown"], next(iter(closing))
    gates = {f"gate{d}": percent(float(closing[d].mean()), 0) for d in HEADS}
    begins = percent(float(closing[first].mean()), 0)
    scaled = percent(min(float(grid[n]["1/√d", d].gate.mean()) for d in setting["dimensions"][::2]))
    return SAYS["outcome"].format(n=n, limit=f"{2 * log(n):.1f}", begins=begins, scaled=scaled, **gates)


CLAIM = SAYS.claim(
    id="freezing",
    sources=(),
    expected="conditional",
    experiment=experiment,
    quick={
        "dimensions": tuple(2**k for k in range(1, 13)),
        "lengths": (2, 4, 16, 64, 256, 1024, 4096, 16384, 65536),
        "rows": {2: 256, 4: 256, 16: 256, 64: 256, 256: 256, 1024: 256, 4096: 128, 16384: 64, 65536: 32},
        "shown": 1024,
        "closing_rows": 2048,
        "real_dimensions": (2, 16, 128, 1024),
        "real_lengths": (4, 64, 1024),
        "queries": 64,
        "seeds": 8,
    },
    full={
        "lengths": tuple(2**k for k in range(1, 17)),
        "rows": {2**k: 1024 if k <= 12 else 256 for k in range(1, 17)},
        "closing_rows": 8192,
        "real_dimensions": (2, 8, 32, 128, 512, 2048),
        "real_lengths": (2, 16, 128, 1024, 4096),
        "seeds": 16,
    },
)
