"""Do heads learn different jobs? A trained model against itself untrained, and against random heads just as sharp."""

import torch
from torch import Tensor

from isotherm.lab import minilm
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.figures import LAYER, figure, heads_map
from isotherm.lab.interval import effect_size, interval, line_over_seeds, over_seeds
from isotherm.lab.mathml import bracket, equation, frac, row, sub, total
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Figure, Heatmap, Measured, Step

JOBS = ("distance", "self", "previous", "next", "cls", "sep")
TIMES = 3.0
"""Heads differ in a job if its share varies between them at least this much more than between heads that learned nothing."""
MODELS = ("trained", "untrained", "matched")


def experiment(setting: Setting) -> Result:
    """Spread of each job between the heads of a layer: trained per passage, controls per seed."""
    model = minilm.trained()
    passages = [minilm.read(model, i, setting["tokens"]) for i in range(setting["passages"])]
    sharpness = torch.stack([heads.spread() for heads in passages]).mean(0)
    found = {"trained": [_Found([heads.logits()]) for heads in passages], "untrained": [], "matched": []}
    for seed in range(setting["seeds"]):
        other = minilm.untrained(setting.seed * 1000 + seed)
        control = [minilm.read(other, i, setting["tokens"]) for i in range(setting["passages"])]
        factor = (sharpness / torch.stack([heads.spread() for heads in control]).mean(0))[..., None, None]
        found["untrained"].append(_Found([heads.logits() for heads in control]))
        found["matched"].append(_Found([heads.logits() * factor for heads in control]))
        setting.progress((seed + 1) / setting["seeds"])
    differs = {job: _ratio(found, job, "untrained") > TIMES and _ratio(found, job, "matched") > TIMES for job in JOBS}
    whole = _Found([heads.logits() for heads in passages])
    return conclude(
        sum(differs.values()) >= setting["enough"],
        _sentence(found, differs),
        _measured(found, differs),
        [_figure(found)],
        [_heatmap(whole, job) for job in ("previous", "cls")],
    )


class _Found:
    """What every head does, how that varies between heads, and how far heads are apart: means over some passages."""

    def __init__(self, logits: list[Tensor]) -> None:
        each = [minilm.jobs(part) for part in logits]
        self.jobs = {job: torch.stack([jobs[job] for jobs in each]).mean(0) for job in each[0]}
        self.varies = {job: sum(jobs[job].std(1).mean().item() for jobs in each) / len(each) for job in self.jobs}
        self.apart = torch.stack([minilm.divergence(part) for part in logits]).mean(0)


Models = dict[str, list[_Found]]


def _ratio(found: Models, job: str, control: str) -> float:
    """The trained model's variation (lower 95 % bound) divided by the control's (upper 95 % bound)."""
    least = interval([each.varies[job] for each in found["trained"]]).low
    most = interval([each.varies[job] for each in found[control]]).high
    return least / most if most else 0.0


def _measured(found: Models, differs: dict[str, bool]) -> tuple[Measured, ...]:
    numbers = []
    for job in JOBS:
        for model in MODELS:
            values = [each.varies[job] for each in found[model]]
            holds = differs[job] if model == "trained" else None
            numbers.append(over_seeds(VARIES.format(job=NAMES[job], model=NAMES[model]), values, holds=holds))
        trained, matched = ([each.varies[job] for each in found[model]] for model in ("trained", "matched"))
        numbers.append(Measured(EFFECT.format(job=NAMES[job]), effect_size(trained, matched)))
    for model in MODELS:
        apart = [each.apart.mean().item() for each in found[model]]
        numbers.append(over_seeds(APART.format(model=NAMES[model]), apart))
    return tuple(numbers)


def _figure(found: Models) -> Figure:
    layers = len(found["trained"][0].apart)
    lines = (
        line_over_seeds(NAMES[model], range(layers), torch.stack([each.apart for each in found[model]]).T.tolist())
        for model in MODELS
    )
    caption = Text(
        "How far apart two heads of a layer are. The untrained model attends to everything alike, so its heads agree; "
        "but random heads made just as sharp as the trained ones are farther apart still. Being different is not "
        "having a job.",
        "同一层中两个头相差多远。未训练的模型对一切一视同仁，各头自然一致；而同样尖锐的随机头彼此相差更远。「不同」并不"
        "等于「各司其职」。",
    )
    y = Text("Jensen–Shannon divergence (nats)", "Jensen–Shannon 散度（nat）")
    return figure("heads-apart", caption, LAYER, y, lines)


