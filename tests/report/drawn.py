"""Parts of made-up check-ups: heads, audits, rules, findings, whole models of a shape.

A head is drawn from its logit spread σ: the statistics follow it roughly as theory says, with some noise, which is all a
picture needs. The seed makes them the same on every machine.
"""

from dataclasses import replace
from math import exp, log, sqrt
from random import Random
from statistics import median

from isotherm.language import Text
from isotherm.record import (
    SCHEMA,
    CheckRecord,
    Comparison,
    Cost,
    Curve,
    Finding,
    HeadDetail,
    HeadStats,
    Layer,
    LayerCurve,
    ScaleAudit,
    Spread,
    State,
    Subject,
    WhatIf,
    WhatIfLayer,
)

BINS, STRETCHES = 20, 24
FACTORS = tuple(2.0 ** (step / 2) for step in range(-8, 9))
NOTHING = Spread(None, None, None, None)


def spread_about(random: Random, middle: float, width: float, top: float = 1.0) -> Spread:
    p50 = min(max(middle, 0.0), top)
    return Spread(p50 * 0.97, max(p50 - width, 0.0) * random.uniform(0.85, 1), p50, min(p50 + width, top))


def histogram_about(middle: float, width: float, rows: int) -> tuple[int, ...]:
    heights = [exp(-((((i + 0.5) / BINS - middle) / (width + 0.02)) ** 2)) for i in range(BINS)]
    return tuple(round(rows * height / (sum(heights) + 1e-12)) for height in heights)


def state_of(gate: float, entropy_fraction: float, sink: float) -> State:
    if gate < 0.05:
        return "saturated"
    if entropy_fraction > 0.98:
        return "diffuse"
    return "sink" if sink > 0.3 else "balanced"


def expected(ratio: float) -> tuple[float, float]:
    """Gate and entropy fraction of a head whose spread is this part of the freezing one."""
    return 1 / (1 + (ratio / 1.15) ** 5), 1 / (1 + 1.6 * ratio**2)


def curve_of(sigma: float | None, keys: int) -> Curve:
    """The temperature curve of a head whose logits have this standard deviation."""
    if sigma is None:
        return Curve((None,) * len(FACTORS), (None,) * len(FACTORS), None, None)
    critical = sqrt(2 * log(keys))
    gates, fractions = zip(*(expected(factor * sigma / critical) for factor in FACTORS), strict=True)
    best = max(range(len(FACTORS)), key=lambda place: FACTORS[place] * gates[place])
    within = 0 < best < len(FACTORS) - 1
    return Curve(gates, fractions, critical / sigma, FACTORS[best] if within else None)


def curved(layer: Layer) -> Layer:
    """The layer with the curves that its heads' spreads give, from 32 rows of each."""
    sigmas = [head.logit_std for head in layer.head_stats]
    whole = curve_of(median(sigmas), layer.keys)
    heads = tuple(curve_of(sigma, layer.keys) for sigma in sigmas)
    rows = 4 * layer.keys
    return replace(
        layer, curve=LayerCurve(**vars(whole), factors=FACTORS, heads=heads, rows=32, rows_total=rows, label="sampled")
    )


def head_of(
    random: Random, head: int, sigma: float, keys: int, rows: int, *, sink: float = 0.0, with_detail: bool = True
) -> HeadStats:
    """A head whose logits have this standard deviation."""
    critical = sqrt(2 * log(keys))
    ratio = sigma / critical
    expected_gate, expected_fraction = expected(ratio)
    gate = min(max(expected_gate * random.uniform(0.9, 1.05), 1e-9), 0.9995)
    fraction = min(expected_fraction * random.uniform(0.93, 1.04), 0.9996)
    sink = max(sink, random.uniform(0.002, 0.06))
    width = 0.04 + 0.3 * ratio * exp(-ratio)
    detail = HeadDetail(
        histogram_about(gate, width / 2, rows),
        histogram_about(fraction, 0.06, rows),
        tuple(
            min(gate * (0.55 + 0.45 * (i + 1) / STRETCHES) * random.uniform(0.96, 1.04), 1.0) for i in range(STRETCHES)
        ),
        tuple(min(fraction * random.uniform(0.93, 1.07), 1.0) for _ in range(STRETCHES)),
    )
    return HeadStats(
        head=head,
        state=state_of(gate, fraction, sink),
        entropy=spread_about(random, fraction * log(keys), 0.4, log(keys)),
        entropy_fraction=spread_about(random, fraction, 0.09),
        jacobian_trace=spread_about(random, gate, width),
        top1=spread_about(random, 1 - 0.9 * gate, 0.1),
        n_eff=spread_about(random, max(keys * exp(-(sigma**2)), 1.02), 2.5, float(keys)),
        max_logit=sigma * critical * random.uniform(0.9, 1.3),
        logit_std=sigma,
        sink=sink,
        rows=rows,
        empty=0,
        invalid=0,
        label="exact",
        predicted_gate=expected_gate,
        predicted_entropy_fraction=expected_fraction,
        detail=detail if with_detail else None,
    )


