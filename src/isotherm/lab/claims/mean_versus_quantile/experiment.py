"""«The gradient vanishes»: which one? The mean hardly does, the median does, and the lower tenth is gone first."""

from functools import partial
from math import log, sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import logits, normal
from isotherm.lab.figures import MEAN, QUANTILES, D, figure, predicted
from isotherm.lab.interval import MeanInterval, geometric, interval, line_over_seeds, over_seeds, power, powers
from isotherm.lab.numerals import numeral
from isotherm.record import Figure, Measured
from isotherm.stats import RowStats

SAYS = read_content(__file__)
VANISHES = 1000
"""A number that falls by this factor from the smallest to the largest d is said to vanish."""
QUANTILE_OF = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
RULES: dict[str, scale.Rule] = {"none": scale.NoScale(), "1/√d": scale.InverseSqrt()}
Values = dict[str, dict[int, list[float]]]


def experiment(setting: Setting) -> Result:
    """The gate of unscaled and of scaled attention over d: its mean and its quantiles, one number of each per seed."""
    found = _measure(setting)
    unscaled, scaled = found["none"], found["1/√d"]
    dimensions = setting["dimensions"]
    first, last, large = dimensions[0], dimensions[-1], dimensions[len(dimensions) // 2 :]
    falls = {name: _fall(table, first, last) for name, table in unscaled.items()}
    gone = {name: fall.low >= VANISHES for name, fall in falls.items()}
    open_ = min(interval(scaled["p10"][d]).low for d in dimensions)
    exponents = powers(large, [unscaled["mean"][d] for d in large])
    expected = power(large, [_predicted(setting, "mean", d) for d in large])
    numbers = (
        *(_fallen(setting, name, fall, gone[name]) for name, fall in falls.items()),
        over_seeds(SAYS["slope"], exponents, predicted=expected),
        *(_at(setting, name, table[last]) for name, table in unscaled.items()),
        Measured(SAYS["lowest-scaled"], open_, holds=open_ > 0.5),
    )
    typical = gone["p10"] and gone["p50"] and open_ > 0.5
    mean, median, p10 = (numeral(falls[name].mean, digits) for name, digits in (("mean", 2), ("p50", 1), ("p10", 1)))
    return conclude(
        typical and gone["mean"],
        SAYS["outcome"].format(a=first, b=last, n=setting["keys"], mean=mean, median=median, p10=p10),
        numbers,
        [_figure(setting, unscaled, scaled)],
        under=typical,
        condition=SAYS["condition"],
    )


def _fallen(setting: Setting, name: str, fall: MeanInterval, gone: bool) -> Measured:
    first, last = setting["dimensions"][0], setting["dimensions"][-1]
    expected = _predicted(setting, name, first) / _predicted(setting, name, last) if name == "mean" else None
    called = SAYS[f"fall-{name}"].format(a=first, b=last)
    return Measured(called, fall.mean, fall.low, fall.high, expected, None, gone)


def _at(setting: Setting, name: str, values: list[float]) -> Measured:
    last = setting["dimensions"][-1]
    called = SAYS[f"at-{name}"].format(d=last)
    return over_seeds(called, values, KINDS[name], predicted=_predicted(setting, name, last))


def _measure(setting: Setting) -> dict[str, Values]:
    """Both rules on the same q and k."""
    found: dict[str, Values] = {rule: {name: {} for name in NAMES} for rule in RULES}
    for d in setting["dimensions"]:
        gates = [_gates(setting, d, generator) for generator in setting.generators(d)]
        for rule, table in found.items():
            table["mean"][d] = [float(gate[rule].mean()) for gate in gates]
            for name, q in QUANTILE_OF.items():
                table[name][d] = [float(gate[rule].quantile(q)) for gate in gates]
        setting.progress(d / setting["dimensions"][-1])
    return found


def _gates(setting: Setting, d: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The gate of every row of one draw, under each rule."""
    q, k = (normal((rows, d), generator) for rows in (setting["queries"], setting["keys"]))
    return {name: RowStats.from_logits(logits(q, k, rule)).jacobian_trace for name, rule in RULES.items()}


def _fall(table: dict[int, list[float]], first: int, last: int) -> MeanInterval:
    """By what factor a number falls from the first to the last d, over seeds (draws at the two are independent)."""
    return geometric([before / after for before, after in zip(table[first], table[last], strict=True)])


def _predicted(setting: Setting, name: str, d: int) -> float:
    n = setting["keys"]
    if name == "mean":
        return theory.gaussian_attention(n, d, 1.0).jacobian_trace
    return theory.jacobian_trace_floor(n, sqrt(d), QUANTILE_OF[name])


def _figure(setting: Setting, unscaled: Values, scaled: Values) -> Figure:
    d = setting["dimensions"]
    limit = sqrt(2 * log(setting["keys"]))
    lines = (
        *(line_over_seeds(NAMES[name], d, table.values(), KINDS[name]) for name, table in unscaled.items()),
        *(
            predicted(SAYS[f"predicted-{name}"], d, partial(_predicted, setting, name))
            for name in ("mean", "p50", "p10")
        ),
        predicted(SAYS["limit"], d, lambda d: min(1.0, limit / sqrt(d))),
        line_over_seeds(SAYS["scaled-p10"], d, scaled["p10"].values()),
    )
    caption = SAYS["caption"].format(n=setting["keys"])
    return figure("mean-versus-quantile", caption, D, SAYS["axis-gate"], lines, log="xy")


NAMES = {"mean": MEAN, **{name: QUANTILES[q] for name, q in QUANTILE_OF.items()}}
KINDS = {name: interval if name == "mean" else geometric for name in NAMES}


CLAIM = SAYS.claim(
    id="mean-versus-quantile",
    sources=("000", "001", "002", "003", "004"),
    expected="conditional",
    experiment=experiment,
    quick={"dimensions": (4, 16, 64, 256, 1024, 4096), "keys": 1024, "queries": 256, "seeds": 10},
    full={"dimensions": (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096), "queries": 512, "seeds": 32},
)
