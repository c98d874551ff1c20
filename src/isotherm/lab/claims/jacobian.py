"""diag(y) − yyᵀ, entry by entry, against derivatives that do not know the formula."""

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm.lab.claim import Claim, Result, Setting, all_hold, at_most, conclude
from isotherm.lab.dots import normal
from isotherm.lab.figures import figure, level
from isotherm.lab.interval import geometric, line_over_seeds, over_seeds
from isotherm.lab.mathml import bracket, equation, frac, row, sup, total
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

TOLERANCE = 4e-15
"""Entries are at most ¼ and a sum of 31 of them is rounded 31 times: a dozen units in the last place."""
STEP = 1e-40


def complex_step(x: Tensor) -> Tensor:
    """∂yᵢ/∂xⱼ [..., n, n] as Im softmax(x + ih·eⱼ)/h: no difference is taken, so h may be tiny and nothing is lost."""
    n = x.shape[-1]
    moved = x.unsqueeze(-2) + 1j * STEP * torch.eye(n, dtype=torch.float64)
    power = (moved - x.amax(-1)[..., None, None]).exp()
    return (power / power.sum(-1, keepdim=True)).imag.mT / STEP


def central(x: Tensor, h: float) -> Tensor:
    """The same derivative by central differences of `softmax`."""
    moved = h * torch.eye(x.shape[-1], dtype=torch.float64)
    up, down = (forms.softmax(x.unsqueeze(-2) + sign * moved) for sign in (1, -1))
    return ((up - down) / (2 * h)).mT


def experiment(setting: Setting) -> Result:
    """Compare the formula with other derivatives over sizes, spreads and draws, and check its row sums, symmetry and norm."""
    errors: dict[str, list[float]] = {"complex": [], "entry": [], "rows": [], "symmetry": [], "norm": [], "largest": []}
    for n in setting["sizes"]:
        for i, spread in enumerate(setting["spreads"]):
            x = spread * normal((setting["draws"], n), setting.generator(n, i))
            y = forms.softmax(x)
            matrix = forms.jacobian(y)
            entries = torch.stack(
                [torch.stack([forms.jacobian_entry(y, a, b) for b in range(n)], -1) for a in range(n)], -2
            )
            errors["complex"] += _largest(matrix - complex_step(x))
            errors["entry"] += _largest(matrix - entries)
            errors["rows"] += _largest(matrix.sum(-1, keepdim=True))
            errors["symmetry"] += _largest(matrix - matrix.mT)
            errors["norm"] += torch.linalg.eigvalsh(matrix).abs().amax(-1).tolist()
            errors["largest"] += _largest(matrix)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    at_even = float(torch.linalg.eigvalsh(forms.jacobian(even)).max())
    x = normal((setting["draws"], setting["sizes"][-1]), setting.generator(0))
    steps = tuple(10.0**-k for k in range(1, 13))
    differences = [_largest(forms.jacobian(forms.softmax(x)) - central(x, h)) for h in steps]
    worst = {name: max(found) for name, found in errors.items()}
    numbers = (
        *(
            at_most(NAMES[name], worst[name], TOLERANCE, predicted=0.0)
            for name in ("complex", "entry", "rows", "symmetry")
        ),
        at_most(NAMES["norm"], worst["norm"], 0.5 + TOLERANCE, predicted=0.5),
        Measured(NAMES["even"], at_even, predicted=0.5, holds=abs(at_even - 0.5) <= TOLERANCE),
        at_most(NAMES["largest"], worst["largest"], 0.25 + TOLERANCE, predicted=0.25),
        over_seeds(NAMES["central"], differences[4], geometric),
    )
    rows, error, norm = len(errors["complex"]), numeral(worst["complex"], 1), numeral(worst["norm"], 4)
    sentence = SENTENCE.format(count=rows, error=error, norm=norm)
    return conclude(all_hold(numbers), sentence, numbers, [_figure(steps, differences, worst["complex"])])


def _largest(matrices: Tensor) -> list[float]:
    return matrices.abs().nan_to_num(torch.inf).amax((-2, -1)).tolist()


def _figure(steps: tuple[float, ...], differences: list[list[float]], exact: float) -> Figure:
    exactly = Text("complex step, largest of all draws", "复数步长，全部抽样中的最大者")
    lines = (
        line_over_seeds(Text("central differences with step h", "步长为 h 的中心差分"), steps, differences, geometric),
        level(exactly, steps[::-1], exact, "measured"),
    )
    caption = Text(
        "Distance between diag(y) − yyᵀ and a derivative that does not know it. Ordinary differences improve like h² "
        "until rounding stops them near 10⁻¹²; the complex step takes no difference and agrees to the last digit.",
        "diag(y) − yyᵀ 与「不知道这个公式」的导数之间的距离。普通差分按 h² 改善，到 10⁻¹² 附近被舍入误差挡住；复数步长"
        "不作相减，一直吻合到末位。",
    )
    y = Text("largest difference of an entry (probability per nat)", "元素的最大差（概率/nat）")
    return figure("jacobian-differences", caption, Text("step h (nats)", "步长 h（nat）"), y, lines, log="xy")


