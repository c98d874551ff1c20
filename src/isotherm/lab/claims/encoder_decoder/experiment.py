"""The original Transformer as an encoder and a decoder: it runs, it learns, and it computes what PyTorch's layers compute."""

from math import log

import torch
from torch import Tensor

from isotherm.lab import reference
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.figures import training_loss
from isotherm.lab.interval import effect_size, interval, over_seeds
from isotherm.lab.numerals import numeral, percent
from isotherm.models import Shape, Transformer
from isotherm.record import Figure, Measured
from isotherm.record.sweep import Trial, TrialOutcome
from isotherm.train.sweep import run_trials

SAYS = read_content(__file__)
AGREE = 1e-10
"""Largest difference of two float64 implementations that is only rounding."""
RIGHT = 0.9
"""Share of held-out words that must be right."""


def experiment(setting: Setting) -> Result:
    """Compare outputs and gradients with PyTorch's layers; then train several seeds to write sentences backwards."""
    pairs = [_compare(setting, seed) for seed in range(setting["seeds"])]
    outputs, gradients, leaks = (list(column) for column in zip(*pairs, strict=True))
    setting.progress(0.1)
    trained = _train(setting)
    agrees = max(outputs) < AGREE and max(gradients) < AGREE and max(leaks) == 0
    right = [outcome.accuracy or 0.0 for outcome in trained]
    learns = interval(right).low > RIGHT
    numbers = _measured(setting, trained, (outputs, gradients, leaks), agrees, learns)
    sentence = SAYS["outcome"].format(worst=numeral(max(outputs), 1), right=percent(interval(right).mean))
    return conclude(agrees and learns, sentence, numbers, [_figure(setting, trained)])


def _model(setting: Setting, seed: int) -> Transformer:
    """The paper's own form: LayerNorm comes after the sum."""
    width, heads, layers = (setting[name] for name in ("width", "heads", "layers"))
    shape = Shape(setting["vocabulary"], width, heads, layers, longest=64, norm="post")
    with torch.random.fork_rng():
        torch.manual_seed(setting.seed * 1000 + seed)
        return Transformer(shape).double()


def _compare(setting: Setting, seed: int) -> tuple[float, float, float]:
    """Largest differences of logits and of the embedding's gradient; how much a later word changes an earlier prediction."""
    model, generator = _model(setting, seed), setting.generator(seed)
    source, target = (torch.randint(3, setting["vocabulary"], (3, n), generator=generator) for n in (7, 5))
    source[1, 4:] = 0
    ours = model(source, target)
    theirs = _by_torch(model, source, target)
    weight = torch.randn(ours.shape, generator=generator, dtype=ours.dtype)
    first, second = (
        torch.autograd.grad((logits * weight).sum(), model.embedding.weight, retain_graph=True)[0]
        for logits in (ours, theirs)
    )
    later = target.clone()
    later[:, -1] = 3 + (later[:, -1] - 2) % (setting["vocabulary"] - 3)
    leak = (model(source, later)[:, :-1] - ours[:, :-1]).abs().max().item()
    return (ours - theirs).abs().max().item(), (first - second).abs().max().item(), leak


def _by_torch(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """The same embeddings through PyTorch's encoder and decoder layers."""
    padding = source == model.shape.pad
    memory = reference.encode(model.encoder, model.shape, model.embedding(source), padding)
    states = reference.decode(model.decoder, model.shape, model.embedding(target), memory, padding)
    return model.embedding.logits(states)


def _train(setting: Setting) -> list[TrialOutcome]:
    names = ("task", "width", "heads", "layers", "vocabulary", "length", "batch", "steps", "lr", "warmup")
    given = {name: setting[name] for name in names}
    trials = [Trial(model="transformer", seed=setting.seed * 1000 + seed, **given) for seed in range(setting["seeds"])]
    count = setting.counter(len(trials) * setting["steps"], done=0.1)
    return run_trials(trials, device=setting.device, progress=count)


def _measured(
    setting: Setting, trained: list[TrialOutcome], compared: tuple[list[float], ...], agrees: bool, learns: bool
) -> tuple[Measured, ...]:
    outputs, gradients, leaks = compared
    start = [outcome.held_out_start or 0.0 for outcome in trained]
    end = [outcome.held_out or 0.0 for outcome in trained]
    guess = log(setting["vocabulary"] - 3)
    return (
        over_seeds(SAYS["output-difference"], outputs, predicted=0.0, holds=agrees),
        over_seeds(SAYS["gradient-difference"], gradients, predicted=0.0, holds=agrees),
        over_seeds(SAYS["leak"], leaks, predicted=0.0, holds=agrees),
        over_seeds(SAYS["loss-before"], start, predicted=guess),
        over_seeds(SAYS["loss-after"].format(steps=setting["steps"]), end),
        over_seeds(SAYS["accuracy"], [outcome.accuracy or 0.0 for outcome in trained], holds=learns),
        Measured(SAYS["effect"], effect_size(start, end)),
    )


def _figure(setting: Setting, trained: list[TrialOutcome]) -> Figure:
    steps = [step for step, _ in trained[0].losses]
    values = [[outcome.losses[i][1] or 0.0 for outcome in trained] for i in range(len(steps))]
    guess = log(setting["vocabulary"] - 3)
    return training_loss("encoder-decoder-loss", SAYS["loss-caption"], SAYS["loss-y"], steps, values, guess, steps[-1])


CLAIM = SAYS.claim(
    id="encoder-decoder",
    sources=("003",),
    expected="confirmed",
    experiment=experiment,
    quick={
        "task": "reverse",
        "width": 32,
        "heads": 4,
        "layers": 1,
        "vocabulary": 14,
        "length": 5,
        "batch": 32,
        "steps": 160,
        "lr": 5e-3,
        "warmup": 20,
        "seeds": 5,
    },
    full={"task": "align", "width": 64, "layers": 2, "vocabulary": 34, "length": 12, "steps": 800, "seeds": 8},
)
