"""At the classifier softmax saturates too, and no harm is done: the logarithm of the loss undoes it."""

from itertools import pairwise
from math import log, sqrt

import torch
from torch import Tensor

from isotherm import scale
from isotherm import softmax as forms
from isotherm.lab.claim import Result, Setting, all_hold, at_most, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import logits, normal
from isotherm.lab.figures import figure
from isotherm.lab.interval import bisect, groups, line_over_seeds, over_seeds
from isotherm.lab.numerals import numeral
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
TOLERANCE = 4e-15
FULL = 0.99


def experiment(setting: Setting) -> Result:
    """Compare the gradients of cross-entropy and of squared error over the margin of the right class."""
    margins, target = setting["margins"], 0
    others = normal((setting["draws"], setting["classes"] - 1), setting.generator(0))
    rows = {margin: _logits(others, margin) for margin in margins}
    labels = torch.full((setting["draws"],), target)
    gradients = {margin: forms.cross_entropy_gradient(x, labels) for margin, x in rows.items()}
    off = float(torch.stack([gradients[margin] - _autograd(x, labels) for margin, x in rows.items()]).abs().max())
    # The gradients add up to 0, so the others together are the pull on the target, with all its digits.
    pull = {margin: gradient[:, 1:].sum(-1) for margin, gradient in gradients.items()}
    squared = {margin: _squared_error(x, target)[:, target].abs() for margin, x in rows.items()}
    falls = all(bool((pull[b] <= pull[a] + TOLERANCE).all()) for a, b in pairwise(margins))
    largest = float(torch.stack(list(gradients.values())).norm(dim=-1).max())
    wrong, right = margins[0], margins[-1]
    numbers = (
        at_most(SAYS["autograd"], off, TOLERANCE, predicted=0.0),
        *(
            over_seeds(
                SAYS["pull"].format(m=margin), groups(pull[margin]), predicted=said, document=said, holds=bool(holds)
            )
            for margin, said, holds in (
                (wrong, 1.0, pull[wrong].min() >= FULL),
                (right, 0.0, pull[right].max() <= 1 - FULL),
            )
        ),
        Measured(SAYS["never-grows"], float(falls), predicted=1.0, holds=falls),
        at_most(SAYS["largest-norm"], largest, sqrt(2) + TOLERANCE, predicted=sqrt(2)),
        over_seeds(SAYS["squared-error"].format(m=wrong), groups(squared[wrong])),
        over_seeds(SAYS["squared-error"].format(m=0), groups(squared[0])),
        Measured(SAYS["two-steps"], _last_finite(), predicted=log(torch.finfo(torch.float32).max)),
        *_classifier(setting),
    )
    at_wrong, at_right, by_square = (numbers[i].value for i in (1, 2, 5))
    sentence = SAYS["outcome"].format(
        m=abs(wrong), wrong=numeral(at_wrong), right=numeral(at_right, 1), squared=numeral(by_square, 1)
    )
    return conclude(all_hold(numbers), sentence, numbers, [_figure(margins, pull, squared)])


def _logits(others: Tensor, margin: float) -> Tensor:
    """Logits whose first class leads the best of the others by the margin."""
    return torch.cat([others.amax(-1, keepdim=True) + margin, others], -1)


def _autograd(x: Tensor, labels: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x, labels, reduction="sum"), x)
    return gradient


def _squared_error(x: Tensor, target: int) -> Tensor:
    """The gradient of ½‖y − t‖², which has to pass the softmax's Jacobian."""
    y = forms.softmax(x)
    away = y.clone()
    away[:, target] -= 1
    return forms.jacobian_product(y, away)


def _last_finite() -> float:
    """The largest margin of a wrong class at which −log(softmax) in two steps still has a gradient, in float32."""

    def finite(margin: float) -> bool:
        x = torch.tensor([0.0, margin], requires_grad=True)
        (gradient,) = torch.autograd.grad(-forms.softmax(x)[0].log(), x)
        return bool(gradient.isfinite().all())

    return bisect(finite, 0.0, 1000.0, 19)[0]


def _classifier(setting: Setting) -> tuple[Measured, ...]:
    """Spread of W·h for W drawn as unit-variance numbers and as usual: a weight matrix is as random as a key."""
    d, numbers = setting["width"], []
    h, w = (normal((32, rows, d), setting.generator(1 + i)) for i, rows in enumerate((16, 64)))
    for name, factor, predicted in (("unit", 1.0, float(d)), ("usual", 1 / sqrt(d), 1.0)):
        values = logits(h, factor * w, scale.NoScale()).square().mean((-2, -1)).tolist()
        numbers.append(over_seeds(SAYS[f"{name}-variance"].format(d=d), values, predicted=predicted))
    return tuple(numbers)


def _figure(margins: tuple[float, ...], pull: dict[float, Tensor], squared: dict[float, Tensor]) -> Figure:
    lines = (
        line_over_seeds(name, margins, [groups(found[m]) for m in margins])
        for name, found in ((SAYS["cross-entropy-line"], pull), (SAYS["squared-error-line"], squared))
    )
    return figure("cross-entropy-pull", SAYS["caption"], SAYS["axis-margin"], SAYS["axis-gradient"], lines)


CLAIM = SAYS.claim(
    id="cross-entropy-is-safe",
    sources=("000",),
    expected="confirmed",
    experiment=experiment,
    quick={
        "classes": 10,
        "draws": 1000,
        "margins": (-50, -20, -10, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 10, 20, 50),
        "width": 512,
    },
    full={"classes": 1000, "draws": 1000},
)
