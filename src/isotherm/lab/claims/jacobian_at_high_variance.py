"""Ten scores times ten: does the Jacobian go to 0, and what does a softmax of the wrong variable hide?"""

from math import sqrt

from torch import Tensor

from isotherm import softmax as forms
from isotherm import theory
from isotherm.lab.claim import Claim, Result, Setting, all_hold, conclude, none_of
from isotherm.lab.dots import normal
from isotherm.lab.figures import LARGEST_ENTRY, MEASURED, QUANTILES, SHARE_OF_DRAWS, curve, figure, level
from isotherm.lab.interval import groups, over_seeds, quantile, quantile_line, quantile_of, share, share_line, share_of
from isotherm.lab.mathml import equation, root, row
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step
from isotherm.stats import RowStats

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
        quantile_of(MEDIAN.format(t="1"), entries[1], 0.5),
        quantile_of(MEDIAN.format(t=f"√{d}"), entries[sqrt(d)], 0.5),
        quantile_of(
            MEDIAN.format(t=d), entries[d], 0.5, holds=quantile(entries[d], 0.5)[2] < quantile(entries[1], 0.5)[1] / 5
        ),
        share_of(GONE.format(t=d), gone[d], document=1.0, holds=share(gone[d])[1] >= 0.95),
        share_of(GONE.format(t=factors[-1]), gone[factors[-1]], holds=share(gone[factors[-1]])[1] >= 0.95),
        *(Measured(ENOUGH, float(factor)) for factor in enough),
        *(_gate(d, t, rows[t].jacobian_trace) for t in (1, d)),
        *hidden,
    )
    limit = all_hold((numbers[2], numbers[4], *hidden))
    vanished, median = percent(share(gone[d])[0], 0), numeral(quantile(entries[d], 0.5)[0], 2)
    return conclude(
        limit and numbers[3].holds is True,
        SENTENCE.format(share=vanished, median=median, enough=needed),
        numbers,
        (_figure(factors, entries), _share_figure(factors, gone), _hidden_figure(as_written, as_meant, score)),
        under=limit,
        condition=CONDITION.format(enough=needed),
    )


def _gate(d: int, t: int, gates: Tensor) -> Measured:
    return over_seeds(GATE.format(t=t), groups(gates), predicted=theory.gaussian_row(d, float(t)).jacobian_trace)


def _hidden(score: Tensor, as_written: Tensor, as_meant: Tensor) -> tuple[Measured, ...]:
    """What probs2 = softmax(score1) shows instead of softmax(score2): the first softmax again, and its Jacobian."""
    plain = forms.softmax(score)
    same = float((as_written - plain).abs().max())
    of_wrong, of_right = (forms.jacobian(y).abs().amax((-2, -1)) for y in (as_written, as_meant))
    first = forms.jacobian(plain).abs().amax((-2, -1))
    fall = float(of_right.median() / first.median())
    return (
        none_of(SAME, same),
        over_seeds(TOP_WRITTEN, groups(as_written.amax(-1))),
        over_seeds(
            TOP_MEANT, groups(as_meant.amax(-1)), holds=bool(as_meant.amax(-1).mean() > as_written.amax(-1).mean())
        ),
        Measured(FALL_WRITTEN, float(of_wrong.median() / first.median()), predicted=1.0),
        Measured(FALL_MEANT, fall, holds=fall < 0.2),
    )


def _figure(factors: tuple[float, ...], entries: dict[float, Tensor]) -> Figure:
    caption = Text(
        "The largest Jacobian entry of ten scores as they are multiplied. At 10, the document's factor, the median "
        "has begun to fall and the 90th percentile has not moved.",
        "十个得分同乘一个倍数时，雅可比矩阵的最大元素。在文档的倍数 10 处，中位数刚开始下降，90 % 分位还没有动。",
    )
    rows = [entries[factor] for factor in factors]
    lines = (quantile_line(name, factors, rows, q) for q, name in QUANTILES.items())
    return figure("high-variance-entry", caption, FACTOR, LARGEST_ENTRY, lines, log="xy")


