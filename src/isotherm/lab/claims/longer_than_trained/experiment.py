"""Does a log n factor keep a model good at lengths it was not trained at? Where only the number of keys changes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from isotherm import scale
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.figures import figure
from isotherm.lab.interval import interval, line_over_seeds, over_seeds
from isotherm.lab.numerals import percent
from isotherm.lab.recorded import sweeps
from isotherm.lab.recorded.lengths import LengthStudy, length_study
from isotherm.language import Text
from isotherm.record import Figure, Line, Measured
from isotherm.record.sweep import TrialOutcome

SAYS = read_content(__file__)
HALF = 0.5
"""The share of the loss that a model must regain to count as kept good."""
KINDS = ("apart", "crowded", "noisy")
RULES = ("constant", "log-n")
LOOKUP = "lookup"
"""The task of the recorded sweep over lengths."""


@dataclass(frozen=True)
class Losses:
    """Held-out losses by length and seed under both rules, of models trained at the first length; the odds against the key
    that was asked for, under the constant scale; and the share of queries whose own key has the largest logit."""

    by_rule: dict[str, list[list[float]]]
    odds: list[list[float]]
    largest: list[list[float]]

    def regained(self) -> list[float]:
        """The share of what the constant scale loses up to the longest length that log n regains, seed by seed."""
        constant, log_n = (self.by_rule[rule] for rule in RULES)
        ends = zip(constant[0], constant[-1], log_n[-1], strict=True)
        return [(plain - ruled) / (plain - start) for start, plain, ruled in ends]


def experiment(setting: Setting) -> Result:
    """Train retrievers with keys apart, with keys that crowd, and with a noisy query; ask all among more keys, and add recorded
    larger runs."""
    count = setting.counter(len(KINDS) * (setting["steps"] + len(setting["lengths"])))
    kinds = {kind: _trained(setting, kind, number, count) for number, kind in enumerate(KINDS)}
    shares = {kind: losses.regained() for kind, losses in kinds.items()}
    study, lookup = length_study(), _lookup()
    holds = {kind: interval(share).low >= HALF for kind, share in shares.items()}
    of_lookup = [_share(*pair) for pair in lookup]
    at_end = study.regained("log-n", study.rows[-1])
    apart = holds["apart"] and interval(of_lookup).low >= HALF
    return conclude(
        apart and all(holds.values()) and at_end[1] >= HALF,
        SAYS["outcome"].format(**_numbers(setting, shares, of_lookup, study)),
        (
            *_measured(setting, kinds, shares, holds),
            over_seeds(SAYS["recorded-lookup"], of_lookup, holds=interval(of_lookup).low >= HALF),
            *_of_study(study),
        ),
        (*(_curves(setting, kind, losses) for kind, losses in kinds.items()), _lookup_figure(lookup), _study(study)),
        under=apart,
        condition=SAYS["condition"].format(**_numbers(setting, shares, of_lookup, study)),
        recorded=_recorded(of_lookup, study),
    )


def _trained(setting: Setting, kind: str, stream: int, count: Callable[[int], None]) -> Losses:
    """Train a retriever for each seed at the first length, and ask it at every one."""
    lengths, width = setting["lengths"], setting["width"]
    d, noise = setting[kind]
    generators = setting.generators(stream)
    weights = [
        torch.stack([torch.randn(d, width, generator=one) for one in generators]).to(setting.device) / sqrt(d)
        for _ in range(2)
    ]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], setting["rate"])
    for _ in range(setting["steps"]):
        asked = _draw(setting, generators, d, noise, lengths[0], setting["batch"])
        loss = _loss(_logits(weights, *asked[:2]), asked[2]).mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count(1)
    found = Losses({rule: [] for rule in RULES}, [], [])
    with torch.no_grad():
        for n in lengths:
            q, k, same = _draw(setting, generators, d, noise, n, setting["rows"])
            logits = _logits(weights, q, k)
            for rule, rows in found.by_rule.items():
                rows.append(_loss(logits * _factor(rule, n, setting), same).mean(1).tolist())
            found.largest.append((logits.argmax(-1) == 0).double().mean(1).tolist())
            found.odds.append((logits[..., 1:] - logits[..., :1]).exp().sum(-1).mean(1).tolist())
            count(1)
    return found


def _draw(
    setting: Setting, generators: list[torch.Generator], d: int, noise: float, n: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [S, R, d], keys [S, R, n, d] on a sphere, the first of which is asked for, and which keys have its value."""
    k = torch.stack([torch.randn(rows, n, d, generator=one) for one in generators])
    k *= sqrt(d) / k.norm(dim=-1, keepdim=True)
    q = k[:, :, 0] + noise * torch.stack([torch.randn(rows, d, generator=one) for one in generators])
    values = torch.stack([torch.randint(setting["values"], (rows, n), generator=one) for one in generators])
    same = values == values[:, :, :1]
    return q.to(setting.device), k.to(setting.device), same.to(setting.device)


