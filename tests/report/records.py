"""Check-up records as real models give them, made from a seed: no torch, no model, the same on every machine.

`ugly` holds everything that breaks a page or a table at once; `bare` has nothing in it.
"""

from dataclasses import replace
from functools import cache, lru_cache
from random import Random

from isotherm.language import Text
from isotherm.record import (
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
    Unseen,
    WhatIf,
    WhatIfLayer,
)
from isotherm.record.tune import TemperatureGradient
from tests.report.drawn import BINS, NOTHING, audit, curved, finding, head_of, model_of, what_if_of


@cache
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


@cache
def gpt2() -> CheckRecord:
    """Twelve layers of twelve heads with a scale forgotten in two layers, a float16 overflow and a module not seen."""
    record = model_of("gpt2-finetuned-long", 12, 12, keys=1024, seed=5, path="transformer.h.{}.attn")
    layers = _gpt2_layers(record)
    part = Text("the first 512 of 1,024 tokens", "1,024 个词元中的前 512 个")
    comparison = Comparison(("eager", "sdpa"), 9, "max_logit", 0.31, 1e-3, False, part)
    sampled = Text(
        "What-if was computed on 256 of 1,024 rows of each head, spread evenly.",
        "“假如”取每个头 1,024 行中均匀分布的 256 行计算。",
    )
    unseen = Unseen(
        "transformer.h.12.crossattention",
        "GPT2Attention",
        Text("it did not run on this batch", "这一批数据没有经过它"),
    )
    longer = Text(
        "At 8192 tokens the entropy fraction would fall from 0.58 to 0.46; a log-n factor of 1.30 keeps it.",
        "长度到 8192 时熵占比将由 0.58 降至 0.46；乘以 log-n 因子 1.30 可保持不变。",
    )
    subject = replace(record.model, architecture="GPT2LMHeadModel", parameters=124_439_808, dtype="float16")
    return replace(
        record,
        layers=layers,
        findings=_gpt2_findings(),
        comparisons=(comparison, *record.comparisons),
        unseen=(unseen,),
        remarks=(sampled,),
        context=Context(8192, 1024, 0.58, 0.46, 1.3, longer),
        what_if=what_if_of(layers, ("as is", "inverse-sqrt", "mup", "none", "log-n", "qk-norm")),
        model=replace(subject, device="cuda:0"),
    )


def _gpt2_layers(record: CheckRecord) -> tuple[Layer, ...]:
    layers, random = list(record.layers), Random(11)
    how = Text("Pass scale=0.125 where the layer calls the kernel.", "在该层调用内核处传入 scale=0.125。")
    for index in (3, 9):
        frozen = tuple(head_of(random, head, random.uniform(5, 12), 1024, 4096) for head in range(12))
        wrong = ScaleAudit(1.0, 1.0, 0.125, "inverse-sqrt", "config.scale_attn_weights", False)
        advice = Advice(8.1, 1.4, 0.1728, how)
        layers[index] = curved(replace(layers[index], head_stats=frozen, scale=wrong, advice=advice))
    heads = list(layers[6].head_stats)
    flat = replace(head_of(random, 2, 0.05, 1024, 4096), jacobian_trace=Spread(0.999, 0.998, 0.999, 0.999))
    heads[2] = replace(flat, state="diffuse", entropy_fraction=Spread(0.99, 0.985, 0.991, 0.995))
    heads[7] = replace(heads[7], state="invalid", invalid=12, max_logit=65504.0)
    layers[6] = replace(layers[6], head_stats=tuple(heads))
    cached = Text("q·k could not be measured: keys are cached", "无法测得 q·k：键取自缓存")
    layers[11] = replace(layers[11], scale=ScaleAudit(1.0, None, None, "", "", None, cached))
    return tuple(layers)


def _gpt2_findings() -> tuple[Finding, ...]:
    differs = (
        "Layer {} multiplies q·k by 1, while its config declares 0.125 (1/√64).",
        "第 {} 层把 q·k 乘以 1，而配置声明的是 0.125（1/√64）。",
    )
    scales = {"effective": 1.0, "declared": 0.125, "rule": "inverse-sqrt"}
    invalid = "12 rows hold NaN or Inf.", "有 12 行含 NaN 或 Inf。"
    large = "The largest logit is 131.2, past 100.", "最大的 logit 为 131.2，已超过 100。"
    flat = "Head 2 attends to everything alike.", "注意力头 2 对所有键一视同仁。"
    return (
        *(
            finding("scale.differs", "error", index, None, *(text.format(index) for text in differs), **scales)
            for index in (3, 9)
        ),
        finding("values.invalid", "error", 6, 7, *invalid, rows=12.0, dtype="float16"),
        finding("logits.large", "warning", 9, 4, *large, max_logit=131.2, limit=100.0),
        finding("head.diffuse", "note", 6, 2, *flat),
    )


@lru_cache(maxsize=1)
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
        made[index] = curved(replace(made[index], head_stats=stats, scale=audit(1.0, 128**-0.5)))
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


@cache
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
    unknown = replace(record.layers[0].curve.heads[0], gate=(None, nan) + (None,) * 15, freezing=nan, best_open=-1.0)
    curve = replace(record.layers[0].curve, heads=(unknown, *record.layers[0].curve.heads[1:]), freezing=1e9)
    unfit = replace(record.layers[1].curve, factors=(0.0, 1.0, float("inf")))
    layers = (
        replace(
            record.layers[0],
            name=ATTACK,
            head_stats=(nothing, broken, *record.layers[0].head_stats[2:]),
            curve=curve,
        ),
        replace(record.layers[1], name=QUOTES, scale=strange, kind="cross", implementation="<b>eager</b>", curve=unfit),
        replace(record.layers[2], name="编码器.第三层.自注意力", keys=0),
        replace(
            record.layers[3],
            name="leer\u2028\u2029[bold red]rich[/]",
            heads=0,
            kv_heads=0,
            head_stats=(),
            keys=1,
            curve=None,
        ),
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
        comparisons=(Comparison((ATTACK, QUOTES), None, "entropy", nan, 0.0, False, Text(ATTACK, QUOTES)),),
        remarks=(Text(ATTACK, QUOTES),),
        unseen=(Unseen(ATTACK, QUOTES, Text(ATTACK, "原因")),),
        cost=Cost(0.0, 0.0, 0.0),
        versions={ATTACK: QUOTES},
    )


def with_gradient(record: CheckRecord) -> CheckRecord:
    """The record with a temperature gradient for every head, on both sides of 0."""
    random = Random(11)
    slopes = tuple(tuple(random.gauss(0, 0.01) for _ in layer.head_stats) for layer in record.layers)
    margins = tuple(tuple(0.004 for _ in row) for row in slopes)
    names = tuple(layer.name for layer in record.layers)
    return replace(record, temperature_gradient=TemperatureGradient("next", 64, 8, 3.2, names, slopes, margins))


@cache
def bare() -> CheckRecord:
    """A model in which no attention was found."""
    return replace(model_of("mlp", 0, 0), what_if=(), comparisons=())
