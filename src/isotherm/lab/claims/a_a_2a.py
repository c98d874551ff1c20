"""x = (a, a, 2a): the documents' smallest example, checked to its last digit and taken past where their code stops."""

from decimal import Decimal, localcontext
from math import e, exp, inf, isnan

import numpy as np

from isotherm import softmax as forms
from isotherm.lab.claim import Claim, Result, Setting, all_hold, at_most, conclude
from isotherm.lab.figures import curve, figure, predicted
from isotherm.lab.interval import bisect
from isotherm.lab.mathml import equation, frac, row, sup
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

DOCUMENT = {1.0: 0.5761168847658291, 10.0: 0.9999092083843412, 100.0: 1.0}
ULP = 2.0**-53
"""The distance between neighbouring floats from ½ to 1."""
FEW = 4
"""Units in the last place within which two numbers are the same number."""


def exact(a: float) -> Decimal:
    """1/(1 + 2e^−a) to fifty digits."""
    with localcontext(prec=50):
        return 1 / (1 + 2 * (-Decimal(a)).exp())


def written(a: float) -> float:
    """y₃ by the document's own formula; `OverflowError` where e^2a has no float."""
    return exp(a * 2) / (exp(a) + exp(a) + exp(a * 2))


def by_powers(a: float) -> float:
    """y₃ from powers of e as a float, squared below the line: rounded otherwise, it gives the document's very digits."""
    return e ** (2 * a) / (e**a + e**a + (e**a) ** 2)


def outputs(a: float) -> np.ndarray:
    """softmax(a, a, 2a)."""
    return forms.softmax(np.array([a, a, 2 * a]))


def ulps(value: float, a: float) -> float:
    """How far a float lies from the true y₃, in units of its last place; infinitely far where it is no number."""
    return inf if isnan(value) else float((Decimal(value) - exact(a)) / Decimal(ULP))


def experiment(setting: Setting) -> Result:
    """The three printed values, the curve between them, and the same formula far beyond."""
    a_values = np.linspace(0, setting["last"], setting["points"]).tolist()
    ys = [float(outputs(a)[2]) for a in a_values]
    off = max(abs(ulps(y, a)) for y, a in zip(ys, a_values, strict=True))
    worst = min(float(np.nan_to_num(outputs(a)[2])) for a in setting["beyond"])
    numbers = (
        *(_printed(a, value) for a, value in DOCUMENT.items()),
        *(_to_the_digit(a, value) for a, value in DOCUMENT.items()),
        at_most(CURVE_ERROR.format(points=len(ys)), off, FEW, predicted=0.0),
        Measured(RISES, min(np.diff(ys).tolist()), holds=bool(np.all(np.diff(ys) >= 0))),
        Measured(BEYOND.format(a=numeral(max(setting["beyond"]), 1)), worst, predicted=1.0, holds=worst == 1.0),
        Measured(AT_TEN, written(10.0), predicted=float(exact(10.0)), document=DOCUMENT[10.0]),
        Measured(STOPS, bisect(_computable, 0.0, 1000.0, 60)[0], predicted=float(np.log(np.finfo(float).max)) / 2),
        Measured(FULL, bisect(lambda a: bool(outputs(a)[2] < 1), 0.0, 1000.0, 60)[0]),
        Measured(LEFT, float(outputs(100.0)[:2].sum()), predicted=float(1 - exact(100.0))),
    )
    one, ten, hundred = (repr(float(outputs(a)[2])) for a in DOCUMENT)
    sentence = SENTENCE.format(one=one, ten=ten, hundred=hundred, off=f"{off:.1f}")
    return conclude(all_hold(numbers), sentence, numbers, (_curve(a_values, ys), _remainder(a_values)))


def _printed(a: float, value: float) -> Measured:
    y = float(outputs(a)[2])
    same = abs(ulps(y, a)) <= FEW and abs(y - value) <= FEW * ULP
    return Measured(
        Text("y₃ at a = {a}", "a = {a} 时的 y₃").format(a=round(a)), y, None, None, float(exact(a)), value, same
    )


def _to_the_digit(a: float, value: float) -> Measured:
    """The document's digits from powers of e. Not judged: another machine may round a power differently."""
    return Measured(POWERS.format(a=round(a)), by_powers(a), predicted=float(exact(a)), document=value)