def _logits(weights: list[Tensor], q: Tensor, k: Tensor) -> Tensor:
    """[S, R, n]: W_q q · W_k k under 1/√d."""
    queries, keys = q @ weights[0], (k.flatten(1, 2) @ weights[1]).unflatten(1, k.shape[1:3])
    multiplier = scale.InverseSqrt().resolve(scale.Site.single(queries.shape[-1], k.shape[2])).multiplier
    return (keys @ queries.unsqueeze(-1)).squeeze(-1) * multiplier


def _factor(rule: str, n: int, setting: Setting) -> Tensor | float:
    """What a rule multiplies the logits of n keys with."""
    if rule == "constant":
        return 1.0
    site = scale.Site(setting["width"], 1, torch.tensor([n - 1]), torch.tensor([n]))
    found = scale.LogN(setting["lengths"][0]).resolve(site)
    return torch.as_tensor(found.multiplier, dtype=torch.float32, device=setting.device).flatten()


def _loss(logits: Tensor, same: Tensor) -> Tensor:
    """Nats of surprise at the value asked for, when values are drawn with the weights of their keys."""
    return -logits.log_softmax(-1).masked_fill(~same, float("-inf")).logsumexp(-1)


def _lookup() -> list[tuple[TrialOutcome, TrialOutcome]]:
    """The recorded decoders that look items up, under the constant scale and under log n, by seed."""
    outcomes = [one for sweep in sweeps() for one in sweep.outcomes if one.trial.task == LOOKUP]
    plain = {one.trial.seed: one for one in outcomes if one.trial.rule == "1/sqrt(d)"}
    ruled = {one.trial.seed: one for one in outcomes if one.trial.rule.startswith("log-n:")}
    return [(plain[seed], ruled[seed]) for seed in sorted(plain)]


def _at_lengths(outcome: TrialOutcome) -> list[float]:
    """Losses by length, the trained one first."""
    return [one.loss for one in sorted(outcome.by_length, key=lambda one: one.length) if one.loss is not None]


def _share(plain: TrialOutcome, ruled: TrialOutcome) -> float:
    constant, log_n = _at_lengths(plain), _at_lengths(ruled)
    return (constant[-1] - log_n[-1]) / (constant[-1] - constant[0])


def _measured(
    setting: Setting, kinds: dict[str, Losses], shares: dict[str, list[float]], holds: dict[str, bool]
) -> Iterator[Measured]:
    first, longest = setting["lengths"][0], setting["lengths"][-1]
    for kind, share in shares.items():
        name = SAYS["share"].format(kind=SAYS[f"kind-{kind}"], train=first, longest=longest)
        yield over_seeds(name, share, holds=holds[kind])
    for kind, losses in kinds.items():
        for rule, rows in losses.by_rule.items():
            name = SAYS["loss"].format(kind=SAYS[f"kind-{kind}"], rule=SAYS[f"rule-{rule}"], n=longest)
            yield over_seeds(name, rows[-1])
        yield over_seeds(SAYS["largest"].format(kind=SAYS[f"kind-{kind}"], n=longest), losses.largest[-1])
    odds = kinds["apart"].odds
    grown = [last / start for start, last in zip(odds[0], odds[-1], strict=True)]
    name = SAYS["odds"].format(train=first, longest=longest)
    yield over_seeds(name, grown, predicted=(longest - 1) / (first - 1))


