"""Check-up records as real models give them, made from a seed: no torch, no model, the same on every machine.

A head is drawn from its logit spread σ: the statistics follow it roughly as theory says, with some noise, which is all a
picture needs. `ugly` holds everything that breaks a page or a table at once.
"""

from dataclasses import replace
from math import exp, log, sqrt
from random import Random

from isotherm.language import Text
from isotherm.record import (
    SCHEMA,
    Advice,
    CheckRecord,
    Comparison,
    Context,
    Cost,
    Finding,
    HeadDetail,
    HeadStats,
    Layer,
    ScaleAudit,
    Spread,
    State,
    Subject,
    Unseen,
    WhatIf,
    WhatIfLayer,
)

BINS, STRETCHES = 20, 24
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


def head_of(
    random: Random, head: int, sigma: float, keys: int, rows: int, *, sink: float = 0.0, with_detail: bool = True
) -> HeadStats:
    """A head whose logits have this standard deviation."""
    critical = sqrt(2 * log(keys))
    ratio = sigma / critical
    expected_gate = 1 / (1 + (ratio / 1.15) ** 5)
    expected_fraction = 1 / (1 + 1.6 * ratio**2)
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
        layers=tuple(made),
        findings=(),
        what_if=what_if_of(tuple(made), ("as is", "inverse-sqrt", "mup", "none", "log-n")),
        comparisons=(
            Comparison(("eager", "sdpa"), 3, "entropy", 2.4e-6, 1e-3, True),
            Comparison(("sdpa", "flex"), 1, "max_logit", 3.1e-5, 1e-3, True),
        ),
        unseen=(),
        cost=Cost(3.42, 0.81, 912.0),
    )


def minilm() -> CheckRecord:
    """Six layers of twelve heads, healthy, one note."""
    record = model_of("all-MiniLM-L6-v2", 6, 12, head_dim=32, keys=256, seed=3)
    note = finding(
        "headroom.float16",
        "note",
        5,
        None,
        "The largest logit of layer 5 is 21.4: float16 holds it, with a factor of 3062 to spare.",
        "第 5 层最大的 logit 为 21.4：float16 容得下，尚有 3062 倍余量。",
        max_logit=21.4,
        limit=65504.0,
    )
    return replace(record, findings=(note,))


def gpt2() -> CheckRecord:
    """Twelve layers of twelve heads with a scale forgotten in two layers, a float16 overflow and a module not seen."""
    record = model_of("gpt2-finetuned-long", 12, 12, keys=1024, seed=5, path="transformer.h.{}.attn")
    layers = [replace(layer, kind="self", implementation="sdpa") for layer in record.layers]
    random = Random(11)
    for index in (3, 9):
        frozen = tuple(head_of(random, head, random.uniform(5, 12), 1024, 4096) for head in range(12))
        advice = Advice(
            8.1,
            1.4,
            0.1728,
            Text("Pass scale=0.125 where the layer calls the kernel.", "在该层调用内核处传入 scale=0.125。"),
        )
        wrong = ScaleAudit(1.0, 1.0, 0.125, "inverse-sqrt", "config.scale_attn_weights", False)
        layers[index] = replace(layers[index], head_stats=frozen, scale=wrong, advice=advice)
    heads = list(layers[6].head_stats)
    heads[2] = replace(head_of(random, 2, 0.05, 1024, 4096), jacobian_trace=Spread(0.999, 0.998, 0.999, 0.999))
    heads[2] = replace(heads[2], state="diffuse", entropy_fraction=Spread(0.99, 0.985, 0.991, 0.995))
    heads[7] = replace(heads[7], state="invalid", invalid=12, max_logit=65504.0)
    layers[6] = replace(layers[6], head_stats=tuple(heads))
    unknown = ScaleAudit(
        1.0, None, None, "", "", None, Text("q·k could not be measured: keys are cached", "无法测得 q·k：键取自缓存")
    )
    layers[11] = replace(layers[11], scale=unknown)
    findings = (
        *(
            finding(
                "scale.differs",
                "error",
                index,
                None,
                f"Layer {index} multiplies q·k by 1, while its config declares 0.125 (1/√64).",
                f"第 {index} 层把 q·k 乘以 1，而配置声明的是 0.125（1/√64）。",
                effective=1.0,
                declared=0.125,
                rule="inverse-sqrt",
            )
            for index in (3, 9)
        ),
        finding(
            "values.invalid",
            "error",
            6,
            7,
            "12 rows hold NaN or Inf.",
            "有 12 行含 NaN 或 Inf。",
            rows=12.0,
            dtype="float16",
        ),
        finding(
            "logits.large",
            "warning",
            9,
            4,
            "The largest logit is 131.2, past 100.",
            "最大的 logit 为 131.2，已超过 100。",
            max_logit=131.2,
            limit=100.0,
        ),
        finding("head.diffuse", "note", 6, 2, "Head 2 attends to everything alike.", "注意力头 2 对所有键一视同仁。"),
    )
    comparison = Comparison(("eager", "sdpa"), 9, "max_logit", 0.31, 1e-3, False)
    unseen = Unseen(
        "transformer.h.12.crossattention",
        "GPT2Attention",
        Text("it did not run on this batch", "这一批数据没有经过它"),
    )
    context = Context(
        8192,
        1024,
        0.58,
        0.46,
        1.3,
        Text(
            "At 8192 tokens the entropy fraction would fall from 0.58 to 0.46; a log-n factor of 1.30 keeps it.",
            "长度到 8192 时熵占比将由 0.58 降至 0.46；乘以 log-n 因子 1.30 可保持不变。",
        ),
    )
    return replace(
        record,
        layers=tuple(layers),
        findings=findings,
        comparisons=(comparison, *record.comparisons),
        unseen=(unseen,),
        context=context,
        what_if=what_if_of(tuple(layers), ("as is", "inverse-sqrt", "mup", "none", "log-n", "qk-norm")),
        model=replace(
            record.model, architecture="GPT2LMHeadModel", parameters=124_439_808, dtype="float16", device="cuda:0"
        ),
    )