def _computable(a: float) -> bool:
    try:
        written(a)
    except OverflowError:
        return False
    return True


def _curve(a_values: list[float], measured: list[float]) -> Figure:
    lines = (
        curve(Text("stable softmax", "稳定的 softmax"), a_values, measured),
        predicted(Text("exact, 1/(1 + 2e^−a)", "精确值 1/(1 + 2e^−a)"), a_values, lambda a: float(exact(a))),
        curve(Text("document 001", "文档 001"), tuple(DOCUMENT), DOCUMENT.values(), "document"),
    )
    caption = Text(
        "The document's curve. All of the rise is over by a = 5; the rest of the picture is flat.",
        "文档中的曲线。上升在 a = 5 之前就已完成，其余部分是平的。",
    )
    return figure("a-a-2a-curve", caption, AXIS, Text("y₃ (probability)", "y₃（概率）"), lines)


def _remainder(a_values: list[float]) -> Figure:
    """1 − y₃ twice: as the float that is left, and as y₁ + y₂, which keeps its digits."""
    subtracted = Text("1 − y₃, subtracted in float64", "1 − y₃，用 float64 相减")
    lines = (
        curve(Text("y₁ + y₂", "y₁ + y₂"), a_values, lambda a: float(outputs(a)[:2].sum())),
        curve(subtracted, a_values, lambda a: 1 - float(outputs(a)[2]) or None),
        predicted(Text("exact", "精确值"), a_values, lambda a: float(1 - exact(a))),
    )
    caption = Text(
        "What is left for the other two entries falls like 2e^−a for ever; subtracted from 1 in float64 it is exactly "
        "0 once a passes 37, which is why the document reads 1.0.",
        "留给另外两个分量的概率始终按 2e^−a 下降；而用 float64 从 1 里减去时，a 过了 37 差就恰为 0，所以文档里读到 "
        "1.0。",
    )
    return figure("a-a-2a-remainder", caption, AXIS, Text("1 − y₃ (probability)", "1 − y₃（概率）"), lines, log="y")