def _of_study(study: LengthStudy) -> Iterator[Measured]:
    """The share that log n regains for the recorded GPTs at each length; the longest is judged."""
    for row in study.rows[1:]:
        share, low, high = study.regained("log-n", row)
        name = SAYS["recorded-study"].format(train=study.trained, n=row.length)
        yield Measured(name, share, low, high, holds=low >= HALF if row is study.rows[-1] else None)


def _curves(setting: Setting, kind: str, losses: Losses) -> Figure:
    lines = [line_over_seeds(SAYS[f"rule-{rule}"], setting["lengths"], losses.by_rule[rule]) for rule in losses.by_rule]
    caption = SAYS[f"{kind}-caption"].format(train=setting["lengths"][0])
    return figure(f"longer-{kind}", caption, SAYS["axis-keys"], SAYS["axis-loss"], lines, log="x")


def _lookup_figure(pairs: list[tuple[TrialOutcome, TrialOutcome]]) -> Figure:
    lengths = sorted(one.length for one in pairs[0][0].by_length)
    lines = []
    for rule, outcomes in zip(RULES, zip(*pairs, strict=True), strict=True):
        rows = list(zip(*map(_at_lengths, outcomes), strict=True))
        lines.append(line_over_seeds(SAYS[f"rule-{rule}"], lengths, rows))
    return figure("longer-lookup", SAYS["lookup-caption"], SAYS["axis-keys"], SAYS["axis-loss"], lines, log="x")


def _study(study: LengthStudy) -> Figure:
    lengths = tuple(float(row.length) for row in study.rows)
    lines = []
    for rule in ("constant", *study.rows[0].changes):
        spread = [row.constant if rule == "constant" else row.under(rule) for row in study.rows]
        y, low, high = zip(*((mean, mean - margin, mean + margin) for mean, margin in spread), strict=True)
        lines.append(Line(SAYS[f"rule-{rule}"], lengths, y, low, high))
    caption = SAYS["study-caption"].format(train=study.trained)
    return figure("longer-gpt", caption, SAYS["axis-context"], SAYS["axis-bytes"], lines, log="x")


def _recorded(of_lookup: list[float], study: LengthStudy) -> tuple[Text, ...]:
    share, low, high = study.regained("log-n", study.rows[-1])
    told = {"share": percent(share, 0), "low": percent(low, 0), "high": percent(high, 0)}
    told = {name: text.replace("-", "−") for name, text in told.items()}
    first = SAYS["sentence-lookup"].format(share=percent(interval(of_lookup).mean, 0))
    return first, SAYS["sentence-study"].format(longest=study.rows[-1].length, seeds=study.seeds, **told)


def _numbers(
    setting: Setting, shares: dict[str, list[float]], of_lookup: list[float], study: LengthStudy
) -> dict[str, object]:
    means = {kind: interval(share).mean for kind, share in shares.items()}
    return {
        "times": setting["lengths"][-1] // setting["lengths"][0],
        **{kind: percent(mean, 0).replace("-", "−") for kind, mean in means.items()},
        "lookup": percent(interval(of_lookup).mean, 0),
        "gpt": percent(study.regained("log-n", study.rows[-1])[0], 0).replace("-", "−"),
        "highest": percent(max(study.regained("log-n", row)[0] for row in study.rows[1:]), 0),
    }


CLAIM = SAYS.claim(
    id="longer-than-trained",
    sources=(),
    expected="conditional",
    experiment=experiment,
    quick={
        "lengths": (16, 32, 64, 128, 256),
        "apart": (64, 0.0),
        "crowded": (8, 0.3),
        "noisy": (8, 1.0),
        "width": 32,
        "values": 8,
        "steps": 80,
        "batch": 32,
        "rate": 1e-2,
        "rows": 128,
        "seeds": 5,
    },
    full={"lengths": (16, 32, 64, 128, 256, 512, 1024), "rows": 512, "seeds": 10},
)
