"""Translation before the Transformer: two recurrent networks with attention between them, the score of your choice.

Attention was born here (Bahdanau et al. 2015), additive; Luong et al. 2015 replaced its small network by a dot product,
and Vaswani et al. 2017 found why the plain dot product falls behind at larger d_k, and divided by √d_k.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.models.attention import kernels
from isotherm.models.cache import Cache
from isotherm.models.embedding import Embedding
from isotherm.models.layers import xavier
from isotherm.models.shape import Shape
from isotherm.ops import Additive, Dot, Multiplicative, Score
from isotherm.scale import InverseSqrt, NoScale

ScoreKind = Literal["additive", "multiplicative", "dot", "scaled-dot"]


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014): parameters and numbers of `nn.GRU`, in operations that vmap knows.

    r, z = σ(W·x + U·h + b);  n = tanh(W·x + b + r∘(U·h + c));  h ← (1 − z)∘n + z∘h
    """

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.input = xavier(width, 3 * units)
        self.state = xavier(units, 3 * units)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """One step: x [B, 3·units], already projected, and the state h [B, units]."""
        of_x, of_h = x.chunk(3, -1), self.state(h).chunk(3, -1)
        reset, update = (torch.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
        new = torch.tanh(of_x[2] + reset * of_h[2])
        return new + update * (h - new)

    def forward(self, x: Tensor, h: Tensor, words: Tensor | None = None, *, backwards: bool = False) -> Tensor:
        """The states [B, T, units] after each of x [B, T, width]; where `words` [B, T] is false the state stands still."""
        projected, order = self.input(x), range(x.shape[1])
        states = []
        for t in reversed(order) if backwards else order:
            new = self.step(projected[:, t], h)
            h = new if words is None else torch.where(words[:, t, None], new, h)
            states.append(h)
        return torch.stack(states[::-1] if backwards else states, 1)


class RecurrentTranslator(nn.Module):
    """A GRU reads the source (in both directions), another writes the target and looks back at the source at every step.

    Global attention as in Luong et al. 2015 without input feeding: the context c of a decoder state s is found after the
    step, and tanh(W·[c; s]) gives the logits. So all steps attend together. One GRU each way: `shape.heads`, `layers` and
    `hidden` have no part here. `units` = `shape.head_dim`, or the width:

    - additive: ⟨v, tanh(W₁h + W₂s)⟩ with `units` hidden units;
    - multiplicative: ⟨W₁h, W₂s⟩ in `units` dimensions, not scaled;
    - scaled-dot: the same, times 1/√units;
    - dot: ⟨h, s⟩ of the states themselves, in `width` dimensions, not scaled.
    """

    def __init__(self, shape: Shape, score: ScoreKind = "scaled-dot", *, bidirectional: bool = True) -> None:
        super().__init__()
        self.shape, self.bidirectional = shape, bidirectional
        width, units = shape.width, shape.head_dim or shape.width
        if bidirectional and width % 2:
            raise ArgumentError(
                "width", Text("an even number, half for each direction", "偶数（两个方向各一半）"), got=width
            )
        self.each = width // 2 if bidirectional else width
        self.embedding = Embedding(shape, None)
        self.reader = GRU(width, self.each)
        self.back_reader = GRU(width, self.each) if bidirectional else None
        self.bridge = xavier(width, width)
        self.writer = GRU(width, width)
        self.score = make_score(score, width, units)
        self.value = nn.Identity() if score == "dot" else xavier(width, units)
        self.combine = xavier(width + (width if score == "dot" else units), width)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [B, T, V] of the token that follows each target token, given the source."""
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """The states [B, S, W] after each source token, those of both directions side by side."""
        x, words = self.embedding(source), source != self.shape.pad
        start = torch.zeros_like(x[:, 0, : self.each])
        states = [self.reader(x, start, words)]
        if self.back_reader is not None:
            states.append(self.back_reader(x, start, words, backwards=True))
        return torch.cat(states, -1)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits [B, T, V]. With a cache, `target` holds only the tokens that come after those already decoded."""
        kept = None if cache is None else cache.kept.get(self.writer)
        states = self.writer(self.embedding(target), self._start(memory) if kept is None else kept[0])
        if cache is not None:
            cache.kept[self.writer] = (states[:, -1],)
            cache.length += target.shape[1]
        words = (source != self.shape.pad)[:, None, None, :]
        states = states.to(memory.dtype)
        with kernels():
            context = self.score(states, memory, self.value(memory), mask=words).output.squeeze(1)
        return self.embedding.logits(torch.tanh(self.combine(torch.cat([context, states], -1))))

    def _start(self, memory: Tensor) -> Tensor:
        """The writer's first state, from each reader's last: at the end of the source, and at its beginning."""
        last = torch.cat([memory[:, -1, : self.each], memory[:, 0, self.each :]], -1)
        return torch.tanh(self.bridge(last))


def make_score(kind: ScoreKind, width: int, units: int) -> Score:
    """The score of that name between states of `width` dimensions."""
    if kind == "additive":
        score: Score = Additive(width, width, units)
    elif kind == "dot":
        score = Dot(NoScale())
    elif kind in ("multiplicative", "scaled-dot"):
        score = Multiplicative(width, width, units, NoScale() if kind == "multiplicative" else InverseSqrt())
    else:
        names = ", ".join(get_args(ScoreKind))
        raise ArgumentError("score", Text("one of {names}", "{names} 之一").format(names=names), got=repr(kind))
    for weight in score.parameters():
        nn.init.xavier_uniform_(weight)
    return score
