import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.models import Cache, Decoder, build
from isotherm.scale import ATLAS

from .small import POST, SHAPE, ids

TOKENS = ids(2, 7)


@pytest.mark.parametrize("name", ATLAS)
def test_every_rule_of_the_atlas_runs_or_is_refused(name):
    if ATLAS[name].example is None:
        with pytest.raises(ArgumentError, match=f"{name} acts outside it"):
            build("decoder", SHAPE, name)
        return
    torch.manual_seed(0)
    model = build("decoder", SHAPE, ATLAS[name].example)
    logits = model(TOKENS)
    assert logits.shape == (2, 7, 13)
    logits.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    changed = TOKENS.clone()
    changed[:, 4] = changed[:, 4] % 12 + 1
    torch.testing.assert_close(model(changed)[:, :4], logits[:, :4], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("shape", [SHAPE, POST], ids=["pre", "post"])
@torch.no_grad()
def test_decoding_with_a_cache_is_decoding_without(shape, positions):
    model = Decoder(shape, positions=positions).double()
    assert ("embedding.table" in dict(model.named_parameters())) is (positions == "learned")
    cache = Cache()
    parts = [model(part, cache) for part in TOKENS.split([4, 1, 2], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(TOKENS), atol=1e-12, rtol=1e-12)
    assert cache.length == 7


def test_generate_writes_the_likeliest_token_each_time():
    torch.manual_seed(3)
    model = Decoder(SHAPE)
    written = model.generate(TOKENS, tokens=5)
    assert torch.equal(written[:, :7], TOKENS)
    for place in range(7, 12):
        assert torch.equal(model(written[:, :place])[:, -1].argmax(-1), written[:, place])


def test_generate_draws_from_the_softmax_at_a_temperature():
    torch.manual_seed(3)
    model = Decoder(SHAPE)
    prompt = TOKENS[:1].repeat(4001, 1)
    drawn = model.generate(prompt, tokens=1, temperature=2.0, generator=torch.Generator().manual_seed(1))[:, -1]
    want = (model(TOKENS[:1])[0, -1] / 2).softmax(-1)
    torch.testing.assert_close(drawn.bincount(minlength=13) / 4001, want, atol=0.03, rtol=0)


def test_a_cold_draw_is_the_likeliest_token():
    model = Decoder(SHAPE)
    assert torch.equal(model.generate(TOKENS, tokens=3, temperature=1e-5), model.generate(TOKENS, tokens=3))
