"""diag(y) − yyᵀ, entry by entry, against derivatives that do not know the formula."""

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm.lab.claim import Result, Setting, all_hold, at_most, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import normal
from isotherm.lab.figures import figure, level
from isotherm.lab.interval import geometric, line_over_seeds, over_seeds
from isotherm.lab.numerals import numeral
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
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
            at_most(SAYS[f"worst-{name}"], worst[name], TOLERANCE, predicted=0.0)
            for name in ("complex", "entry", "rows", "symmetry")
        ),
        at_most(SAYS["worst-norm"], worst["norm"], 0.5 + TOLERANCE, predicted=0.5),
        Measured(SAYS["norm-at-half"], at_even, predicted=0.5, holds=abs(at_even - 0.5) <= TOLERANCE),
        at_most(SAYS["worst-largest"], worst["largest"], 0.25 + TOLERANCE, predicted=0.25),
        over_seeds(SAYS["central-at-1e-5"], differences[4], geometric),
    )
    rows, error, norm = len(errors["complex"]), numeral(worst["complex"], 1), numeral(worst["norm"], 4)
    sentence = SAYS["outcome"].format(count=rows, error=error, norm=norm)
    return conclude(all_hold(numbers), sentence, numbers, [_figure(steps, differences, worst["complex"])])


def _largest(matrices: Tensor) -> list[float]:
    return matrices.abs().nan_to_num(torch.inf).amax((-2, -1)).tolist()


def _figure(steps: tuple[float, ...], differences: list[list[float]], exact: float) -> Figure:
    lines = (
        line_over_seeds(SAYS["central"], steps, differences, geometric),
        level(SAYS["complex-step"], steps[::-1], exact, "measured"),
    )
    return figure(
        "jacobian-differences", SAYS["differences-caption"], SAYS["axis-step"], SAYS["differences-y"], lines, log="xy"
    )


CLAIM = SAYS.claim(
    id="jacobian",
    sources=("000", "001", "004"),
    expected="confirmed",
    experiment=experiment,
    quick={"sizes": (2, 3, 5, 11, 31), "spreads": (0.1, 1, 5, 20), "draws": 50},
    full={"sizes": (2, 3, 5, 11, 31, 101), "draws": 500},
)
