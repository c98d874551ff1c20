import math
from dataclasses import replace

import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.models import Cache, RecurrentTranslator, Transformer
from isotherm.models.embedding import sinusoids

from .small import POST, SHAPE, ids

TRANSLATORS = {
    "pre": lambda: Transformer(SHAPE),
    "post": lambda: Transformer(POST),
    **{score: (lambda score=score: RecurrentTranslator(SHAPE, score)) for score in ("additive", "multiplicative")},
    "scaled-dot": lambda: RecurrentTranslator(SHAPE, "scaled-dot"),
    "dot, plain encoder": lambda: RecurrentTranslator(SHAPE, "dot", bidirectional=False),
}


@pytest.fixture(params=TRANSLATORS.values(), ids=TRANSLATORS.keys())
def model(request):
    torch.manual_seed(1)
    return request.param().double()


SOURCE, TARGET = ids(2, 7, seed=1, padded=3), ids(2, 5, seed=2)


@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_prediction(model):
    before = model(SOURCE, TARGET)
    for place in range(5):
        changed = TARGET.clone()
        changed[:, place] = changed[:, place] % 12 + 1
        after = model(SOURCE, changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], atol=1e-13, rtol=0)
        assert (after[:, place] - before[:, place]).abs().max() > 1e-3


@torch.no_grad()
def test_every_source_word_matters_and_padding_does_not(model):
    before = model(SOURCE, TARGET)
    wider = torch.cat([SOURCE, torch.zeros(2, 4, dtype=torch.long)], 1)
    longer = torch.cat([TARGET, torch.zeros(2, 3, dtype=torch.long)], 1)
    torch.testing.assert_close(model(wider, longer)[:, :5], before, atol=1e-13, rtol=0)
    alone = model(SOURCE[1:, :4], TARGET[1:])
    torch.testing.assert_close(alone, before[1:], atol=1e-13, rtol=0)
    for place in range(4):
        changed = SOURCE.clone()
        changed[1, place] = changed[1, place] % 12 + 1
        assert (model(changed, TARGET)[1] - before[1]).abs().max() > 1e-6


@torch.no_grad()
@pytest.mark.parametrize("pieces", [[1] * 5, [2, 3], [3, 1, 1]], ids=str)
def test_decoding_with_a_cache_is_decoding_without(model, pieces):
    memory, cache = model.encode(SOURCE), Cache()
    parts = [model.decode(part, memory, SOURCE, cache) for part in TARGET.split(pieces, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(SOURCE, TARGET), atol=1e-12, rtol=1e-12)


def test_one_matrix_serves_source_target_and_output():
    model = Transformer(SHAPE)
    assert [name for name, p in model.named_parameters() if 13 in p.shape] == ["embedding.weight"]
    model(SOURCE, TARGET).sum().backward()
    assert model.embedding.weight.grad.abs().sum(1).min() > 0


@torch.no_grad()
def test_embeddings_enter_with_unit_variance_and_give_unit_logits():
    torch.manual_seed(2)
    model = Transformer(replace(SHAPE, vocabulary=1009, width=256, heads=4, head_dim=None, longest=64))
    tokens = torch.randint(1, 1009, (4, 61))
    x = model.embedding(tokens) - model.embedding.table[:61]
    assert float(x.std()) == pytest.approx(1, rel=0.02)
    assert float(model(tokens, tokens).std()) == pytest.approx(1, rel=0.3)


def test_positions_are_the_papers():
    table = sinusoids(11, 6)
    assert table.shape == (11, 6)
    for place in (0, 1, 10):
        for pair in range(3):
            angle = place / 10000 ** (2 * pair / 6)
            assert table[place, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[place, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-6)
    assert sinusoids(3, 5).shape == (3, 5)
    assert "embedding.table" not in Transformer(SHAPE).state_dict()


def test_too_long_a_text_is_refused():
    with pytest.raises(ArgumentError, match="at most 23 tokens"):
        Transformer(SHAPE)(ids(1, 24), ids(1, 3))


def test_weights_start_as_the_paper_draws_them():
    torch.manual_seed(4)
    model = Transformer(replace(SHAPE, width=96, heads=3, hidden=192, head_dim=None))
    layer = model.decoder.layers[1]
    for weight in (
        layer.cross.inner.query.weight,
        layer.feed_forward.inner[0].weight,
        layer.feed_forward.inner[2].weight,
    ):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.98 * bound < weight.abs().max() <= bound
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))
