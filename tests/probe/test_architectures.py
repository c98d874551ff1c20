"""Stock models: every attention layer is seen, nothing it computes changes, and what is seen is what it did."""

from typing import Any

import pytest
import torch
from torch import Tensor

from isotherm.ops import blockwise
from isotherm.probe import Capture, Seen, probe
from isotherm.stats import RowStats
from tests.probe.architectures import BATCH, TOKENS, TRANSFORMERS, build

pytest.importorskip("transformers")

EAGER = list(TRANSFORMERS)
BOTH = [
    (name, attention)
    for name, architecture in TRANSFORMERS.items()
    for attention in ("eager", "sdpa")
    if attention == "eager" or not (architecture.eager_only or architecture.written)
]


@pytest.fixture(autouse=True)
def quiet():
    import transformers

    transformers.logging.set_verbosity_error()


def run(model: Any, batch: dict[str, Any]) -> tuple[Any, Seen]:
    with torch.no_grad(), probe(model) as seen:
        result = model(**batch)
    return result, seen


def tensors(result: Any) -> list[Tensor]:
    """Every tensor of a model's output, whatever it is nested in."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        return [tensor for value in result.values() for tensor in tensors(value)]
    return [tensor for value in result for tensor in tensors(value)] if isinstance(result, (list, tuple)) else []


def measured(capture: Capture) -> RowStats:
    stats = blockwise.statistics(capture.problem)
    return stats if capture.sink is None else stats.with_sink(capture.sink.view(-1, 1))


def entropy_of(weights: Tensor, *, sink: bool) -> Tensor:
    """Of weights [B, H, T, S] as a model returns them; what a sink took is missing from them."""
    p = weights.double()
    if sink:
        p = torch.cat([p, 1 - p.sum(-1, keepdim=True)], -1)
    return -torch.special.xlogy(p, p).sum(-1)


def returned(name: str, result: Any) -> list[Tensor]:
    """The weights a model returned, in the order of its calls."""
    parts = []
    for path in TRANSFORMERS[name].weights:
        part = result
        for step in path.split("."):
            part = getattr(part, step)
        parts.append(list(part))
    if TRANSFORMERS[name].cross:
        own, decoder, cross = parts
        return own + [weights for pair in zip(decoder, cross, strict=True) for weights in pair]
    return [weights for part in parts for weights in part]


@pytest.mark.parametrize(("name", "attention"), BOTH, ids=[f"{name}-{attention}" for name, attention in BOTH])
def test_every_layer_is_seen_and_no_bit_changes(name: str, attention: str):
    model, batch = build(name, attention)
    with torch.no_grad():
        plain = model(**batch)
    result, seen = run(model, batch)
    expected = TRANSFORMERS[name]
    assert all(map(torch.equal, tensors(plain), tensors(result)))
    assert tensors(plain)
    assert seen.unseen == []
    assert len(seen.captures) == expected.calls
    assert sum(capture.kind == "cross" for capture in seen.captures) == expected.cross
    modules = dict(model.named_modules())
    for capture in seen.captures:
        assert type(modules[capture.name]).__name__ == capture.module
        if expected.written:
            assert capture.implementation == "hand-written"
        else:
            falcon = name.startswith("falcon")
            assert capture.implementation == ("hand-written" if falcon and attention == "eager" else attention)


@pytest.mark.parametrize(("name", "attention"), BOTH, ids=[f"{name}-{attention}" for name, attention in BOTH])
def test_the_scale_between_projections_and_logits(name: str, attention: str):
    model, batch = build(name, attention)
    _, seen = run(model, batch)
    expected = TRANSFORMERS[name]
    for index, capture in enumerate(seen.captures):
        q, k = capture.q_factor, capture.k_factor
        assert (q.kind, k.kind) == (expected.q, expected.k)
        if expected.scale is not None:
            want = expected.scale[index] if isinstance(expected.scale, tuple) else expected.scale
            assert q.value is not None
            assert k.value is not None
            assert capture.problem.scale * q.value * k.value == pytest.approx(want, rel=1e-5)
        for factor in (q, k):
            if factor.kind != "untraced":
                assert factor.source is not None
                assert factor.source.startswith(capture.name)
                assert factor.after_norm is None or factor.after_norm == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("name", EAGER)
def test_a_replay_has_the_entropy_of_the_models_own_weights(name: str):
    """The decisive one: statistics from a capture alone against the weights the model returns."""
    model, batch = build(name)
    result, seen = run(model, {**batch, "output_attentions": True})
    weights = returned(name, result)
    chosen = TRANSFORMERS[name].returned or range(len(seen.captures))
    for capture, truth in zip([seen.captures[index] for index in chosen], weights, strict=True):
        stats = measured(capture)
        assert truth.shape[:3] == stats.entropy.shape
        torch.testing.assert_close(stats.entropy, entropy_of(truth, sink=capture.sink is not None), rtol=0, atol=1e-4)
        torch.testing.assert_close(stats.top1, truth.double().amax(-1), rtol=0, atol=1e-5)
        assert stats.entropy_fraction.nanmean() < 0.995, "too flat to tell one scale from another"


PADDED = [
    "llama",
    "mistral",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt-oss",
    "bert",
    "bloom",
    "gptj",
    "mpt",
    "falcon",
    "opt",
    "llama4",
]


@pytest.mark.parametrize("name", PADDED)
def test_left_padding(name: str):
    model, batch = build(name)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
    mask[0, :3] = 0
    batch = {**batch, "attention_mask": mask}
    with torch.no_grad():
        plain = model(**batch)
    result, seen = run(model, {**batch, "output_attentions": True})
    assert torch.equal(tensors(plain)[0], tensors(result)[0])
    assert len(seen.captures) == 2
    assert seen.unseen == []
    for capture, truth in zip(seen.captures, returned(name, result), strict=True):
        stats = measured(capture)
        entropy = entropy_of(truth, sink=capture.sink is not None)
        real = ~stats.empty
        assert real[:, :, 3:].all()
        assert stats.n[0, 0, -1] <= TOKENS - 3
        torch.testing.assert_close(stats.entropy[real], entropy[real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bert", "falcon", "t5"])
def test_eager_and_sdpa_look_the_same(name: str):
    entropies = []
    for attention in ("eager", "sdpa"):
        model, batch = build(name, attention)
        _, seen = run(model, batch)
        entropies.append([measured(capture).entropy for capture in seen.captures])
    for one, other in zip(*entropies, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_keys_of_grouped_queries_are_not_repeated():
    model, batch = build("llama")
    _, seen = run(model, batch)
    assert {(c.problem.q.shape[1], c.problem.k.shape[1]) for c in seen.captures} == {(4, 2)}


def test_layers_share_one_mask():
    for name in ("llama", "gptj", "bloom"):
        model, batch = build(name)
        _, seen = run(model, batch)
        masks = [capture.problem.visibility.mask for capture in seen.captures]
        assert masks[0] is not None
        assert len({mask.data_ptr() for mask in masks}) == 1, name


def test_sliding_window_limits_the_visible_keys():
    model, batch = build("mistral", "sdpa")
    _, seen = run(model, batch)
    assert [measured(capture).n.max().item() for capture in seen.captures] == [3, 3]


def test_soft_cap_and_sinks_are_kept():
    model, batch = build("gemma2")
    _, seen = run(model, batch)
    assert {capture.problem.softcap for capture in seen.captures} == {50.0}
    model, batch = build("gpt-oss")
    _, seen = run(model, batch)
    for layer, capture in zip(model.model.layers, seen.captures, strict=True):
        assert torch.equal(capture.sink, layer.self_attn.sinks)


def test_sdpa_without_a_mask_is_causal():
    model, batch = build("llama", "sdpa")
    _, seen = run(model, batch)
    for capture in seen.captures:
        assert capture.problem.visibility.mask is None
        assert measured(capture).n[0, 0].tolist() == list(range(1, TOKENS + 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_seen_with_its_scale(dtype: torch.dtype):
    for name in ("llama", "opt", "qwen3", "gptj"):
        model, batch = build(name)
        _, seen = run(model.to(dtype), batch)
        assert len(seen.captures) == 2
        assert seen.unseen == []
        for capture in seen.captures:
            assert capture.q_factor.kind == TRANSFORMERS[name].q
            if capture.q_factor.value is not None:
                effective = capture.problem.scale * capture.q_factor.value * capture.k_factor.value
                assert effective == pytest.approx(8**-0.5, rel=5e-3)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "opt", "deepseek-v3", "falcon", "t5", "whisper"])
def test_generation_with_a_cache(name: str, attention: str):
    """Decoding sees one query and all the keys so far; that is still self-attention, and its scale is still found."""
    model, batch = build(name, attention)
    if name in ("t5", "whisper"):
        import transformers

        kind = {"t5": transformers.T5ForConditionalGeneration, "whisper": transformers.WhisperForConditionalGeneration}
        torch.manual_seed(0)
        model = kind[name](model.config).eval()
        batch.pop("decoder_input_ids")
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    plain = model.generate(**batch, **options)
    with probe(model) as seen:
        again = model.generate(**batch, **options)
    assert torch.equal(plain, again)
    assert seen.unseen == []
    shapes = [(c.kind, c.problem.q.shape[2], c.problem.k.shape[2]) for c in seen.captures]
    if name not in ("t5", "whisper"):
        steps = [(TOKENS, TOKENS), (1, TOKENS + 1), (1, TOKENS + 2)]
        if name == "mistral":
            steps = [(TOKENS, TOKENS), (1, 3), (1, 3)]
        assert shapes == [("self", *step) for step in steps for _ in range(2)]
    else:
        decoder = [shape for shape in shapes if shape[1] == 1]
        assert [kind for kind, _, _ in decoder] == ["self", "cross"] * (len(decoder) // 2)
    for capture in seen.captures:
        assert capture.q_factor.kind == "constant"
        if capture.problem.q.shape[2] > 1:
            assert capture.k_factor.kind == "constant"
        if capture.k_factor.value is not None:
            effective = capture.problem.scale * capture.q_factor.value * capture.k_factor.value
            assert effective == pytest.approx(TRANSFORMERS[name].scale, rel=1e-4)


def test_a_static_cache_that_fills_up_does_not_change_earlier_captures():
    model, batch = build("llama", "sdpa")
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    with probe(model) as dynamic:
        model.generate(**batch, **options)
    with probe(model) as static:
        model.generate(**batch, **options, cache_implementation="static")
    assert static.unseen == []
    assert len(static.captures) == len(dynamic.captures)
    for one, other in zip(dynamic.captures, static.captures, strict=True):
        torch.testing.assert_close(measured(one).entropy, measured(other).entropy, rtol=0, atol=1e-5)
    assert len({capture.problem.k.data_ptr() for capture in static.captures}) == len(static.captures)