def _share_figure(factors: tuple[float, ...], gone: dict[float, Tensor]) -> Figure:
    caption = Text(
        "Share of draws in which every entry of the Jacobian is below 0.01. «The entries tend to 0» is a statement "
        "about the far right of this curve.",
        "雅可比矩阵所有元素都小于 0.01 的抽样比例。「各分量趋于 0」说的是这条曲线的最右端。",
    )
    lines = (
        share_line(MEASURED, factors, [gone[factor] for factor in factors]),
        level(Text("95 %", "95 %"), factors, 0.95),
    )
    return figure("high-variance-share", caption, FACTOR, SHARE_OF_DRAWS, lines, log="x")


def _hidden_figure(as_written: Tensor, as_meant: Tensor, score: Tensor) -> Figure:
    """Mean probability by rank, for the three softmaxes of the document's code."""
    softmaxes = {
        Text("probs1, softmax(score1)", "第一个：probs1 = softmax(score1)"): forms.softmax(score),
        Text("probs2 as written, softmax(score1)", "照原文的 probs2，softmax(score1)"): as_written,
        Text("probs2 as meant, softmax(score2)", "本意的 probs2，softmax(score2)"): as_meant,
    }
    ranks = range(1, score.shape[-1] + 1)
    lines = [curve(name, ranks, y.sort(-1, descending=True).values.mean(0).tolist()) for name, y in softmaxes.items()]
    caption = Text(
        "Mean probability of the largest, second largest … of ten scores. As written, the «high variance» softmax is "
        "the first one again: a reader who prints it sees no sharpening at all.",
        "十个得分中最大、次大……者的平均概率。照原文，「高方差」的 softmax 就是第一个：读者打印出来，完全看不到变尖锐。",
    )
    x, y = Text("rank of the score", "得分的名次"), Text("mean probability", "平均概率")
    return Figure("high-variance-wrong-variable", caption, x, y, tuple(lines), bars=True)


