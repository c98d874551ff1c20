"""Do heads learn different jobs? A trained model against the same model untrained and against equally sharp random heads."""

import torch
from torch import Tensor

from isotherm.lab import minilm
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.figures import LAYER, figure, heads_map
from isotherm.lab.interval import effect_size, interval, line_over_seeds, over_seeds
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Figure, Heatmap, Measured

SAYS = read_content(__file__)
JOBS = ("distance", "self", "previous", "next", "cls", "sep")
TIMES = 3.0
"""Heads differ in a job if its standard deviation between them is over this many times that of heads that learned nothing."""
MODELS = ("trained", "untrained", "matched")


def experiment(setting: Setting) -> Result:
    """Spread of each job between the heads of a layer: trained per passage, controls per seed."""
    model = minilm.trained()
    passages = [minilm.read(model, i, setting["tokens"]) for i in range(setting["passages"])]
    sharpness = torch.stack([heads.spread() for heads in passages]).mean(0)
    found = {"trained": [_Found([heads.logits()]) for heads in passages], "untrained": [], "matched": []}
    for seed in range(setting["seeds"]):
        other = minilm.untrained(model, setting.seed * 1000 + seed)
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
            name = SAYS["varies"].format(job=SAYS[f"job-{job}"], model=SAYS[f"model-{model}"])
            numbers.append(over_seeds(name, values, holds=holds))
        trained, matched = ([each.varies[job] for each in found[model]] for model in ("trained", "matched"))
        numbers.append(Measured(SAYS["effect"].format(job=SAYS[f"job-{job}"]), effect_size(trained, matched)))
    for model in MODELS:
        apart = [each.apart.mean().item() for each in found[model]]
        numbers.append(over_seeds(SAYS["apart"].format(model=SAYS[f"model-{model}"]), apart))
    return tuple(numbers)


def _figure(found: Models) -> Figure:
    layers = len(found["trained"][0].apart)
    lines = (
        line_over_seeds(
            SAYS[f"model-{model}"], range(layers), torch.stack([each.apart for each in found[model]]).T.tolist()
        )
        for model in MODELS
    )
    return figure("heads-apart", SAYS["apart-caption"], LAYER, SAYS["apart-y"], lines)


def _heatmap(found: _Found, job: str) -> Heatmap:
    caption = SAYS["share-caption"].format(job=SAYS[f"job-{job}"])
    return heads_map(f"heads-{job}", caption, SAYS["share-y"], found.jobs[job])


def _sentence(found: Models, differs: dict[str, bool]) -> Text:
    most = max(each.jobs["previous"].max().item() for each in found["trained"])
    trained, random = (
        numeral(interval([each.varies["previous"] for each in found[model]]).mean, 2)
        for model in ("trained", "matched")
    )
    return SAYS["outcome"].format(
        count=sum(differs.values()), all=len(JOBS), previous=trained, random=random, most=percent(most, 0)
    )


CLAIM = SAYS.claim(
    id="heads-differ",
    sources=("002",),
    expected="confirmed",
    experiment=experiment,
    quick={"tokens": 64, "passages": 6, "seeds": 4, "enough": 4},
    full={"tokens": 128, "seeds": 16},
    needs=minilm.NEEDS,
)
