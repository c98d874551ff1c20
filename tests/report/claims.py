"""Claims by hand for tests of the views: every kind of figure, both languages, hostile texts."""

from math import exp

from isotherm.language import Text
from isotherm.record import (
    CLAIM_SCHEMA,
    ClaimRecord,
    Erratum,
    Figure,
    Heatmap,
    Line,
    Measured,
    Quotation,
    Step,
    Timed,
)
from isotherm.report.explain.book import SCHEMA, Book, Chapter, Missing

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e&amp;"
XS = (16.0, 64.0, 256.0, 1024.0)
D = Text("d_k (dimensions)", "d_k（维）")
SPREAD = Text("logit spread (nats)", "logit 标准差（奈特）")


def curves(name="spread-curve"):
    measured = Line(
        Text("unscaled", "未缩放"),
        XS,
        tuple(x**0.5 for x in XS),
        low=tuple(0.9 * x**0.5 for x in XS),
        high=tuple(1.1 * x**0.5 for x in XS),
    )
    gap = Line(Text("scaled", "已缩放"), XS, (1.0, None, 1.0, 1.02))
    theory = Line(Text("√d", "√d"), XS, tuple(x**0.5 for x in XS), source="predicted")
    document = Line(Text("what the document says", "文档的说法"), (64.0, 1024.0), (8.0, 22.0), source="document")
    caption = Text("The spread grows with √d_k unless it is divided by it.", "散布随 √d_k 增长，除非除以它。")
    return Figure(name, caption, D, SPREAD, (measured, gap, theory, document), x_log=True, y_log=True)


def bars(name="spread-bars"):
    lines = (
        Line(Text("ours", "本库"), (1.0, 2.0, 3.0), (0.5, -0.2, 0.8), (0.4, -0.3, 0.7), (0.6, -0.1, 0.9)),
        Line(Text("the document's", "文档"), (1.0, 3.0), (0.6, 0.7), source="document"),
    )
    caption = Text("Three readings side by side.", "三个读数并列。")
    return Figure(name, caption, Text("reading", "读数"), Text("change (nats)", "变化（奈特）"), lines, bars=True)


def heatmap(name="phase-diagram"):
    xs, ys = (2.0, 8.0, 32.0, 128.0, 512.0), (16.0, 256.0, 4096.0)
    values = tuple(tuple(None if (x, y) == (2.0, 16.0) else exp(-x / y) for x in xs) for y in ys)
    boundary = Line(Text("d = 2 ln n", "d = 2 ln n"), (5.5, 11.1, 16.6), (16.0, 256.0, 4096.0), source="predicted")
    caption = Text("Where the softmax freezes.", "softmax 在哪里冻结。")
    gate = Text("gate (1)", "闸门（1）")
    return Heatmap(name, caption, D, Text("n (keys)", "n（键）"), gate, xs, ys, values, boundary)


def record(name="dot-variance", verdict="confirmed", **changes):
    given = {
        "schema": CLAIM_SCHEMA,
        "id": name,
        "title": Text(f"The spread of {name}", f"{name} 的散布"),
        "question": Text("How far do the scores spread?", "得分散布得多开？"),
        "statement": Text("The variance of q·k is d_k.", "q·k 的方差是 d_k。"),
        "sources": ("000", "002"),
        "hypothesis": Text("|Var/d − 1| < 0.01 for every d.", "对每个 d 都有 |Var/d − 1| < 0.01。"),
        "parameters": {"dimensions": "(16, 64)", "seeds": "8"},
        "seed": 3,
        "verdict": verdict,
        "condition": Text("q and k are independent.", "q 与 k 独立。") if verdict == "conditional" else None,
        "sentence": Text("The variance is d within 1 %.", "方差与 d 相差不到 1 %。"),
        "measured": (
            Measured(Text("variance at d = 64", "d = 64 时的方差"), 64.2, 63.1, 65.3, 64.0, 8.0, holds=True),
            Measured(Text("variance at d = 1024", "d = 1024 时的方差"), 1019.0, predicted=1024.0, holds=False),
            Measured(Text("an aside", "旁注"), 3.14159e-7),
        ),
        "figures": (curves(f"{name}-curve"), bars(f"{name}-bars")),
        "heatmaps": (heatmap(f"{name}-phase"),),
        "steps": (
            Step(
                Text("Variances add up.", "方差相加。"),
                "<mi>Var</mi><mo>(</mo><mi>q</mi><mo>·</mo><mi>k</mi><mo>)</mo><mo>=</mo><msub><mi>d</mi><mi>k</mi></msub>",
            ),
            Step(Text("So the spread is its root.", "所以散布是它的平方根。")),
        ),
        "errata": (
            Erratum("002", Text("the variance is √d", "方差是 √d"), Text("the variance is d", "方差是 d"), line="20"),
        ),
        "quotations": (Quotation("000", "21", Text("the dot product has variance dk", "点积的方差为dk")),),
    }
    return ClaimRecord(**{**given, **changes})


def timed(name="dot-variance", verdict="confirmed", expected=None, **changes):
    time = (Measured(Text("one pass (ms)", "一次计算（毫秒）"), 1.25, 1.2, 1.4),)
    return Timed(
        record=record(name, verdict, **changes),
        expected=expected or verdict,
        scale="quick",
        code="0123456789abcdef",
        created="2026-01-02T03:04:05+00:00",
        seconds=1.5,
        versions={"python": "3.11.7", "torch": "2.13.0"},
        timings=time,
    )


def book(*claims, **changes):
    first = Chapter("first", Text("The first chapter", "第一章"), Text("What it is about.", "它讲什么。"), claims[:2])
    second = Chapter("second", Text("The second chapter", "第二章"), Text("And then.", "然后。"), claims[2:])
    return Book(SCHEMA, "quick", "cpu", (first, second), **changes)


def usual():
    """A book with all verdicts, one of them changed, a failure and a claim not run."""
    return book(
        timed("dot-variance"),
        timed("ten-draws", "conditional"),
        timed("freezing", "refuted", expected="confirmed"),
        failed=(Missing("bert", Text("it broke", "它坏了")),),
        skipped=(Missing("heads-differ", Text("needs transformers", "需要 transformers")),),
    )


def hostile():
    """Every text is an attack."""
    bad = Text(ATTACK, f"{ATTACK}坏")
    line = Line(bad, (1.0, 2.0), (1.0, 2.0))
    figure = Figure("hostile-curve", bad, bad, bad, (line,))
    grid = Heatmap("hostile-grid", bad, bad, bad, bad, (1.0, 2.0), (1.0, 2.0), ((0.1, 0.2), (0.3, 0.4)), line)
    claim = timed(
        "hostile",
        "conditional",
        title=bad,
        question=bad,
        statement=bad,
        sources=(ATTACK,),
        hypothesis=bad,
        parameters={ATTACK: ATTACK},
        condition=bad,
        sentence=bad,
        measured=(Measured(bad, 1.0, holds=True),),
        figures=(figure,),
        heatmaps=(grid,),
        steps=(Step(bad, f"<mi>x</mi>{ATTACK}"), Step(bad, '<mi href="javascript:alert(1)">x</mi>')),
        errata=(Erratum(ATTACK, bad, bad, line=ATTACK),),
        quotations=(Quotation(ATTACK, ATTACK, bad), Quotation("000", ATTACK, bad)),
    )
    return book(claim, failed=(Missing("x", bad),))