NAMES = {
    "complex": Text("largest |diag(y) − yyᵀ − complex-step derivative|", "|diag(y) − yyᵀ − 复数步长导数| 的最大值"),
    "entry": Text("largest difference to y_i(1 − y_i) and −y_i·y_j", "与 y_i(1 − y_i)、−y_i·y_j 的最大差"),
    "rows": Text("largest sum of a row (probabilities keep adding up to 1)", "行和的最大值（概率之和恒为 1）"),
    "symmetry": Text("largest |J − Jᵀ|", "|J − Jᵀ| 的最大值"),
    "norm": Text("largest ‖J‖₂ of all draws (never above ½)", "全部抽样中 ‖J‖₂ 的最大值（不超过 ½）"),
    "even": Text("‖J‖₂ at y = (½, ½), where ½ is reached", "y = (½, ½) 时的 ‖J‖₂，恰好取到 ½"),
    "largest": Text("largest |J_ij| of all draws (never above ¼)", "全部抽样中 |J_ij| 的最大值（不超过 ¼）"),
    "central": Text(
        "difference to central differences with h = 10⁻⁵ (geometric mean)", "与 h = 10⁻⁵ 的中心差分之差（几何平均）"
    ),
}
SENTENCE = Text(
    "Over {count} draws diag(y) − yyᵀ differs from the numerical derivative by at most {error}, and its norm never "
    "passes ½ (largest {norm}).",
    "在 {count} 次抽样中，diag(y) − yyᵀ 与数值导数至多相差 {error}，其范数从不超过 ½（最大 {norm}）。",
)
STEPS = (
    Step(
        Text("Write the softmax as a quotient with the sum Z below.", "把 softmax 写成以和 Z 为分母的商。"),
        row(equation("y_i", frac(sup("e", "x_i"), "Z")), ",", "Z =", total("k"), sup("e", "x_k")),
    ),
    Step(
        Text(
            "Case i = j: the numerator and Z both depend on xᵢ. By the quotient rule:",
            "情形 i = j：分子与 Z 都含 xᵢ。由商的求导法则：",
        ),
        equation(
            frac("∂ y_i", "∂ x_i"),
            frac(row(sup("e", "x_i"), "Z −", sup("e", "x_i"), sup("e", "x_i")), "Z^2"),
            "y_i ( 1 − y_i )",
        ),
    ),
    Step(
        Text("Case i ≠ j: only Z depends on xⱼ.", "情形 i ≠ j：只有 Z 含 xⱼ。"),
        equation(frac("∂ y_i", "∂ x_j"), row("−", frac(row(sup("e", "x_i"), sup("e", "x_j")), "Z^2")), "− y_i y_j"),
    ),
    Step(Text("Both cases together, as a matrix:", "两种情形合写成矩阵："), equation("J", "diag ( y ) − y y^T")),
    Step(
        Text(
            "For a vector t, tᵀJt is the variance of its components under the probabilities y. Numbers within a range "
            "r have a variance of at most r²/4, and two components of t lie at most √2·‖t‖ apart. So ‖J‖₂ ≤ ½: "
            "nothing grows on its way through a softmax.",
            "对任意向量 t，tᵀJt 是其分量在概率 y 下的方差。极差为 r 的数方差至多 r²/4，而 t 的两个分量至多相差 "
            "√2·‖t‖。所以 ‖J‖₂ ≤ ½：通过 softmax 时没有任何东西会变大。",
        ),
        row(
            "t^T J t =",
            total("i"),
            "y_i t_i^2 −",
            sup(bracket(total("i"), "y_i t_i"), "2"),
            "≤",
            frac("1", "2"),
            total("i"),
            "t_i^2",
        ),
    ),
)
ERRATA = (
    Erratum(
        "004",
        Text("W_ij = exp(W*_ij)/Σ exp(W*_ip), with p from 1 to d.", "W_ij = exp(W*_ij)/Σ exp(W*_ip)，p 从 1 到 d。"),
        Text(
            "The sum runs over the n keys, not over the d dimensions: a row of QKᵀ has n entries.",
            "求和是对 n 个键，而不是对 d 个维度：QKᵀ 的一行有 n 个元素。",
        ),
    ),
)

CLAIM = Claim(
    id="jacobian",
    title=Text("The derivative of softmax is diag(y) − yyᵀ", "softmax 的导数是 diag(y) − yyᵀ"),
    question=Text(
        "What is the derivative of softmax, and how large can it be?", "softmax 的导数是什么？最大能有多大？"
    ),
    statement=Text(
        "The gradient of y = softmax(x) with respect to x is diag(y) − y yᵀ: y_i(1 − y_i) on the diagonal, −y_i·y_j "
        "off it.",
        "y = softmax(x) 对 x 的梯度为 diag(y) − y·yᵀ：对角元为 y_i(1 − y_i)，非对角元为 −y_i·y_j。",
    ),
    sources=("000", "001", "004"),
    hypothesis=Text(
        "For every size, spread and draw, no entry of diag(y) − yyᵀ differs by more than 4·10⁻¹⁵ from the "
        "complex-step derivative of the quotient or from the entry formulas; rows add up to 0, the matrix is "
        "symmetric, no entry passes ¼ and its norm never passes ½, each within 4·10⁻¹⁵.",
        "对每种规模、离散程度和每次抽样，diag(y) − yyᵀ 的任何元素与商式的复数步长导数、与逐元素公式的差都不超过 "
        "4·10⁻¹⁵；行和为 0，矩阵对称，元素不超过 ¼，范数不超过 ½，误差均在 4·10⁻¹⁵ 以内。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={"sizes": (2, 3, 5, 11, 31), "spreads": (0.1, 1, 5, 20), "draws": 50},
    full={"sizes": (2, 3, 5, 11, 31, 101), "draws": 500},
    steps=STEPS,
    errata=ERRATA,
)
