"""The dot product with 1/√d_k at large d_k: does it get back what it lost?"""

from isotherm.lab import contest
from isotherm.lab.claim import Result, Setting, all_hold, conclude
from isotherm.lab.content import read_content
from isotherm.lab.interval import MeanInterval, interval, over_seeds
from isotherm.lab.numerals import signed
from isotherm.language import Text
from isotherm.record import Measured

SAYS = read_content(__file__)
NAME = "restored"
"""The first part of the names of this claim's figures."""
MARGIN = 0.25
"""nats a word: less is a match, more is a loss."""
SCORES = ("multiplicative", "scaled-dot", "additive")
START = "unit"


def experiment(setting: Setting) -> Result:
    """Train all three scores at every d_k from unit-variance q and k, and add recorded larger runs."""
    entries = contest.hold(setting, SCORES, (START,))
    small, large = setting["dimensions"][0], setting["dimensions"][-1]
    behind = {d: contest.lead(entries, ("scaled-dot", d, START), ("additive", d, START)) for d in (small, large)}
    gained = contest.lead(entries, ("multiplicative", large, START), ("scaled-dot", large, START))
    lost = contest.lead(entries, ("multiplicative", large, START), ("additive", large, START))
    keeps_up = {d: interval(behind[d]).high < MARGIN for d in behind}
    regained = interval(gained).low > MARGIN
    rivals: dict[str, contest.Judge] = {"multiplicative": _regains, "additive": _keeps_up}
    recorded, figures, ends = contest.recorded(NAME, SCORES, setting.records, "scaled-dot", rivals)
    return conclude(
        all(keeps_up.values()) and regained and all_hold(recorded),
        _sentence(large, gained, lost, behind[large]),
        (*_measured(entries, behind, keeps_up, gained, regained, large), *recorded),
        (contest.curves(NAME, entries, setting["dimensions"], START), contest.britz(NAME), *figures),
        recorded=ends,
    )


def _regains(lead: MeanInterval, end: contest.End) -> bool | None:
    """A recorded lead over the unscaled dot product: it must show at the largest d_k."""
    return lead.low > MARGIN if end == "largest" else None


def _keeps_up(lead: MeanInterval, _: contest.End) -> bool:
    """A recorded lead over additive attention: at both ends it may not lag by the margin."""
    return lead.low > -MARGIN


def _measured(
    entries: dict[contest.Key, contest.Contender],
    behind: dict[int, list[float]],
    keeps_up: dict[int, bool],
    gained: list[float],
    regained: bool,
    large: int,
) -> tuple[Measured, ...]:
    numbers = [over_seeds(SAYS["behind"].format(d=d), values, holds=keeps_up[d]) for d, values in behind.items()]
    numbers.append(over_seeds(SAYS["gained"].format(d=large), gained, holds=regained))
    numbers.append(contest.size(entries, ("multiplicative", large, START), ("scaled-dot", large, START)))
    numbers.append(contest.size(entries, ("scaled-dot", large, START), ("additive", large, START)))
    for score, d, start in entries:
        expected = {"multiplicative": d**0.5, "scaled-dot": 1.0}.get(score)
        numbers += contest.numbers(entries, (score, d, start), expected, Text("", ""))
    return tuple(numbers)


def _sentence(large: int, gained: list[float], lost: list[float], behind: list[float]) -> Text:
    return SAYS["outcome"].format(
        d=large,
        gained=f"{interval(gained).mean:.2f}",
        lost=signed(interval(lost).mean),
        behind=signed(interval(behind).mean),
    )


CLAIM = SAYS.claim(
    id="scaling-restores-it",
    sources=("000", "001", "002", "003", "004"),
    expected="confirmed",
    experiment=experiment,
    quick={**contest.QUICK, "seeds": 6},
    full=contest.FULL,
)
