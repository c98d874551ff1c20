"""How well a model has learned: its loss on held-out examples, the gates of its attention, and scores of its translations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from isotherm.checkup.measure import look
from isotherm.checkup.rows import measure
from isotherm.models.search import Translator, beam
from isotherm.train.batches import Batch, Ragged
from isotherm.train.feeds import Feed
from isotherm.train.learner import Learner
from isotherm.train.tokens import END, PAD, START
from isotherm.train.vocabulary import Vocabulary, missing

TOGETHER = 64  # sentences translated at once
LOOKED_AT = 8  # examples whose attention is measured


@dataclass(frozen=True)
class Gates:
    """Over all heads and rows of a few held-out examples: how open the softmax is, and its largest logit."""

    p50: float
    p10: float
    max_logit: float


def held_out_loss(learner: Learner, feed: Feed, most: int) -> tuple[float, float]:
    """The mean loss per held-out token and the share of tokens predicted right. The processes share the batches."""
    processes = learner.processes
    sums = torch.zeros(3, dtype=torch.float64)
    for place, batch in enumerate(feed.held_out(most)):
        if place % processes.world == processes.rank:
            loss, right = learner.measure(batch)
            sums += torch.tensor([loss.item() * batch.tokens, right.item(), batch.tokens], dtype=torch.float64)
    lost, hit, tokens = processes.total(sums).tolist()
    return lost / tokens, hit / tokens


@torch.no_grad()
def gates(model: nn.Module, batch: Batch, device: torch.device) -> Gates | None:
    """The gates on a few examples, seen by a probe; None for a model without softmax rows."""
    batch = _few(batch).to(device)
    model.eval()
    captures = look(model, batch.inputs).captures
    if not captures:
        return None
    stats = [measure(capture) for capture in captures]
    rows = torch.cat([one.jacobian_trace[one.n > 1].flatten() for one in stats]).double().cpu()
    logits = torch.stack([one.max_logit[one.n > 0].max() for one in stats])
    rows = rows[rows.isfinite()]
    if not len(rows):
        return None
    p10, p50 = rows.quantile(torch.tensor([0.1, 0.5], dtype=torch.float64)).tolist()
    return Gates(p50, p10, logits.max().item())


def _few(batch: Batch) -> Batch:
    """The first examples without padding; the first ones of all where each has some."""
    whole = torch.stack([(tensor != PAD).all(1) for tensor in batch.inputs]).all(0)
    rows = (whole if bool(whole.any()) else torch.ones_like(whole)).nonzero().flatten()[:LOOKED_AT]
    return Batch(tuple(tensor[rows] for tensor in batch.inputs), batch.labels[rows])


@torch.no_grad()
def translate(model: nn.Module, vocabulary: Vocabulary, sentences: Sequence[str], *, width: int) -> list[str]:
    """Each sentence's translation by beam search. Sentences must fit the model (`Shape.longest`)."""
    reader = cast(Translator, model.eval())
    device = next(model.parameters()).device
    rows = [[*ids, END] for ids in vocabulary.encode(sentences)]
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    found = [""] * len(rows)
    for start in range(0, len(order), TOGETHER):
        together = order[start : start + TOGETHER]
        source = Ragged([rows[index] for index in together]).rows(torch.arange(len(together))).to(device)
        longest = min(2 * source.shape[1] + 10, reader.shape.longest)
        ids = beam(reader, source, start=START, end=END, longest=longest, width=width)
        for index, text in zip(together, vocabulary.decode([_words(row) for row in ids]), strict=True):
            found[index] = text
    return found


def _words(row: Tensor) -> list[int]:
    ids: list[int] = row.tolist()
    return ids[: ids.index(END)] if END in ids else ids


@dataclass(frozen=True)
class TranslationScores:
    """BLEU and chrF of a system's translations, 0 to 100, with sacrebleu's signatures so that others can compare."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def score(outputs: Sequence[str], references: Sequence[str], lang: str) -> TranslationScores:
    """By sacrebleu: Chinese is cut into characters (`zh`), other languages into words (`13a`)."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise missing("sacrebleu") from error
    bleu, chrf = BLEU(tokenize="zh" if lang.lower().startswith("zh") else "13a"), CHRF()
    found = [metric.corpus_score(list(outputs), [list(references)]).score for metric in (bleu, chrf)]
    return TranslationScores(found[0], found[1], str(bleu.get_signature()), str(chrf.get_signature()))
