"""What a score costs: additive and dot-product attention counted operation by operation, and timed beside it."""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm import ops
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.figures import D_K, MILLISECONDS, POSITIONS, curve, figure
from isotherm.lab.interval import power
from isotherm.lab.numerals import numeral
from isotherm.lab.stopwatch import seconds, timed
from isotherm.lab.tally import Tally
from isotherm.record import Figure, Line, Measured

SAYS = read_content(__file__)


class ScoreCosts(NamedTuple):
    """Operation counts of both scores for n queries and n keys of d dimensions."""

    n: int
    d: int
    additive: Tally
    dot: Tally


def experiment(setting: Setting) -> Result:
    """Count the operations of both scores at every size, and time them."""
    costs = [_count(setting, n, d) for n in setting["lengths"] for d in setting["dimensions"]]
    same = all(cost.additive.multiply_adds == cost.dot.multiply_adds for cost in costs)
    hidden = all(cost.additive.tanhs == cost.n**2 * cost.d and cost.dot.tanhs == 0 for cost in costs)
    more = all(cost.additive.written > cost.dot.written for cost in costs)
    growth = power(setting["dimensions"], [_ratio(cost) for cost in costs if cost.n == setting["lengths"][-1]])
    setting.progress(0.3)
    timings, timing_figures = _timings(setting)
    last = costs[-1]
    macs, tanhs, ratio = numeral(last.dot.multiply_adds), numeral(last.additive.tanhs), f"{_ratio(last):.0f}"
    return conclude(
        same and hidden and more and growth > 0,
        SAYS["outcome"].format(n=last.n, d=last.d, macs=macs, tanhs=tanhs, ratio=ratio),
        _measured(last, same, hidden, more, growth),
        [_figure(costs, setting)],
        timings=timings,
        timing_figures=timing_figures,
    )


def _ratio(cost: ScoreCosts) -> float:
    return cost.additive.written / cost.dot.written


def _states(setting: Setting, n: int, d: int) -> tuple[Tensor, ops.Additive, ops.Multiplicative]:
    """States of one sentence, and the two scores with the same projections; v has variance 1/d."""
    generator = setting.generator(n, d)
    additive, dot = ops.Additive(d, d, d), ops.Multiplicative(d, d, d)
    for module in (additive.query, additive.key, additive.out):
        module.weight.data = torch.randn(module.weight.shape, generator=generator) / sqrt(d)
    dot.load_state_dict({name: value for name, value in additive.state_dict().items() if name != "out.weight"})
    states = torch.randn(1, n, d, generator=generator)
    return states.to(setting.device), additive.to(setting.device), dot.to(setting.device)


def _attend(dot: ops.Multiplicative, states: Tensor) -> Tensor:
    """The multiplicative score's own attention by matrix products, every one of them in sight of the tally."""
    q, k, v = (x.unsqueeze(1) for x in (dot.query(states), dot.key(states), states))
    return ops.attention(q, k, v, scale=dot.rule, impl="reference").output


@torch.no_grad()
def _count(setting: Setting, n: int, d: int) -> ScoreCosts:
    states, additive, dot = _states(setting, n, d)
    with Tally() as first:
        additive(states, states)
    with Tally() as second:
        _attend(dot, states)
    return ScoreCosts(n, d, first, second)


def _measured(cost: ScoreCosts, same: bool, hidden: bool, more: bool, growth: float) -> tuple[Measured, ...]:
    n, d, additive, dot = cost
    sums = 2 * n * d * d + 2 * n * n * d
    counted = (
        Measured(SAYS["at-size"].format(n=n, d=d, what=SAYS[f"count-{name}"]), value, predicted=wanted, holds=holds)
        for name, value, wanted, holds in (
            ("additive-sums", additive.multiply_adds, sums, same),
            ("dot-sums", dot.multiply_adds, sums, same),
            ("additive-tanhs", additive.tanhs, n * n * d, hidden),
            ("dot-tanhs", dot.tanhs, 0, hidden),
            ("written", _ratio(cost), None, more),
            ("largest", additive.largest / dot.largest, None, None),
        )
    )
    return (*counted, Measured(SAYS["growth"], growth, holds=growth > 0))


def _figure(costs: list[ScoreCosts], setting: Setting) -> Figure:
    lines = []
    for n in setting["lengths"]:
        at_n = [cost for cost in costs if cost.n == n]
        lines.append(curve(SAYS["length"].format(n=n), [cost.d for cost in at_n], map(_ratio, at_n)))
    return figure("cost-bytes", SAYS["bytes-caption"], D_K, SAYS["bytes-y"], lines, log="xy")


@torch.no_grad()
def _timings(setting: Setting) -> tuple[tuple[Measured, ...], tuple[Figure, ...]]:
    """The scores alone, three ways, over d_k at one n and over n at one d_k."""
    n, d = setting["timed_length"], setting["timed_dimension"]
    over_d = [(n, each) for each in setting["dimensions"]]
    over_n = [(each, d) for each in setting["lengths"]]
    found = {size: _time(setting, *size) for size in dict.fromkeys(over_d + over_n)}
    timings = tuple(
        timed(SAYS["timing"].format(name=SAYS[f"way-{name}"], n=at_n, d=at_d), times)
        for (at_n, at_d), ways in found.items()
        for name, times in ways.items()
    )

    def curves(sizes: list[tuple[int, int]], axis: int) -> tuple[Line, ...]:
        x, middle = [size[axis] for size in sizes], setting["repeats"] // 2
        return tuple(
            curve(SAYS[f"way-{name}"], x, [1e3 * found[size][name][middle] for size in sizes])
            for name in found[sizes[0]]
        )

    by_d = figure("cost-time-d", SAYS["time-over-d-caption"], D_K, MILLISECONDS, curves(over_d, 1), log="xy")
    by_n = figure("cost-time-n", SAYS["time-over-n-caption"], POSITIONS, MILLISECONDS, curves(over_n, 0), log="xy")
    return timings, (by_d, by_n)


def _time(setting: Setting, n: int, d: int) -> dict[str, list[float]]:
    """Times of the scores computed as one matrix product, as elementwise products, and by the additive hidden layer."""
    states, additive, dot = _states(setting, n, d)
    q, k = dot.query(states), dot.key(states)
    ways: dict[str, Callable[[], Tensor]] = {
        "product": lambda: q @ k.transpose(1, 2),
        "apart": lambda: (q.unsqueeze(2) * k.unsqueeze(1)).sum(-1),
        "additive": lambda: additive.logits(states, states),
    }
    return {name: seconds(work, setting["repeats"], setting.device) for name, work in ways.items()}


CLAIM = SAYS.claim(
    id="additive-versus-dot-cost",
    sources=("000",),
    expected="confirmed",
    experiment=experiment,
    quick={
        "lengths": (32, 64, 128, 256),
        "dimensions": (16, 32, 64, 128, 256),
        "timed_length": 128,
        "timed_dimension": 64,
        "repeats": 5,
    },
    full={
        "lengths": (32, 64, 128, 256, 512),
        "dimensions": (16, 32, 64, 128, 256, 512),
        "timed_length": 256,
        "repeats": 15,
    },
)
