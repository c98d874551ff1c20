"""The numbers of the story that are measured on random vectors, by the names that `en.md` and `zh.md` use."""

from math import sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm import softmax as forms
from isotherm.lab.claim import Setting
from isotherm.lab.claims.vanishing_not_exploding import experiment as gradients
from isotherm.lab.dots import multiplier, normal
from isotherm.lab.interval import interval, quantile
from isotherm.stats import RowStats

D = 64
"""The head dimension of the worked row, and of many models."""
ROW_KEYS, ROW_DRAWS = 5, 1001
ROWS, KEYS = 4096, 16
"""Rows drawn for the steps on softmax, and their keys: as many as the pictures begin with."""


def measure() -> dict[str, float]:
    """Each number of the story by its name."""
    return {
        **worked_row(),
        **dot_products(),
        **weights(),
        **row_gradients(),
        **powers(),
        **lengths(),
        **translation(),
    }


def _generator(stream: int) -> torch.Generator:
    return Setting({}).generator(2017, stream)


def scores(rows: int, keys: int, d: int, stream: int) -> Tensor:
    """q·k of independent standard normal vectors, [rows, keys]: a query of its own and keys of its own for each row."""
    generator = _generator(stream)
    q, k = normal((rows, 1, d), generator), normal((rows, keys, d), generator)
    return (q @ k.mT).squeeze(1)


def worked_row() -> dict[str, float]:
    """Of many random rows the one whose gate without a scale is the median, so that it is a typical one."""
    drawn = scores(ROW_DRAWS, ROW_KEYS, D, 0)
    order = RowStats.from_logits(drawn).jacobian_trace.argsort()
    row = drawn[order[ROW_DRAWS // 2]]
    found = {"row_draws": float(ROW_DRAWS)}
    for kind, logits in (("raw", row), ("soft", row / sqrt(D))):
        y = forms.softmax(logits)
        found |= {f"{kind}_{place}": float(weight) for place, weight in enumerate(y, 1)}
        found |= {f"{kind}_logit_{place}": float(logit) for place, logit in enumerate(logits, 1)}
        found[f"{kind}_gate"] = float(forms.jacobian_trace(y))
        found[f"{kind}_entry"] = float(forms.jacobian(y).abs().max())
    return found


def dot_products() -> dict[str, float]:
    """How far q·k spreads at three dimensions."""
    return {f"dot_std_{d}": float(scores(ROWS, KEYS, d, d).std()) for d in (4, D, 1024)}


def weights() -> dict[str, float]:
    """(a, a, 2a), and the largest weight, gate and entropy of random rows with and without the scale."""
    found = {f"triple_{a}": float(forms.softmax(torch.tensor([a, a, 2 * a], dtype=torch.float64))[2]) for a in (1, 10)}
    for d in (4, D, 1024):
        drawn = scores(ROWS, KEYS, d, 1000 + d)
        for kind, factor in (("raw", 1.0), ("soft", 1 / sqrt(d))):
            stats = RowStats.from_logits(drawn * factor)
            found[f"top_{kind}_{d}"] = float(stats.top1.median())
            found[f"gate_mean_{kind}_{d}"] = float(stats.jacobian_trace.mean())
            found[f"gate_p10_{kind}_{d}"] = quantile(stats.jacobian_trace, 0.1)[0]
    return found


def row_gradients() -> dict[str, float]:
    """What reaches q, the logits and W_q in a layer, as the claim `vanishing-not-exploding` measures it: with a fixed upstream
    gradient."""
    setting = Setting({**gradients.CLAIM.quick})
    found = {"gradient_keys": float(setting["n"])}
    for d in (D, 128, 256):
        one, two = (gradients.layer(setting, d, factor, "fixed") for factor in (1.0, sqrt(d)))
        found |= {f"even_{d}": gradients.unevenness(one), f"uneven_{d}": gradients.unevenness(two)}
        for name, q in (("p10", 0.1), ("p50", 0.5)):
            found[f"{name}_{d}"] = quantile(two.q, q)[0] / quantile(one.q, q)[0]
            found[f"logit_{name}_{d}"] = quantile(two.logits, q)[0] / quantile(one.logits, q)[0]
        found[f"grown_{d}"] = interval((two.w_q / one.w_q).tolist()).mean
    return found


def powers() -> dict[str, float]:
    """Spread and entropy/ln n of a row whose scores are divided by d^0, d^½ and d^1, at a small and a large d."""
    found = {}
    for d in (16, 1024):
        drawn = scores(ROWS, KEYS, d, 2000 + d)
        for name, power in (("none", 0.0), ("root", 0.5), ("whole", 1.0)):
            stats = RowStats.from_logits(drawn / d**power)
            found[f"spread_{name}_{d}"] = float(drawn.std()) / d**power
            found[f"entropy_{name}_{d}"] = float(stats.entropy_fraction.mean())
    return found


def lengths() -> dict[str, float]:
    """Entropy of rows of logits with spread 1 at two lengths, under a constant scale and under log n; the gate after training
    has multiplied q·k."""
    short, long = 512, 32768
    found = {}
    for n, rows in ((short, 2048), (long, 128)):
        z = normal((rows, n), _generator(n))
        found[f"entropy_{n}"] = float(RowStats.from_logits(z).entropy.mean())
        factor = multiplier(scale.LogN(short), 1, n)
        found[f"entropy_log_{n}"] = float(RowStats.from_logits(z * factor).entropy.mean())
    z = normal((2048, short), _generator(7))
    for growth in (1, 4, 16):
        found[f"grown_gate_{growth}"] = float(RowStats.from_logits(z * growth).jacobian_trace.median())
    return found


def translation() -> dict[str, float]:
    """BLEU as Britz et al. published it, for both kinds of attention."""
    return {f"bleu_{it.attention}_{it.dimension}": it.bleu for it in theory.BRITZ_2017 if it.dimension in (128, 1024)}
