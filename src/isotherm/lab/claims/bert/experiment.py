"""BERT uses the Transformer's encoder: one trained BERT computed by three programs, and a small one trained from nothing."""

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from isotherm.checkup.batch import make_batch
from isotherm.checkup.load import Loaded
from isotherm.lab import minilm, reference
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.figures import training_loss
from isotherm.lab.interval import effect_size, interval, over_seeds
from isotherm.lab.numerals import numeral, percent
from isotherm.models import Bert, Shape
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
AGREE = 1e-9
"""Largest difference of float64 implementations that is only rounding, after six layers."""
RIGHT = 0.9
"""Share of hidden words that must be found."""
MASK, FIRST = 1, 3
"""The id that hides a word, and the first id of a word."""


def experiment(setting: Setting) -> Result:
    """Compare MiniLM in transformers, in our encoder and in PyTorch's; then train small models on masked words."""
    compared = _compare(setting)
    setting.progress(0.4)
    curves, right = [], []
    for seed in range(setting["seeds"]):
        losses, share = _train(setting, seed)
        curves.append(losses)
        right.append(share)
        setting.progress(0.4 + 0.6 * (seed + 1) / setting["seeds"])
    agrees = all(max(found) < AGREE for found in compared.values())
    learns = interval(right).low > RIGHT
    numbers = _measured(setting, compared, curves, right, agrees, learns)
    worst = max(max(found) for found in compared.values())
    sentence = SAYS["outcome"].format(worst=numeral(worst, 1), right=percent(interval(right).mean))
    return conclude(agrees and learns, sentence, numbers, [_figure(setting, curves)])


@torch.no_grad()
def _compare(setting: Setting) -> dict[str, list[float]]:
    """Largest difference in the last layer from transformers' BertModel, for each passage: ours, PyTorch's encoder."""
    loaded = minilm.trained()
    theirs, ours = loaded.model.double(), Bert.load(str(loaded.folder)).double()
    found: dict[str, list[float]] = {"ours": [], "torch": []}
    for passage in range(setting["passages"]):
        tokens, mask = _padded(loaded, passage, setting["tokens"])
        wanted = theirs(input_ids=tokens, attention_mask=mask).last_hidden_state
        words = mask.bool()
        plain = ours.norm(ours.tokens(tokens) + ours.positions.weight[: tokens.shape[1]] + ours.types.weight[0])
        by_torch = reference.encode(ours.stack, ours.shape, plain, ~words, activation="gelu", eps=ours.norm.eps)
        for name, states in (("ours", ours(tokens, mask)), ("torch", by_torch)):
            found[name].append((states - wanted)[words].abs().max().item())
    return found


def _padded(loaded: Loaded, passage: int, tokens: int) -> tuple[Tensor, Tensor]:
    """A passage with some padding after it."""
    ids = make_batch(loaded, minilm.PASSAGES[passage], tokens)["input_ids"]
    return F.pad(ids, (0, 5)), F.pad(torch.ones_like(ids), (0, 5))


def _train(setting: Setting, seed: int) -> tuple[list[float], float]:
    """Train on sentences that repeat their first half, with one word hidden; return the losses and the held-out accuracy."""
    shape = Shape(
        setting["vocabulary"], setting["width"], setting["heads"], setting["layers"], longest=2 * setting["length"]
    )
    with torch.random.fork_rng():
        torch.manual_seed(setting.seed * 1000 + seed)
        model = Bert(shape)
        model.initialise(setting["width"] ** -0.5)
    generator = setting.generator(seed)
    optimiser = torch.optim.Adam(model.parameters(), setting["lr"], fused=True)
    losses = []
    for step in range(setting["steps"]):
        optimiser.param_groups[0]["lr"] = setting["lr"] * min(1.0, (step + 1) / setting["warmup"])
        loss, _ = _masked(setting, model, generator, setting["batch"])
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        _, right = _masked(setting, model, generator, 256)
    return losses, right


def _masked(setting: Setting, model: Bert, generator: torch.Generator, batch: int) -> tuple[Tensor, float]:
    half = torch.randint(FIRST, setting["vocabulary"], (batch, setting["length"]), generator=generator)
    tokens = torch.cat([half, half], 1)
    place = torch.randint(0, 2 * setting["length"], (batch,), generator=generator)
    rows = torch.arange(batch)
    wanted = tokens[rows, place]
    tokens[rows, place] = MASK
    logits = model.logits(model(tokens))[rows, place]
    return F.cross_entropy(logits, wanted), (logits.argmax(-1) == wanted).double().mean().item()


def _measured(
    setting: Setting,
    compared: dict[str, list[float]],
    curves: list[list[float]],
    right: list[float],
    agrees: bool,
    learns: bool,
) -> tuple[Measured, ...]:
    start, end = [losses[0] for losses in curves], [sum(losses[-10:]) / 10 for losses in curves]
    guess = log(setting["vocabulary"] - FIRST)
    return (
        over_seeds(SAYS["difference-ours"], compared["ours"], predicted=0.0, holds=agrees),
        over_seeds(SAYS["difference-torch"], compared["torch"], predicted=0.0, holds=agrees),
        over_seeds(SAYS["loss-before"], start, predicted=guess),
        over_seeds(SAYS["loss-after"].format(steps=setting["steps"]), end),
        over_seeds(SAYS["found"], right, holds=learns),
        Measured(SAYS["effect"], effect_size(start, end)),
    )


def _figure(setting: Setting, curves: list[list[float]]) -> Figure:
    every = max(1, setting["steps"] // 40)
    steps = range(0, setting["steps"], every)
    means = [
        [sum(losses[step : step + every]) / len(losses[step : step + every]) for losses in curves] for step in steps
    ]
    guess = log(setting["vocabulary"] - FIRST)
    return training_loss("bert-loss", SAYS["loss-caption"], SAYS["loss-y"], steps, means, guess, setting["steps"])


CLAIM = SAYS.claim(
    id="bert",
    sources=("003",),
    expected="confirmed",
    experiment=experiment,
    quick={
        "passages": 3,
        "tokens": 64,
        "vocabulary": 13,
        "width": 32,
        "heads": 2,
        "layers": 1,
        "length": 4,
        "batch": 64,
        "steps": 160,
        "warmup": 20,
        "lr": 5e-3,
        "seeds": 5,
    },
    full={"passages": 6, "tokens": 128, "layers": 2, "length": 8, "vocabulary": 35, "steps": 1000, "seeds": 8},
    needs=minilm.NEEDS,
)
