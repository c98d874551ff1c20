"""A tiny GPT that has learned to copy, and held-out text for it: quick to train, and its loss depends on the scale."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from isotherm.checkup.loading.loaded import Loaded
from isotherm.models import Decoder, Shape
from isotherm.tuning.documents import Material, TextReader

WORDS, HALF = 24, 12


def sequences(count: int, seed: int) -> torch.Tensor:
    """Random words, then the same words again: [count, 2·HALF]."""
    drawn = torch.randint(1, WORDS, (count, HALF), generator=torch.Generator().manual_seed(seed))
    return torch.cat([drawn, drawn], 1)


@functools.cache
def trained_weights(steps: int = 220) -> dict[str, torch.Tensor]:
    """The weights after a few seconds of training, from a fixed seed."""
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        model = Decoder(SHAPE)
        optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 4e-3 * min(1.0, (step + 1) / 40)
            ids = sequences(32, 1000 + step)
            logits = model(ids[:, :-1])[:, HALF - 1 :]
            loss = F.cross_entropy(logits.transpose(1, 2), ids[:, HALF:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


SHAPE = Shape(vocabulary=WORDS, width=32, heads=2, layers=2, longest=2 * HALF)


def copier(*, layers: float = 1.0, first: float = 1.0) -> Decoder:
    """The trained model, with the scale of all layers and of the first one multiplied."""
    model = Decoder(SHAPE)
    model.load_state_dict(trained_weights())
    rules = [module for module in model.modules() if type(module).__name__ == "LayerRule"]
    for place, rule in enumerate(rules):
        rule.number *= layers * (first if place == 0 else 1.0)
    return model.eval()


def loaded(model: nn.Module) -> Loaded:
    return Loaded(model, "copier", "python")


def words(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def material(count: int = 96, seed: int = 7) -> Material:
    """Held-out sequences, one a line."""
    lines = [" ".join(map(str, row)) for row in sequences(count, seed).tolist()]
    return Material("held-out", "\n".join(lines), TextReader(words, mask=0), "lines")