def _heatmap(found: _Found, job: str) -> Heatmap:
    caption = Text(
        "Share of attention that each trained head gives to {job}: a few heads specialise.",
        "每个训练后的头分给{job}的注意力：少数头专司此职。",
    ).format(job=NAMES[job])
    return heads_map(f"heads-{job}", caption, Text("share of attention (1)", "注意力份额（1）"), found.jobs[job])


def _sentence(found: Models, differs: dict[str, bool]) -> Text:
    most = max(each.jobs["previous"].max().item() for each in found["trained"])
    trained, random = (
        numeral(interval([each.varies["previous"] for each in found[model]]).mean, 2)
        for model in ("trained", "matched")
    )
    return Text(
        "Heads of the trained model differ in {count} of {all} jobs: the share given to the previous token varies by "
        "{previous} between heads (one gives it {most}), against {random} for random heads that are just as sharp.",
        "训练后模型的头在 {all} 种职责中的 {count} 种上各不相同：分给前一个词元的份额在各头之间的标准差为 {previous}"
        "（某个头达 {most}），同样尖锐的随机头只有 {random}。",
    ).format(count=sum(differs.values()), all=len(JOBS), previous=trained, random=random, most=percent(most, 0))


NAMES = {
    "distance": Text("the distance looked over", "注视距离"),
    "self": Text("the token itself", "词元自身"),
    "previous": Text("the previous token", "前一个词元"),
    "next": Text("the next token", "后一个词元"),
    "cls": Text("[CLS]", "[CLS]"),
    "sep": Text("[SEP]", "[SEP]"),
    "trained": Text("trained", "训练后"),
    "untrained": Text("untrained", "未训练"),
    "matched": Text("random, equally sharp", "随机但同样尖锐"),
}
VARIES = Text("standard deviation between heads, {job}: {model}", "各头之间的标准差，{job}：{model}")
EFFECT = Text("Cohen's d against equally sharp random heads: {job}", "相对于同样尖锐的随机头的 Cohen's d：{job}")
APART = Text(
    "Jensen–Shannon divergence between heads: {model} (nats)", "各头之间的 Jensen–Shannon 散度：{model}（nat）"
)
STEPS = (
    Step(
        Text(
            "A head's job is the share of attention it gives to a place, averaged over queries.",
            "一个头的职责，是它分给某类位置的注意力份额（对查询取平均）。",
        ),
        equation(row("share ( previous )"), row(frac("1", "n"), total("i"), sub("p", "i , i − 1"))),
    ),
    Step(
        Text(
            "How far two heads are apart is the Jensen–Shannon divergence of their rows.",
            "两个头相差多远，用其各行的 Jensen–Shannon 散度衡量。",
        ),
        equation("JS", row("H", bracket(frac("p + q", "2")), "−", frac("H ( p ) + H ( q )", "2"))),
    ),
    Step(
        Text(
            "Sharp rows differ whatever they are sharp about, so the control has each head's logit spread, and random "
            "weights.",
            "尖锐的行无论尖锐在何处都会彼此不同，因此对照组保留每个头的 logit 标准差，而权重是随机的。",
        ),
    ),
)
CLAIM = Claim(
    id="heads-differ",
    title=Text("Heads learn different jobs", "不同的头学会不同的工作"),
    question=Text("Does each attention head do something of its own?", "每个注意力头是否各做各的事？"),
    statement=Text(
        "The attention heads can learn to perform different tasks.",
        "各个注意力头（attention head）可以学会执行不同的任务。",
    ),
    sources=("002",),
    hypothesis=Text(
        "In all-MiniLM-L6-v2, for at least 4 of 6 jobs (distance, itself, previous, next, [CLS], [SEP]), the standard "
        "deviation between the heads of a layer is over 3 times that of the same model untrained and of random heads "
        "made equally sharp (lower 95 % bound over passages against upper 95 % bound over seeds).",
        "在 all-MiniLM-L6-v2 中，六种职责（注视距离、自身、前一个、后一个、[CLS]、[SEP]）里至少四种，同层各头之间的标准"
        "差超过同一模型未训练时、以及同样尖锐的随机头的 3 倍（按文段的 95 % 下界对按种子的 95 % 上界）。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={"tokens": 64, "passages": 6, "seeds": 4, "enough": 4},
    full={"tokens": 128, "seeds": 16},
    steps=STEPS,
    needs=minilm.NEEDS,
)
