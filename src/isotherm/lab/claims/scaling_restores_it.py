"""The dot product with 1/√d_k at large d_k: does it get back what it lost?"""

from isotherm.lab import contest
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.interval import interval, over_seeds
from isotherm.lab.mathml import equation, frac, root, row
from isotherm.lab.numerals import percent, signed
from isotherm.language import Text
from isotherm.record import Measured, Step

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
    rivals = ("multiplicative", "additive")
    recorded, figures, ends = contest.recorded(NAME, SCORES, setting.records, "scaled-dot", *rivals)
    return conclude(
        all(keeps_up.values()) and regained,
        _sentence(large, gained, lost, behind[large]),
        (*_measured(entries, behind, keeps_up, gained, regained, large), *recorded),
        (contest.curves(NAME, entries, setting["dimensions"], START), contest.britz(NAME), *figures),
        recorded=ends,
    )


def _measured(
    entries: dict[contest.Key, contest.Contender],
    behind: dict[int, list[float]],
    keeps_up: dict[int, bool],
    gained: list[float],
    regained: bool,
    large: int,
) -> tuple[Measured, ...]:
    numbers = [over_seeds(BEHIND.format(d=d), values, holds=keeps_up[d]) for d, values in behind.items()]
    numbers.append(over_seeds(GAINED.format(d=large), gained, holds=regained))
    numbers.append(contest.size(entries, ("multiplicative", large, START), ("scaled-dot", large, START)))
    numbers.append(contest.size(entries, ("scaled-dot", large, START), ("additive", large, START)))
    for score, d, start in entries:
        expected = {"multiplicative": d**0.5, "scaled-dot": 1.0}.get(score)
        numbers += contest.numbers(entries, (score, d, start), expected, Text("", ""))
    return tuple(numbers)


def _sentence(large: int, gained: list[float], lost: list[float], behind: list[float]) -> Text:
    return Text(
        "At d_k = {d}, 1/√d_k lowers the dot product's loss by {gained} nats a word, {share} of what it had lost to "
        "additive attention; what remains is {behind} nats.",
        "d_k = {d} 时，1/√d_k 使点积的损失降低 {gained} nat/词，收回了落后于加性注意力的 {share}；余下 {behind} nat。",
    ).format(
        d=large,
        gained=f"{interval(gained).mean:.2f}",
        share=percent(interval(gained).mean / interval(lost).mean, 0),
        behind=signed(interval(behind).mean),
    )


BEHIND = Text(
    "nats a word by which the scaled dot product lags additive, d_k = {d}", "缩放点积落后加性的 nat/词，d_k = {d}"
)
GAINED = Text("nats a word gained by 1/√d_k, d_k = {d}", "1/√d_k 带来的改进（nat/词），d_k = {d}")
STEPS = (
    Step(
        Text(
            "Unscaled, the logits spread like √d_k; divided by it, they spread 1 at every d_k.",
            "未缩放时 logit 按 √d_k 散开；除以它之后，任何 d_k 下都是 1。",
        ),
        equation(row("σ"), row(frac("1", root("d")), "·", root("d")), "1"),
    ),
    Step(
        Text(
            "So the softmax starts wide open whatever d_k is, and gradients reach q and k.",
            "因此无论 d_k 多大，softmax 起步时都是敞开的，梯度能传到 q 和 k。",
        ),
    ),
)
CLAIM = Claim(
    id="scaling-restores-it",
    title=Text("With 1/√d the dot product no longer loses", "除以 √d 之后，点积不再落后"),
    question=Text("Is dividing by √d all it takes?", "除以 √d 就够了吗？"),
    statement=Text(
        "Dividing by √d_k brings the variance of q·k back to 1 and so avoids the vanishing gradient: the dot product "
        "no longer loses at large d_k.",
        "除以 √d_k 把 q·k 的方差还原到 1，从而避免梯度消失：d_k 大时，点积不再落后。",
    ),
    sources=("000", "001", "002", "003", "004"),
    hypothesis=Text(
        "With q and k of unit variance, the scaled dot product's held-out loss is less than 0.25 nats a word above the "
        "additive one's at the small and at the large d_k, and at the large d_k more than 0.25 nats below the unscaled "
        "one's (95 % intervals of the paired differences over seeds).",
        "q、k 方差为 1 时，缩放点积的留出损失在小、大两个 d_k 下都比加性高不到 0.25 nat/词；在大 d_k 下比未缩放点积低 "
        "0.25 nat/词以上（按种子配对差的 95 % 区间）。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={**contest.QUICK, "seeds": 6},
    full=contest.FULL,
    steps=STEPS,
)
