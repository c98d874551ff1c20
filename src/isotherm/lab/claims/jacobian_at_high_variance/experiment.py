"""Ten scores times ten: does the Jacobian go to 0, and what does a softmax of the wrong variable hide?"""

from math import sqrt

from torch import Tensor

from isotherm import softmax as forms
from isotherm import theory
from isotherm.lab.claim import Result, Setting, all_hold, conclude, none_of
from isotherm.lab.content import read_content
from isotherm.lab.dots import normal
from isotherm.lab.figures import LARGEST_ENTRY, MEASURED, QUANTILES, SHARE_OF_DRAWS, curve, figure, level
from isotherm.lab.interval import groups, over_seeds, quantile, quantile_line, quantile_of, share, share_line, share_of
from isotherm.lab.numerals import numeral, percent
from isotherm.record import Figure, Measured
from isotherm.stats import RowStats

SAYS = read_content(__file__)
VANISHED = 0.01


def experiment(setting: Setting) -> Result:
    """Multiply many draws of the document's ten scores by growing factors, and compare the two softmaxes of its code."""
    d = setting["d"]
    score = normal((setting["draws"], d), setting.generator(0))
    factors = setting["factors"]
    rows = {factor: RowStats.from_logits(factor * score) for factor in (*factors, sqrt(d))}
    entries = {factor: stats.jacobian_max for factor, stats in rows.items()}
    as_written = forms.softmax(score)  # the document: probs2 = softmax(score1)
    as_meant = forms.softmax(score * d)
    hidden = _hidden(score, as_written, as_meant)
    gone = {factor: entries[factor] < VANISHED for factor in factors}
    enough = [factor for factor in factors if share(gone[factor])[1] >= 0.95][:1]
    needed = str(enough[0]) if enough else f"> {factors[-1]}"
    numbers = (
        quantile_of(SAYS["median-entry"].format(t="1"), entries[1], 0.5),
        quantile_of(SAYS["median-entry"].format(t=f"√{d}"), entries[sqrt(d)], 0.5),
        quantile_of(
            SAYS["median-entry"].format(t=d),
            entries[d],
            0.5,
            holds=quantile(entries[d], 0.5)[2] < quantile(entries[1], 0.5)[1] / 5,
        ),
        share_of(SAYS["vanished"].format(t=d), gone[d], document=1.0, holds=share(gone[d])[1] >= 0.95),
        share_of(SAYS["vanished"].format(t=factors[-1]), gone[factors[-1]], holds=share(gone[factors[-1]])[1] >= 0.95),
        *(Measured(SAYS["enough"], float(factor)) for factor in enough),
        *(_gate(d, t, rows[t].jacobian_trace) for t in (1, d)),
        *hidden,
    )
    limit = all_hold((numbers[2], numbers[4], *hidden))
    vanished, median = percent(share(gone[d])[0], 0), numeral(quantile(entries[d], 0.5)[0], 2)
    return conclude(
        limit and numbers[3].holds is True,
        SAYS["outcome"].format(share=vanished, median=median, enough=needed),
        numbers,
        (_figure(factors, entries), _share_figure(factors, gone), _hidden_figure(as_written, as_meant, score)),
        under=limit,
        condition=SAYS["condition"].format(enough=needed),
    )


def _gate(d: int, t: int, gates: Tensor) -> Measured:
    return over_seeds(
        SAYS["mean-gate"].format(t=t), groups(gates), predicted=theory.gaussian_row(d, float(t)).jacobian_trace
    )


def _hidden(score: Tensor, as_written: Tensor, as_meant: Tensor) -> tuple[Measured, ...]:
    """What probs2 = softmax(score1) shows instead of softmax(score2): the first softmax again, and its Jacobian."""
    plain = forms.softmax(score)
    same = float((as_written - plain).abs().max())
    of_wrong, of_right = (forms.jacobian(y).abs().amax((-2, -1)) for y in (as_written, as_meant))
    first = forms.jacobian(plain).abs().amax((-2, -1))
    fall = float(of_right.median() / first.median())
    return (
        none_of(SAYS["same"], same),
        over_seeds(SAYS["top-written"], groups(as_written.amax(-1))),
        over_seeds(
            SAYS["top-meant"],
            groups(as_meant.amax(-1)),
            holds=bool(as_meant.amax(-1).mean() > as_written.amax(-1).mean()),
        ),
        Measured(SAYS["fall-written"], float(of_wrong.median() / first.median()), predicted=1.0),
        Measured(SAYS["fall-meant"], fall, holds=fall < 0.2),
    )


def _figure(factors: tuple[float, ...], entries: dict[float, Tensor]) -> Figure:
    rows = [entries[factor] for factor in factors]
    lines = (quantile_line(name, factors, rows, q) for q, name in QUANTILES.items())
    return figure("high-variance-entry", SAYS["entry-caption"], SAYS["axis-factor"], LARGEST_ENTRY, lines, log="xy")


def _share_figure(factors: tuple[float, ...], gone: dict[float, Tensor]) -> Figure:
    lines = (
        share_line(MEASURED, factors, [gone[factor] for factor in factors]),
        level(SAYS["level-95"], factors, 0.95),
    )
    return figure("high-variance-share", SAYS["share-caption"], SAYS["axis-factor"], SHARE_OF_DRAWS, lines, log="x")


def _hidden_figure(as_written: Tensor, as_meant: Tensor, score: Tensor) -> Figure:
    """Mean probability by rank, for the three softmaxes of the document's code."""
    softmaxes = {
        SAYS["probs1"]: forms.softmax(score),
        SAYS["probs2-written"]: as_written,
        SAYS["probs2-meant"]: as_meant,
    }
    ranks = range(1, score.shape[-1] + 1)
    lines = [curve(name, ranks, y.sort(-1, descending=True).values.mean(0).tolist()) for name, y in softmaxes.items()]
    return Figure(
        "high-variance-wrong-variable",
        SAYS["hidden-caption"],
        SAYS["axis-rank"],
        SAYS["mean-probability"],
        tuple(lines),
        bars=True,
    )


CLAIM = SAYS.claim(
    id="jacobian-at-high-variance",
    sources=("003",),
    expected="conditional",
    experiment=experiment,
    quick={"d": 10, "draws": 10_000, "factors": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)},
    full={"draws": 200_000},
)
