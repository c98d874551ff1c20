"""What PyTorch itself offers: `F.scaled_dot_product_attention`, `nn.MultiheadAttention`, `nn.Transformer` and their fused
paths, which must be seen without being left."""

import warnings
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isotherm
from isotherm.ops import blockwise
from isotherm.probe import probe
from isotherm.scale import LogN, Sinks
from tests.probe.architectures import NanoAttention, widen

WIDTH, HEADS, TOKENS = 24, 4, 7


def states(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(*(shape or (2, TOKENS, WIDTH)), generator=torch.Generator().manual_seed(seed))


def entropy(weights: Tensor) -> Tensor:
    return -torch.special.xlogy(weights, weights).double().sum(-1)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the fused functions that PyTorch calls."""
    called: list[str] = []

    def listen(name: str) -> None:
        original = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *args, **kwargs: (called.append(name), original(*args, **kwargs))[1])

    for name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
        listen(name)
    return called


def attention(**options: object) -> nn.MultiheadAttention:
    return widen(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options))  # type: ignore[return-value]


@pytest.mark.parametrize("grad", [False, True], ids=["fused", "plain"])
def test_multihead_attention(grad: bool, fused: list[str]):
    model, x = attention(), states()
    with torch.set_grad_enabled(grad):
        plain, weights = model(x, x, x, average_attn_weights=False)
        before = len(fused)
        with probe(model) as seen:
            probed, _ = model(x, x, x, average_attn_weights=False)
    assert torch.equal(plain, probed)
    assert len(fused) - before == (0 if grad else 1), "the probe changed which path was taken"
    (capture,) = seen.captures
    assert (capture.module, capture.kind, capture.implementation) == ("MultiheadAttention", "self", "multi-head")
    assert capture.problem.scale == pytest.approx(1 / sqrt(WIDTH / HEADS))
    torch.testing.assert_close(
        blockwise.statistics(capture.problem).entropy, entropy(weights.detach()), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"kdim": 10, "vdim": 12},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("mask", ["none", "bool", "float", "per-head", "padding", "both"])
def test_every_option_of_multihead_attention(options: dict[str, bool], mask: str):
    model, query = attention(**options), states(2, 5, WIDTH)
    key, value = (
        states(2, TOKENS, options.get("kdim", WIDTH), seed=3),
        states(2, TOKENS, options.get("vdim", WIDTH), seed=4),
    )
    hidden = torch.ones(5, TOKENS).triu(3).bool()
    padding = torch.tensor([[False] * 5 + [True] * 2, [False] * 7])
    masks = {
        "none": {},
        "bool": {"attn_mask": hidden},
        "float": {"attn_mask": states(5, TOKENS)},
        "per-head": {"attn_mask": hidden.expand(2 * HEADS, -1, -1)},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
    }[mask]
    plain, weights = model(query, key, value, average_attn_weights=False, **masks)
    with probe(model) as seen:
        probed, _ = model(query, key, value, average_attn_weights=False, **masks)
    assert torch.equal(plain, probed)
    assert seen.unseen == []
    (capture,) = seen.captures
    assert capture.kind == "cross"
    torch.testing.assert_close(
        blockwise.statistics(capture.problem).entropy, entropy(weights.detach()), rtol=0, atol=1e-5
    )


def test_sequence_first_and_unbatched_calls():
    model = widen(nn.MultiheadAttention(WIDTH, HEADS))
    for x in (states(TOKENS, 2, WIDTH), states(TOKENS, WIDTH)):
        _, weights = model(x, x, x, average_attn_weights=False)
        with probe(model) as seen:
            model(x, x, x, average_attn_weights=False)
        truth = entropy(weights.detach())
        measured = blockwise.statistics(seen.captures[0].problem).entropy
        torch.testing.assert_close(measured.view_as(truth), truth, rtol=0, atol=1e-5)


def test_the_function_behind_multihead_attention():
    class Pool(nn.Module):
        """As CLIP's attention pooling calls it: the function, with weights of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return F.multi_head_attention_forward(
                x[:1], x, x, WIDTH, HEADS, self.qkv.weight, self.qkv.bias, None, None, False, 0.0,
                self.out.weight, self.out.bias, need_weights=False,
            )[0]  # fmt: skip

    class Whole(Pool):
        def forward(self, x: Tensor) -> Tensor:
            return F.multi_head_attention_forward(
                x, x, x, WIDTH, HEADS, self.qkv.weight, self.qkv.bias, None, None, False, 0.0,
                self.out.weight, self.out.bias, need_weights=False,
            )[0]  # fmt: skip

    for kind, what, rows in ((Pool, "cross", 1), (Whole, "self", TOKENS)):
        model, x = widen(kind()), states(TOKENS, 2, WIDTH)
        plain = model(x)
        with probe(model) as seen:
            assert torch.equal(plain, model(x))
        (capture,) = seen.captures
        assert tuple(capture.problem.q.shape) == (2, HEADS, rows, WIDTH // HEADS)
        assert capture.kind == what


def encoder(**options: object) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return widen(nn.TransformerEncoder(layer, 2))  # type: ignore[return-value]


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("path", ["fused", "eval-with-grad", "train"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformer_encoder(norm_first: bool, padded: bool, path: str, fused: list[str]):
    model, x = encoder(norm_first=norm_first).train(path == "train"), states()
    options = {"src_key_padding_mask": torch.tensor([[False] * 5 + [True] * 2, [False] * 7])} if padded else {}
    with torch.set_grad_enabled(path != "fused"):
        plain = model(x, **options)
        before = len(fused)
        with probe(model) as seen:
            probed = model(x, **options)
    assert torch.equal(plain, probed)
    assert len(fused) - before == (2 if path == "fused" else 0), "the probe changed which path was taken"
    assert seen.unseen == []
    assert [capture.name for capture in seen.captures] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert {capture.kind for capture in seen.captures} == {"self"}
    n = blockwise.statistics(seen.captures[1].problem).n
    assert n[0, 0, 0] == (5 if padded else 7)
    # The same layer by hand, on the same input as the second layer had.
    first = seen.captures[0].problem
    layer = model.layers[0]
    hidden = layer.norm1(x) if norm_first else x
    q = F.linear(hidden, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, -1)[0]
    real = slice(0, 5) if padded else slice(None)
    wanted = q.unflatten(-1, (HEADS, -1)).transpose(1, 2).detach()
    torch.testing.assert_close(first.q[:, :, real], wanted[:, :, real])


def test_both_paths_of_an_encoder_show_the_same():
    model, x = encoder(), states()
    entropies = []
    for grad in (False, True):
        with torch.set_grad_enabled(grad), probe(model) as seen:
            model(x)
        entropies.append([blockwise.statistics(capture.problem).entropy for capture in seen.captures])
    for one, other in zip(*entropies, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_transformer_with_cross_attention_and_a_causal_mask():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = widen(nn.Transformer(WIDTH, HEADS, 1, 2, 32, dropout=0.0, batch_first=True))
    source, target = states(), states(2, 5, WIDTH, seed=3)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    plain = model(source, target, tgt_mask=causal, tgt_is_causal=True)
    with probe(model) as seen:
        assert torch.equal(plain, model(source, target, tgt_mask=causal, tgt_is_causal=True))
    kinds = [(capture.name, capture.kind) for capture in seen.captures]
    assert kinds == [
        ("encoder.layers.0.self_attn", "self"),
        ("decoder.layers.0.self_attn", "self"),
        ("decoder.layers.0.multihead_attn", "cross"),
        ("decoder.layers.1.self_attn", "self"),
        ("decoder.layers.1.multihead_attn", "cross"),
    ]
    assert blockwise.statistics(seen.captures[1].problem).n[0, 0].tolist() == [1, 2, 3, 4, 5]


def test_an_encoder_layer_with_its_own_attention_is_seen_as_it_is():
    class Own(nn.TransformerEncoderLayer):
        def _sa_block(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
            q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, scale=0.25).transpose(1, 2).flatten(2)

    model, x = widen(Own(WIDTH, HEADS, 32, batch_first=True)), states()
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(plain, model(x))
    assert [(capture.implementation, capture.passed) for capture in seen.captures] == [("sdpa", 0.25)]


class Sdpa(NanoAttention):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        return self.merge(F.scaled_dot_product_attention(q, k, v, **self.options))


def logits_of(capture: object) -> Tensor:
    from isotherm.ops import reference

    return reference.logits(capture.problem).masked_fill(~capture.problem.visibility.matrix(), -torch.inf)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.7},
        {"is_causal": True},
        {"attn_mask": torch.ones(TOKENS, TOKENS).tril().bool()},
        {"attn_mask": torch.ones(4, TOKENS, TOKENS).tril(2).bool()},
        {"attn_mask": torch.randn(2, 1, TOKENS, TOKENS)},
        {"attn_mask": torch.zeros(TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf)},
    ],
    ids=["plain", "scale", "causal", "bool", "bool-per-head", "bias", "minus-infinity"],
)
def test_sdpa(options: dict[str, object]):
    model, x = widen(Sdpa(**options)), states(2, TOKENS, 32)
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(plain, model(x))
    assert seen.unseen == []
    (capture,) = seen.captures
    assert capture.passed == options.get("scale")
    v = model.qkv(x)[2]
    out = model.merge(logits_of(capture).softmax(-1) @ v)
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-5)