FACTOR = Text("factor (standard deviation of the scores, nats)", "倍数（得分的标准差，nat）")
MEDIAN = Text("median of the largest |J_ij|, scores times {t}", "最大 |J_ij| 的中位数，得分乘以 {t}")
GONE = Text("share of draws with every |J_ij| < 0.01, scores times {t}", "所有 |J_ij| < 0.01 的抽样比例，得分乘以 {t}")
ENOUGH = Text(
    "smallest factor tried at which 95 % of draws have every |J_ij| < 0.01",
    "使 95 % 的抽样所有 |J_ij| < 0.01 的最小倍数（所试之中）",
)
GATE = Text("mean gate 1 − Σy², scores times {t}", "闸门 1 − Σy² 的均值，得分乘以 {t}")
SAME = Text(
    "largest difference between the document's probs1 and probs2 as written", "文档中 probs1 与照原文的 probs2 的最大差"
)
TOP_WRITTEN = Text(
    "mean largest probability of probs2 as written, softmax(score1)", "照原文 probs2 = softmax(score1) 的平均最大概率"
)
TOP_MEANT = Text(
    "mean largest probability of probs2 as meant, softmax(score2)", "本意 probs2 = softmax(score2) 的平均最大概率"
)
FALL_WRITTEN = Text(
    "diag(y) − yyᵀ from probs2 as written: median largest entry, relative to score1",
    "用照原文的 probs2 算 diag(y) − yyᵀ：最大元素中位数与 score1 之比",
)
FALL_MEANT = Text(
    "diag(y) − yyᵀ from probs2 as meant: median largest entry, relative to score1",
    "用本意的 probs2 算 diag(y) − yyᵀ：最大元素中位数与 score1 之比",
)
SENTENCE = Text(
    "Ten scores multiplied by ten leave every Jacobian entry below 0.01 in {share} of draws (median of the largest "
    "entry {median}); for 95 % of draws it takes a factor of {enough}.",
    "十个得分乘以十，{share} 的抽样中雅可比矩阵的所有元素小于 0.01（最大元素的中位数为 {median}）；要让 95 % 的抽样如"
    "此，倍数须为 {enough}。",
)
CONDITION = Text(
    "As a limit: for any scores with one largest, every entry goes to 0 as the factor grows. At the factor 10 it is a "
    "statement about the median; 95 % of draws need about {enough}. The factor itself is √d times too large: leaving "
    "out 1/√d multiplies the scores by √10 = 3.16, not by 10.",
    "作为极限成立：只要最大得分唯一，倍数增大时每个元素都趋于 0。倍数为 10 时只对中位数成立；要 95 % 的抽样如此约需 "
    "{enough}。而且倍数本身大了 √d 倍：去掉 1/√d 相当于得分乘以 √10 = 3.16，而不是 10。",
)
STEPS = (
    Step(
        Text(
            "The document multiplies d = 10 standard normal scores by d. That multiplies their variance by d².",
            "文档把 d = 10 个标准正态得分乘以 d，方差因此乘以 d²。",
        ),
        equation("Var ( d s )", "d^2 Var ( s )"),
    ),
    Step(
        Text(
            "Leaving out the scale in attention multiplies the scores by √d only.",
            "而注意力里省去缩放，得分只乘以 √d。",
        ),
        equation("Var ( q · k )", row("d Var (", row("q · k /", root("d")), ")")),
    ),
    Step(
        Text(
            "The code then takes probs2 = softmax(score1). The Jacobians it prints are not affected, they are computed "
            "from score1 and score2 directly; the probabilities are, and so is whatever one derives from them.",
            "随后代码写了 probs2 = softmax(score1)。它打印的雅可比矩阵不受影响，因为直接由 score1、score2 算出；受影响"
            "的是概率，以及由概率推出的一切。",
        ),
    ),
)
ERRATA = (
    Erratum(
        "003",
        Text("The line probs2 = softmax(score1).", "代码行 probs2 = softmax(score1)。"),
        Text(
            "It should be softmax(score2). As written both probabilities are the same to the last bit, and the "
            "sharpening the example is about cannot be seen.",
            "应为 softmax(score2)。照原文两个概率逐位相同，例子想说明的变尖锐完全看不到。",
        ),
    ),
    Erratum(
        "003",
        Text("score2 = score1 * d simulates the high variance.", "score2 = score1 * d，模拟高方差。"),
        Text(
            "Without 1/√d the scores are √d times larger, not d times. At √10 the largest entry has hardly changed.",
            "不除以 √d 时，得分只大 √d 倍，而不是 d 倍。在 √10 处最大元素几乎没有变化。",
        ),
    ),
)

CLAIM = Claim(
    id="jacobian-at-high-variance",
    title=Text("Ten scores times ten send the Jacobian to 0", "十个得分乘以十，雅可比矩阵趋于 0"),
    question=Text(
        "Does this little program show that high variance kills the gradient?", "这段小程序能说明高方差会使梯度消失吗？"
    ),
    statement=Text(
        "Take d = 10 random scores and multiply them by d to simulate a high variance: the entries of the softmax's "
        "Jacobian tend to 0.",
        "取 d = 10 个随机得分，乘以 d 以模拟高方差：softmax 雅可比矩阵的各分量趋于 0。",
    ),
    sources=("003",),
    hypothesis=Text(
        "Scores times 10: the median of the largest entry falls at least fivefold, and at least 95 % of draws have "
        "every entry below 0.01. At the largest factor tried at least 95 % do.",
        "得分乘以 10：最大元素的中位数至少降为五分之一，且至少 95 % 的抽样所有元素小于 0.01。在所试的最大倍数处至少 "
        "95 % 如此。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"d": 10, "draws": 10_000, "factors": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)},
    full={"draws": 200_000},
    steps=STEPS,
    errata=ERRATA,
)