AXIS = Text("a (nats)", "a（奈特 nat）")
CURVE_ERROR = Text(
    "largest error of {points} points of the curve (units in the last place)",
    "曲线上 {points} 个点的最大误差（末位单位）",
)
RISES = Text("smallest step of the curve from one point to the next", "曲线相邻两点之间的最小增量")
BEYOND = Text(
    "smallest y₃ of the stable softmax beyond a = 354, up to a = {a} (0 where it is no number)",
    "a 超过 354、直到 a = {a}，稳定 softmax 的最小 y₃（若不是数则记为 0）",
)
AT_TEN = Text(
    "y₃ at a = 10 by the document's own formula, on this machine", "在本机上按文档自己的公式算出的 a = 10 时的 y₃"
)
POWERS = Text(
    "y₃ at a = {a} from powers of e as a float, e^2a/(e^a + e^a + (e^a)²)",
    "用浮点数 e 的幂计算，a = {a} 时的 y₃：e^2a/(e^a + e^a + (e^a)²)",
)
STOPS = Text("largest a the document's formula can take", "文档公式能接受的最大 a")
FULL = Text("largest a at which y₃ is still below 1.0 in float64", "float64 下 y₃ 仍小于 1.0 的最大 a")
LEFT = Text("y₁ + y₂ at a = 100", "a = 100 时的 y₁ + y₂")
SENTENCE = Text(
    "y₃ is {one} at a = 1, {ten} at a = 10 and {hundred} at a = 100; over the whole curve it stays within {off} units "
    "in the last place of the exact value.",
    "a = 1 时 y₃ = {one}，a = 10 时 {ten}，a = 100 时 {hundred}；整条曲线与精确值之差不超过 {off} 个末位单位。",
)
STEPS = (
    Step(
        Text(
            "Write the softmax of (a, a, 2a) out for its third entry.", "把 (a, a, 2a) 的 softmax 的第三个分量写出来。"
        ),
        equation("y_3", frac(sup("e", "2 a"), row(sup("e", "a"), "+", sup("e", "a"), "+", sup("e", "2 a")))),
    ),
    Step(
        Text(
            "Divide above and below by the largest term. Nothing can overflow now: this is what a stable softmax does.",
            "分子分母同除以最大的一项。此后不会再溢出：稳定的 softmax 正是这样做的。",
        ),
        equation("y_3", frac("1", row("1 + 2", sup("e", "− a")))),
    ),
    Step(
        Text(
            "So y₃ runs from 1/3 at a = 0 towards 1, and what is left shrinks by e with every unit of a. It never "
            "becomes 0; it only becomes too small to be subtracted from 1 in float64.",
            "所以 y₃ 从 a = 0 时的 1/3 趋向 1，剩余部分随 a 每增加 1 缩小到 1/e。它永远不会变成 0，只是小到 float64 无"
            "法从 1 中减去。",
        ),
        row("1 − y_3 =", frac("2", row(sup("e", "a"), "+ 2")), "≈ 2", sup("e", "− a")),
    ),
)
ERRATA = (
    Erratum(
        "001",
        Text("y₃ = 0.9999092083843412 at a = 10.", "a = 10 时 y₃ = 0.9999092083843412。"),
        Text(
            "The true value is 0.99990920838434098, and the stable softmax gives the float nearest to it, …8409. The "
            "document's formula gives …8410 here, one unit in the last place above. The printed …8412 comes out to the "
            "digit when e is rounded to a float first and e^2a is taken once as a power and once as a square. Harmless, "
            "but not the last digit of the true value.",
            "真值为 0.99990920838434098，稳定的 softmax 给出最接近它的浮点数 …8409。文档的公式在此得到 …8410，高一个末"
            "位单位。若先把 e 舍入成浮点数，e^2a 一处取幂、一处取平方，就一位不差地得到印出的 …8412。无伤大雅，但并不是"
            "真值的末位。",
        ),
    ),
    Erratum(
        "001",
        Text("y₃ = 1.0 at a = 100.", "a = 100 时 y₃ = 1.0。"),
        Text(
            "y₃ is 1 − 7.4·10⁻⁴⁴, which float64 rounds to 1.0. The softmax of finite numbers is never one-hot.",
            "y₃ 是 1 − 7.4·10⁻⁴⁴，float64 把它舍入成 1.0。有限数的 softmax 永远不是 one-hot。",
        ),
    ),
    Erratum(
        "001",
        Text("The formula exp(2x)/(exp(x) + exp(x) + exp(2x)).", "公式 exp(2x)/(exp(x) + exp(x) + exp(2x))。"),
        Text(
            "Right up to x = 354; above it exp(2x) overflows. Subtract the largest input first and it works for any x.",
            "x 不超过 354 时正确；再大 exp(2x) 就溢出。先减去最大的输入，任何 x 都能算。",
        ),
    ),
)

CLAIM = Claim(
    id="a-a-2a",
    title=Text("Three numbers: softmax of (a, a, 2a)", "三个数：(a, a, 2a) 的 softmax"),
    question=Text(
        "How quickly does the largest of three inputs take everything?", "三个输入里最大的那个，多快就会独占全部概率？"
    ),
    statement=Text(
        "For x = (a, a, 2a): y₃ = 0.5761168847658291 at a = 1, 0.9999092083843412 at a = 10 and 1.0 at a = 100.",
        "设 x = [a, a, 2a]：a = 1 时 y₃ = 0.5761168847658291，a = 10 时 y₃ = 0.9999092083843412，a = 100 时 y₃ = 1.0。",
    ),
    sources=("001",),
    hypothesis=Text(
        "At a = 1, 10 and 100 the stable softmax lies within 4 units in the last place (4.4·10⁻¹⁶) of the document's "
        "number and of the exact one; at all points of the curve over [0, 100] within 4 of the exact one, never "
        "falling; and it gives 1.0 where the document's formula overflows.",
        "在 a = 1、10、100 处，稳定 softmax 与文档的数、与精确值都相差不超过 4 个末位单位（4.4·10⁻¹⁶）；在 [0, 100] 曲"
        "线的所有点上与精确值相差不超过 4 个末位单位，且从不下降；在文档公式溢出处给出 1.0。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={"points": 100, "last": 100.0, "beyond": (354.0, 355.0, 1000.0, 1e6)},
    full={"points": 10_001},
    steps=STEPS,
    errata=ERRATA,
)