def test_sdpa_on_three_dimensions_takes_the_heads_from_the_module():
    class Flat(NanoAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.flatten(0, 1) for part in self.qkv(x))
            return self.merge(F.scaled_dot_product_attention(q, k, v).unflatten(0, (-1, self.heads)))

    model, x = widen(Flat()), states(2, TOKENS, 32)
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(plain, model(x))
    (capture,) = seen.captures
    assert tuple(capture.problem.q.shape) == (2, 4, TOKENS, 8)
    assert (capture.q_factor.kind, capture.q_factor.source) == ("constant", "attn")


def test_grouped_queries_in_sdpa():
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
            k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.kv(x).chunk(2, -1))
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    model = widen(Grouped())
    with probe(model) as seen:
        model(states(2, TOKENS, 32))
    (capture,) = seen.captures
    assert (capture.problem.q.shape[1], capture.problem.k.shape[1]) == (4, 2)
    assert (capture.q_factor.source, capture.k_factor.source) == ("q", "kv")


@pytest.mark.parametrize("impl", ["auto", "blockwise", "reference", "sdpa"])
def test_isotherms_own_attention(impl: str):
    class Ours(NanoAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x)
            return self.merge(isotherm.attention(q, k, v, scale=0.4, causal=True, impl=impl).output)

    model, x = widen(Ours()), states(2, TOKENS, 32)
    plain = model(x)
    with probe(model) as seen:
        assert torch.equal(plain, model(x))
    (capture,) = seen.captures
    assert (capture.implementation, capture.passed, capture.q_factor.value) == ("isotherm", 0.4, pytest.approx(1.0))
    assert blockwise.statistics(capture.problem).n[0, 0].tolist() == list(range(1, TOKENS + 1))