def audit(scale: float, declared: float | None = None, *, source: str = "config.head_dim") -> ScaleAudit:
    declared = scale if declared is None else declared
    return ScaleAudit(scale, scale * 1.0000002, declared, "inverse-sqrt", source, abs(scale / declared - 1) < 1e-3)


def what_if_of(layers: tuple[Layer, ...], rules: tuple[str, ...]) -> tuple[WhatIf, ...]:
    random, tables = Random(7), []
    for number, rule in enumerate(rules):
        sharper = 1 if number == 0 else random.uniform(0.3, 1.15)
        replayed = tuple(
            WhatIfLayer(
                layer.index,
                min(0.4 + 0.35 * sharper + random.uniform(-0.05, 0.05), 1),
                min(0.5 + 0.42 * sharper + random.uniform(-0.03, 0.03), 1),
                min(0.3 * sharper**6 + random.uniform(0, 0.02), 1) ** 2,
                12 / sharper**2 + random.uniform(0, 3),
            )
            for layer in layers
        )
        tables.append(WhatIf(rule, replayed))
    return tuple(tables)


def finding(
    code: str, severity: str, layer: int | None, head: int | None, en: str, zh: str, **evidence: object
) -> Finding:
    return Finding(
        code,
        severity,  # type: ignore[arg-type]
        layer,
        head,
        Text(en, zh),
        evidence,  # type: ignore[arg-type]
        Text(
            "Multiply the query projection by 0.125, or pass scale=0.125 to the kernel.",
            "把查询投影乘以 0.125，或把 scale=0.125 传给内核。",
        ),
        Text("σ_c = √(2 ln n): the random energy model, Derrida 1981", "σ_c = √(2 ln n)：随机能量模型，Derrida 1981"),
    )


def model_of(
    name: str,
    layers: int,
    heads: int,
    *,
    head_dim: int = 64,
    keys: int = 512,
    seed: int = 0,
    path: str = "encoder.layer.{}.attention.self",
    with_detail: bool = True,
) -> CheckRecord:
    """A trained, healthy model of this shape: spreads between 0.6 and 2.8, a few sinks, nothing to act on."""
    random, made = Random(seed), []
    for index in range(layers):
        stats = tuple(
            head_of(
                random,
                head,
                random.uniform(0.6, 2.8),
                keys,
                4 * keys,
                sink=random.uniform(0.35, 0.8) if random.random() < 0.12 else 0.0,
                with_detail=with_detail,
            )
            for head in range(heads)
        )
        made.append(
            Layer(index, path.format(index), "self", heads, heads, head_dim, keys, "sdpa", audit(head_dim**-0.5), stats)
        )
    return CheckRecord(
        schema=SCHEMA,
        created="2026-11-15T08:30:00+00:00",
        model=Subject(name, "BertModel", f"{name} (local files)", 22_713_216, "float32", "cpu", 4 * keys, 4, False),
        versions={"isotherm": "0.1.0", "torch": "2.13.0", "transformers": "5.22.2", "python": "3.11.2"},
        layers=tuple(curved(layer) for layer in made),
        findings=(),
        what_if=what_if_of(tuple(made), ("as is", "inverse-sqrt", "mup", "none", "log-n")),
        comparisons=(
            Comparison(("eager", "sdpa"), 3, "entropy", 2.4e-6, 1e-3, True),
            Comparison(("sdpa", "flex"), 1, "max_logit", 3.1e-5, 1e-3, True),
        ),
        unseen=(),
        cost=Cost(3.42, 0.81, 912.0),
    )
