import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm.models import smoothed_cross_entropy, warm_up


@given(st.floats(0, 0.5), st.integers(0, 2**31 - 1))
def test_the_loss_is_the_cross_entropy_with_the_smoothed_target(smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 7, (2, 5), generator=generator)
    target[0, 0] = 3
    total, words = 0.0, 0
    for p, word in zip(logits.softmax(-1).flatten(0, 1), target.flatten().tolist(), strict=True):
        if word == 0:
            continue
        q = torch.full((7,), smoothing / 7, dtype=torch.float64)
        q[word] += 1 - smoothing
        total, words = total - float((q * p.log()).sum()), words + 1
    assert float(smoothed_cross_entropy(logits, target, smoothing=smoothing)) == pytest.approx(total / words, abs=1e-12)


def test_padding_gets_no_gradient_and_alone_gives_nothing():
    logits = torch.randn(1, 3, 7, requires_grad=True)
    smoothed_cross_entropy(logits, torch.tensor([[4, 0, 0]])).backward()
    assert logits.grad[0, 0].any()
    assert not logits.grad[0, 1:].any()
    assert smoothed_cross_entropy(logits, torch.zeros(1, 3, dtype=torch.long)) == 0


def test_without_padding_every_token_counts():
    logits, target = torch.zeros(1, 3, 7), torch.tensor([[4, 0, 0]])
    assert smoothed_cross_entropy(logits, target, pad=None) == pytest.approx(math.log(7))


def test_the_learning_rate_rises_in_a_line_and_falls_like_a_root():
    peak = warm_up(4000, width=512)
    assert peak == pytest.approx((512 * 4000) ** -0.5)
    assert warm_up(1000, width=512) == pytest.approx(peak / 4)
    assert warm_up(16000, width=512) == pytest.approx(peak / 2)
    assert warm_up(0, width=512) == warm_up(1, width=512) == pytest.approx(peak / 4000)
    assert max(range(1, 500), key=lambda step: warm_up(step, width=64, warmup=100)) == 100
    assert warm_up(7, width=64, factor=3.0) == pytest.approx(3 * warm_up(7, width=64))
