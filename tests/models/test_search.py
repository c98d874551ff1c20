"""Greedy and beam search against one another, against decoding without a cache, and against every possible sentence."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from isotherm.models import RecurrentTranslator, Shape, Transformer, beam, greedy

START, END = 1, 2
TINY = Shape(vocabulary=5, width=8, heads=2, layers=1, longest=16)
MODELS = {
    "transformer": Transformer,
    "recurrent": RecurrentTranslator,
}


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def kind(request):
    return request.param


def made(kind, seed: int, heat: float = 3.0, shape: Shape = TINY):
    """A random model with opinions: logits `heat` times as large."""
    torch.manual_seed(seed)
    model = kind(shape).double()
    logits = model.embedding.logits
    model.embedding.logits = lambda x: heat * logits(x)
    return model


def sources(rows: int, shape: Shape = TINY) -> Tensor:
    made = torch.randint(3, shape.vocabulary, (rows, 6), generator=torch.Generator().manual_seed(rows))
    made[-1, 4:] = 0
    return made


@torch.no_grad()
def log_probability(model, source: Tensor, sentence: tuple[int, ...]) -> float:
    target = torch.tensor([[START, *sentence[:-1]]])
    steps = model(source, target).log_softmax(-1)[0]
    return float(sum(steps[place, word] for place, word in enumerate(sentence)))


def every_sentence(longest: int):
    """All that end with END within `longest`, and those cut off there."""
    words = [word for word in range(TINY.vocabulary) if word != END]
    for length in range(longest):
        for sentence in product(words, repeat=length):
            yield (*sentence, END)
    yield from product(words, repeat=longest)


def trimmed(ids: Tensor) -> tuple[int, ...]:
    found = ids.tolist()
    return tuple(found[: found.index(END) + 1]) if END in found else tuple(found)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_wide_enough_finds_the_best_of_all_sentences(kind, seed, alpha):
    model, source, longest = made(kind, seed), sources(2), 3
    got = beam(model, source, start=START, end=END, longest=longest, width=5**3, length_penalty=alpha)
    for row in range(2):
        scored = {
            sentence: log_probability(model, source[row : row + 1], sentence) / ((5 + len(sentence)) / 6) ** alpha
            for sentence in every_sentence(longest)
        }
        assert trimmed(got[row]) == max(scored, key=scored.get)


class Scripted:
    """Ends at once with probability 0.4, else writes a 3 and then ends with probability 0.6."""

    shape = TINY
    steps = ({END: 0.4, 3: 0.6}, {END: 0.6, 4: 0.4}, {END: 1.0})

    def encode(self, source: Tensor) -> Tensor:
        return torch.zeros(len(source), 1, 1)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, cache) -> Tensor:
        p = torch.tensor([self.steps[cache.length].get(word, 0.0) for word in range(TINY.vocabulary)])
        cache.length += 1
        return p.log().expand(len(target), 1, -1)


@pytest.mark.parametrize(("alpha", "want"), [(0.0, [END, 0, 0]), (1.0, [3, END, 0])], ids=["none", "penalty"])
def test_the_length_penalty_decides_between_short_and_long(alpha, want):
    """ln 0.4 > ln 0.36, but ln 0.4 < ln 0.36/(7/6)."""
    got = beam(Scripted(), sources(1), start=START, end=END, longest=3, width=3, length_penalty=alpha)
    assert got.tolist() == [want]


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(kind, seed):
    shape = replace(TINY, vocabulary=11)
    model, source = made(kind, seed, shape=shape), sources(5, shape)
    want = greedy(model, source, start=START, end=END, longest=9)
    assert torch.equal(beam(model, source, start=START, end=END, longest=9, width=1), want)


@torch.no_grad()
def test_greedy_is_the_likeliest_token_without_a_cache(kind):
    shape = replace(TINY, vocabulary=11)
    model, source = made(kind, 1, shape=shape), sources(5, shape)
    written = greedy(model, source, start=START, end=END, longest=9)
    assert written.shape[1] <= 9
    for row in range(5):
        sentence = trimmed(written[row])
        assert not written[row, len(sentence) :].any()
        target = torch.tensor([[START, *sentence[:-1]]])
        assert tuple(model(source[row : row + 1], target)[0].argmax(-1).tolist()) == sentence


def test_every_source_is_searched_by_itself(kind):
    model, source = made(kind, 2), sources(4)
    how = {"start": START, "end": END, "longest": 7, "width": 3}
    together = beam(model, source, **how)
    for row in range(4):
        assert trimmed(together[row]) == trimmed(beam(model, source[row : row + 1], **how)[0])


def test_the_search_stops_when_all_have_ended(kind):
    model = made(kind, 0)
    logits = model.embedding.logits

    def wants_to_end(x: Tensor) -> Tensor:
        wish = torch.zeros(5, dtype=x.dtype)
        wish[END] = 1e3
        return logits(x) + wish

    model.embedding.logits = wants_to_end
    assert greedy(model, sources(3), start=START, end=END, longest=9).tolist() == [[END]] * 3
    assert beam(model, sources(3), start=START, end=END, longest=9, width=1).tolist() == [[END]] * 3


@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_write_is_nothing_written(kind, rows):
    how = {"start": START, "end": END, "longest": 0 if rows else 5}
    for ids in (
        greedy(made(kind, 0), sources(2)[:rows], **how),
        beam(made(kind, 0), sources(2)[:rows], width=3, **how),
    ):
        assert ids.shape == (rows, 0)
