"""Additive against unscaled dot product, small d_k and large: trained, from two starts."""

from math import sqrt

from isotherm.lab import contest
from isotherm.lab.claim import Result, Setting, all_hold, conclude
from isotherm.lab.content import read_content
from isotherm.lab.interval import MeanInterval, interval, over_seeds
from isotherm.lab.numerals import signed
from isotherm.language import Text
from isotherm.record import Measured

SAYS = read_content(__file__)
NAME = "wins"
"""The first part of the names of this claim's figures."""
MARGIN = 0.25
"""nats a word: less is a match, more is a loss."""
SCORES = ("multiplicative", "additive")
STARTS = ("unit", "xavier")


def experiment(setting: Setting) -> Result:
    """Train both scores at a small and a large d_k from both starts; recorded larger runs beside."""
    entries = contest.hold(setting, SCORES, STARTS)
    small, large = setting["dimensions"][0], setting["dimensions"][-1]
    leads = {(start, d): _lead(entries, start, d) for start in STARTS for d in (small, large)}
    holds = {
        **{(start, small): interval(leads[start, small]).high < MARGIN for start in STARTS},
        **{(start, large): interval(leads[start, large]).low > MARGIN for start in STARTS},
    }
    recorded, figures, ends = contest.recorded(
        NAME, SCORES, setting.records, "additive", {"multiplicative": _as_stated}
    )
    unit = holds["unit", small] and holds["unit", large] and all_hold(recorded)
    curves = (contest.curves(NAME, entries, setting["dimensions"], start) for start in STARTS)
    return conclude(
        all(holds.values()) and all_hold(recorded),
        _sentence(small, large, leads),
        (*_measured(entries, leads, holds), *recorded),
        (*curves, contest.britz(NAME), *figures),
        under=unit,
        condition=SAYS["condition"].format(d=large),
        recorded=ends,
    )


def _as_stated(lead: MeanInterval, end: contest.End) -> bool:
    """A recorded lead of additive attention: none at the smallest d_k, one at the largest. Those models are as wide as
    d_k, so that q and k start with the same variance at every d_k."""
    return lead.high < MARGIN if end == "smallest" else lead.low > MARGIN


def _lead(entries: dict[contest.Key, contest.Contender], start: str, d: int) -> list[float]:
    return contest.lead(entries, ("multiplicative", d, start), ("additive", d, start))


Leads = dict[tuple[str, int], list[float]]


def _measured(
    entries: dict[contest.Key, contest.Contender], leads: Leads, holds: dict[tuple[str, int], bool]
) -> tuple[Measured, ...]:
    numbers = []
    for (start, d), values in leads.items():
        called = contest.NAMES[start]
        numbers.append(over_seeds(SAYS["lead"].format(d=d, start=called), values, holds=holds[start, d]))
        numbers.append(contest.size(entries, ("multiplicative", d, start), ("additive", d, start)))
        for score in SCORES:
            expected = sqrt(d) if (score, start) == ("multiplicative", "unit") else None
            numbers += contest.numbers(entries, (score, d, start), expected, SAYS["start"].format(start=called))
    return tuple(numbers)


def _sentence(small: int, large: int, leads: Leads) -> Text:
    us, ul, xs, xl = (signed(interval(leads[start, d]).mean) for start in STARTS for d in (small, large))
    return SAYS["outcome"].format(small=small, large=large, us=us, ul=ul, xs=xs, xl=xl)


CLAIM = SAYS.claim(
    id="additive-wins-at-large-d",
    sources=("000", "002"),
    expected="conditional",
    experiment=experiment,
    quick={**contest.QUICK, "seeds": 6},
    full=contest.FULL,
)