def giant(layers: int = 80, heads: int = 64, *, findings: int = 300) -> CheckRecord:
    """A model whose every detail would take megabytes; many heads saturated, many findings, sampled rows."""
    record = model_of(
        f"giant-{layers}x{heads}", layers, heads, head_dim=128, keys=4096, seed=9, path="model.layers.{}.self_attn"
    )
    random, made = Random(13), list(record.layers)
    for index in range(0, layers, 17):
        stats = tuple(
            replace(head_of(random, head, random.uniform(4, 9), 4096, 16384), label="sampled") for head in range(heads)
        )
        made[index] = replace(made[index], head_stats=stats, scale=audit(1.0, 128**-0.5))
    found = tuple(
        finding(
            "logits.large",
            "warning",
            number % layers,
            number % heads,
            f"The largest logit is {100 + number / 7:.1f}, past 100.",
            f"最大的 logit 为 {100 + number / 7:.1f}，已超过 100。",
            max_logit=100 + number / 7,
            limit=100.0,
        )
        for number in range(findings)
    )
    return replace(
        record,
        layers=tuple(made),
        findings=found,
        what_if=what_if_of(tuple(made), ("as is", "inverse-sqrt", "mup", "none")),
    )


ATTACK = "</script><script>alert(1)</script>"
QUOTES = """a"b'c`d|e<img src=x onerror=alert(2)>&amp;*_[x](javascript:alert(3))"""


def ugly() -> CheckRecord:
    """NaN and None everywhere, an empty head, a layer with no head, hostile names, Chinese names."""
    record = model_of("x", 4, 5, keys=128, seed=21)
    nothing = HeadStats(
        0, "empty", NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, None, None, None, 0, 512, 0, "exact", None, None
    )
    nan = float("nan")
    broken = replace(
        record.layers[0].head_stats[1],
        state="invalid",
        jacobian_trace=Spread(nan, nan, nan, nan),
        max_logit=float("inf"),
        logit_std=nan,
        sink=float("-inf"),
        invalid=512,
        detail=HeadDetail((0,) * BINS, (), (None, nan, 0.5), ()),
    )
    strange = ScaleAudit(None, nan, float("inf"), QUOTES, ATTACK, None, Text(ATTACK, "说明 " + ATTACK))
    layers = (
        replace(record.layers[0], name=ATTACK, head_stats=(nothing, broken, *record.layers[0].head_stats[2:])),
        replace(record.layers[1], name=QUOTES, scale=strange, kind="cross", implementation="<b>eager</b>"),
        replace(record.layers[2], name="编码器.第三层.自注意力", keys=0),
        replace(record.layers[3], name="leer\u2028\u2029[bold red]rich[/]", heads=0, kv_heads=0, head_stats=(), keys=1),
    )
    hostile = Finding(
        "weird.code",
        "error",
        0,
        1,
        Text("[red]" + ATTACK, "坏消息 " + ATTACK),
        {ATTACK: nan, "name": QUOTES, "none": None},
        Text(QUOTES, QUOTES),
        Text("", ""),
    )
    lost = replace(hostile, severity="warning", layer=99, head=None, advice=Text("", ""))
    return replace(
        record,
        model=replace(record.model, name="中文模型 " + ATTACK, architecture=QUOTES, tokens=0, parameters=0),
        layers=layers,
        findings=(hostile, lost),
        what_if=(
            WhatIf(QUOTES, (WhatIfLayer(0, nan, None, None, float("inf")),)),
            WhatIf("as is", ()),
        ),
        comparisons=(Comparison((ATTACK, QUOTES), None, "entropy", nan, 0.0, False),),
        unseen=(Unseen(ATTACK, QUOTES, Text(ATTACK, "原因")),),
        cost=Cost(0.0, 0.0, 0.0),
        versions={ATTACK: QUOTES},
    )


def bare() -> CheckRecord:
    """A model in which no attention was found."""
    return replace(model_of("mlp", 0, 0), what_if=(), comparisons=())