def test_isotherms_own_rules_are_seen_through():
    class Ours(NanoAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x)
            rule = LogN(2) * Sinks(torch.tensor([0.1, 0.2, 0.3, 0.4]))
            return self.merge(isotherm.attention(q, k, v, scale=rule, causal=True).output)

    model = widen(Ours())
    with probe(model) as seen:
        model(states(2, TOKENS, 32))
    (capture,) = seen.captures
    assert capture.q_factor.kind == "per-query"
    torch.testing.assert_close(capture.sink, torch.tensor([0.1, 0.2, 0.3, 0.4]))


LENGTHS = (5, 3)
PROTOTYPE = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def nested(seed: int, *, heads: int | None = None, lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    shapes = [(n, WIDTH) if heads is None else (heads, n, WIDTH // heads) for n in lengths]
    return torch.nested.nested_tensor([torch.randn(shape, generator=g) for shape in shapes])


@PROTOTYPE
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("keys", [LENGTHS, (2, 6)], ids=["same", "other"])
def test_sdpa_on_sequences_of_different_lengths(scale: float | None, keys: tuple[int, ...]):
    class Nested(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k, scale=scale)

    q, k = nested(0, heads=HEADS), nested(1, heads=HEADS, lengths=keys)
    with torch.no_grad(), probe(model := Nested()) as seen:
        model(q, k)
    assert seen.unseen == []
    (capture,) = seen.captures
    assert capture.passed == scale
    stats = blockwise.statistics(capture.problem)
    for at, (rows, count) in enumerate(zip(LENGTHS, keys, strict=True)):
        logits = q[at] @ k[at].mT * (scale or (WIDTH // HEADS) ** -0.5)
        truth = entropy(logits.softmax(-1))
        torch.testing.assert_close(stats.entropy[at, :, :rows], truth, rtol=0, atol=1e-5)
        assert stats.n[at, :, :rows].unique().tolist() == [count]
        assert capture.padded[at].tolist() == [False] * rows + [True] * (max(LENGTHS) - rows)


@PROTOTYPE
def test_multihead_attention_on_sequences_of_different_lengths():
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), nested(0)
    with torch.inference_mode(), probe(model) as seen:
        model(x, x, x, need_weights=False)
    (capture,) = seen.captures
    stats = blockwise.statistics(capture.problem)
    for at, rows in enumerate(LENGTHS):
        _, weights = model(*[x[at].unsqueeze(0)] * 3, average_attn_weights=False)
        torch.testing.assert_close(stats.entropy[at, :, :rows], entropy(weights.detach())[0], rtol=0, atol=1e-5)
    assert (~capture.padded).sum(1).tolist() == [*LENGTHS]


@pytest.mark.parametrize("hidden", [None, torch.tensor([False, True, False, False, False, True, True])])
def test_the_function_behind_multihead_attention_without_a_batch(hidden: Tensor | None):
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            _, self.kept = F.multi_head_attention_forward(
                x, x, x, WIDTH, HEADS, self.qkv.weight, self.qkv.bias, None, None, False, 0.0,
                self.out.weight, self.out.bias, key_padding_mask=hidden, average_attn_weights=False,
            )  # fmt: skip
            return self.kept

    with probe(model := widen(Alone())) as seen:
        model(states(7, WIDTH))
    (capture,) = seen.captures
    stats = blockwise.statistics(capture.problem)
    torch.testing.assert_close(stats.entropy[0], entropy(model.kept.detach()), rtol=0, atol=1e-5)
