"""Which rows are measured: padding is left out for any batch, and no real row is."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import isotherm
from isotherm.checkup.measure import look
from isotherm.checkup.padding import with_padding
from isotherm.checkup.rows import measure
from isotherm.probe import probe, recognise
from tests.checkup.models import HEADS, Attention, Model, batch, trained

WIDTH = 16


class Masked(nn.Module):
    """Self-attention of two heads that takes (x, real): real [B, T] is True where a position is no padding."""

    def __init__(self, how="key", *, causal=False):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.how, self.causal = how, causal

    def forward(self, x, real):
        q, k, v = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        length = x.shape[1]
        seen = real[:, None, None].bool()
        if self.causal or self.how != "key":
            rows = torch.ones(length, length, dtype=torch.bool)
            seen = seen & (rows.tril() if self.causal else rows)
        if self.how == "by hand":
            added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + added, -1) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Encoder(nn.Module):
    """PyTorch's own module behind a mask of one's own."""

    def __init__(self, how, *, causal=False):
        super().__init__()
        self.how, self.causal = how, causal
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, dropout=0.0)
        self.inner = {
            "encoder": lambda: nn.TransformerEncoder(layer, 1),
            "layer": lambda: layer,
            "attention": lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        }[how]()

    def forward(self, x, real):
        length = x.shape[1]
        causal = torch.ones(length, length).triu(1).bool() if self.causal else None
        if self.how == "attention":
            return self.inner(x, x, x, key_padding_mask=~real, attn_mask=causal, need_weights=False)[0]
        options = {"mask": causal} if self.how == "encoder" else {"src_mask": causal}
        return self.inner(x, src_key_padding_mask=~real, **options)


def reals(lengths, side):
    longest = max(lengths)
    real = torch.arange(longest) < torch.tensor(lengths).unsqueeze(-1)
    return real if side == "right" else real.flip(1)


class Halved(Attention):
    """Attention whose logits are changed behind PyTorch's back, so that they can only be measured."""

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.mT
        scores.numpy()[:] *= self.scale
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("rows", "kept"), [(None, [0, 4, 8, 13, 17, 22]), (3, [0, 8, 22]), (6, [0, 4, 8, 13, 17, 22])])
def test_of_too_many_logits_some_rows_are_measured(rows, kept, monkeypatch):
    """The report says which, of how many, and its curve is that of these rows."""
    torch.manual_seed(0)
    plain = trained(Model(Attention(scale=0.5)))
    measured = trained(Model(Halved(scale=0.5)))
    measured.load_state_dict(plain.state_dict())
    monkeypatch.setattr(recognise, "MOST", 2 * HEADS * 23 * 6)
    with torch.no_grad():
        one, other = (
            isotherm.check(model, batch(23), what_if=["x2"], rows=n) for model, n in ((plain, None), (measured, rows))
        )
    assert other.rows[0].rows.tolist() == kept
    assert other.rows[0].total_rows == 23
    torch.testing.assert_close(other.rows[0].entropy, one.rows[0].entropy[:, :, kept], rtol=0, atol=1e-5)
    assert other.layers[0].scale.effective == pytest.approx(0.5, rel=1e-4)
    held = other.record.model
    assert (held.batch, held.tokens, held.unit) == (2, 23, "positions")
    curve = other.layers[0].curve
    assert (curve.label, curve.rows, curve.rows_total) == ("sampled", 2 * len(kept), 2 * 23)
    gates = [head.jacobian_trace.p50 for head in other.layers[0].head_stats]
    assert [head.gate[curve.factors.index(1.0)] for head in curve.heads] == pytest.approx(gates, rel=1e-4)


def rows_of(model, *given):
    """Each layer's rows that count, bool [B, H, T]."""
    return [~measure(capture).empty for capture in look(model, given).captures]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("how", ["key", "dense", "by hand", "encoder", "layer", "attention"])
@pytest.mark.parametrize("gradients", [True, False], ids=["grad", "no grad"])
@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    causal=st.booleans(),
)
def test_exactly_the_padding_is_left_out(how, gradients, lengths, side, causal):
    torch.manual_seed(0)
    model = (Masked if how in ("key", "dense", "by hand") else Encoder)(how, causal=causal).eval()
    real = reals(lengths, side)
    with torch.set_grad_enabled(gradients):
        (rows,) = rows_of(model, torch.randn(*real.shape, WIDTH), real)
    assert torch.equal(rows, real.unsqueeze(1).expand_as(rows))


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_statistics_are_those_of_the_sequences_alone(side):
    torch.manual_seed(0)
    model, lengths = Masked("dense").eval(), [9, 4, 6]
    real, x = reals(lengths, side), torch.randn(3, 9, WIDTH)
    report = isotherm.check(model, (x, real), what_if=["x1"])
    alone = [look(model, (x[i][real[i]].unsqueeze(0), torch.ones(1, n).bool())) for i, n in enumerate(lengths)]
    expected = torch.cat([measure(seen.captures[0]).entropy.flatten(1) for seen in alone], 1).mean()
    heads = report.layers[0].head_stats
    assert sum(head.entropy.mean for head in heads) / 2 == pytest.approx(float(expected), rel=1e-5)
    assert [(head.rows, head.empty) for head in heads] == [(19, 8)] * 2
    as_is, same = report.record.what_if
    assert same.layers[0].entropy_fraction == pytest.approx(as_is.layers[0].entropy_fraction, rel=1e-5)


LENGTH = 8
BLOCKS = torch.block_diag(*[torch.ones(n, n) for n in (3, 4, 1)]).bool()
FULL = torch.ones(LENGTH, LENGTH).bool()
NOT_PADDING = {
    "causal": FULL.tril(),
    "strictly causal": FULL.tril(-1),
    "prefix": FULL.tril() | (torch.arange(LENGTH) < 3),
    "window": FULL.tril() & FULL.triu(-2),
    "packed": BLOCKS,
    "packed and causal": BLOCKS & FULL.tril(),
    "not oneself": ~torch.eye(LENGTH).bool(),
    "anti-causal": FULL.triu(),
    "strictly anti-causal": FULL.triu(1),
}


@pytest.mark.parametrize("mask", NOT_PADDING.values(), ids=NOT_PADDING)
def test_other_masks_are_not_taken_for_padding(mask):
    class Fixed(Attention):
        def forward(self, x):
            q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)

    (rows,) = rows_of(Fixed(), batch(LENGTH))
    assert torch.equal(rows, mask.any(1).expand_as(rows))  # only a row that sees nothing is empty


def ragged(layout, lengths=(3, 7, 5), width=WIDTH):
    torch.manual_seed(0)
    return torch.nested.nested_tensor([torch.randn(n, width) for n in lengths], layout=layout)


class Nested(nn.Module):
    """PyTorch's kernel on nested tensors."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        def split(y):
            jagged = x.layout is torch.jagged
            return (y.unflatten(-1, (2, -1)) if jagged else y.view(x.size(0), -1, 2, 8)).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        if x.layout is not torch.jagged:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_have_no_padding(layout):
    (rows,) = rows_of(Nested(), ragged(layout))
    assert rows.sum((1, 2)).tolist() == [6, 14, 10]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_in_the_fused_encoder_layer():
    model = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        (rows,) = rows_of(model, ragged(torch.strided))
    assert rows.sum((1, 2)).tolist() == [6, 14, 10]


class TestCrossAttention:
    """Its queries are padded as those of its own block are, and never as its keys."""

    @staticmethod
    def padded(*lengths):
        return ~reals(lengths, "right")

    def rows(self, model, target, memory):
        torch.manual_seed(0)
        x = torch.randn(len(target), target.shape[1], WIDTH), torch.randn(len(memory), memory.shape[1], WIDTH)
        options = {"tgt_key_padding_mask": target, "memory_key_padding_mask": memory}
        captures = look(model, {"tgt": x[0], "memory": x[1]} | options).captures
        return {capture.kind: (~measure(capture).empty)[:, 0] for capture in captures}

    @pytest.mark.parametrize("alone", [True, False], ids=["layer", "decoder"])
    def test_of_a_decoder(self, alone):
        layer = nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True)
        target, memory = self.padded(7, 3, 5), self.padded(2, 7, 7)
        rows = self.rows((layer if alone else nn.TransformerDecoder(layer, 1)).eval(), target, memory)
        assert torch.equal(rows["self"], ~target)
        assert torch.equal(rows["cross"], ~target)

    def test_padded_keys_are_not_padded_queries(self):
        class Reader(nn.Module):
            def __init__(self):
                super().__init__()
                self.own = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
                self.other = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

            def forward(self, queries, x, hidden):
                x = self.own(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
                return self.other(queries, x, x, key_padding_mask=hidden, need_weights=False)[0]

        hidden = self.padded(7, 3)
        own, other = rows_of(Reader(), torch.randn(2, 7, WIDTH), torch.randn(2, 7, WIDTH), hidden)
        assert torch.equal(own[:, 0], ~hidden)
        assert other.all()

    def test_by_hand_where_nothing_says_whose_queries_they_are(self):
        class Hand(nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

            def forward(self, queries, x, real):
                q, k, v = self.q(queries), self.k(x), self.v(x)
                return torch.softmax((q @ k.mT).masked_fill(~real[:, None], -torch.inf), -1) @ v

        real = reals([5, 2], "right")
        (rows,) = rows_of(Hand(), torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH), real)
        assert rows.all()


class TestMasksOfTheBatch:
    """A mask that no kernel received is still the batch's own word."""

    padded = torch.ones(2, 23)
    padded[1, :5] = 0

    def empty(self, given, name="layers.0"):
        torch.manual_seed(0)
        model = Model(Attention())
        with probe(model) as seen:
            model(batch())
        (capture,) = with_padding([replace(seen.captures[0], name=name)], model, given)
        return int(measure(capture).empty.sum())

    def test_a_keyword(self):
        assert self.empty({"attention_mask": self.padded}) == 5 * HEADS

    def test_a_mask_that_is_added(self):
        assert self.empty({"attention_mask": (1 - self.padded) * -1e9}) == 5 * HEADS

    @pytest.mark.parametrize(
        ("given", "rows"),
        [
            ({"attention_mask": padded}, 5),
            ({"attention_mask": padded, "decoder_input_ids": padded.long()}, 0),
            ({"decoder_attention_mask": padded}, 5),
            ({"decoder_attention_mask": padded, "attention_mask": torch.ones(2, 23)}, 5),
        ],
    )
    def test_padding_of_the_encoder_is_not_that_of_the_decoder(self, given, rows):
        assert self.empty(given, "decoder.layers.0") == rows * HEADS

    def test_of_a_forward_that_takes_it_by_position(self):
        class Ignores(Model):
            def forward(self, x, attention_mask):
                return super().forward(x)

        report = isotherm.check(Ignores(Attention()), (batch(), self.padded), what_if=())
        assert {head.empty for head in report.layers[0].head_stats} == {5}


def small_bert(transformers, implementation="sdpa"):
    config = transformers.BertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, vocab_size=50
    )
    config._attn_implementation = implementation
    return transformers.BertModel(config).eval()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_transformers_by_position(implementation, side):
    transformers = pytest.importorskip("transformers")
    real = reals([6, 2], side)
    (rows,) = rows_of(small_bert(transformers, implementation), torch.arange(12).view(2, 6), real.long())
    assert torch.equal(rows[:, 0], real)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_causal_model_of_transformers(implementation, side):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_head=2, n_layer=2, vocab_size=50, n_positions=16)
    config._attn_implementation = implementation
    real = reals([6, 2, 1], side)
    given = {"input_ids": torch.arange(18).view(3, 6), "attention_mask": real.long()}
    for capture in look(transformers.GPT2Model(config).eval(), given).captures:
        assert torch.equal(~measure(capture).empty[:, 0], real)


def test_the_features_of_sentence_transformers():
    """Its forward takes one dict, and adds its results to it."""
    transformers = pytest.importorskip("transformers")
    sentence_transformers = pytest.importorskip("sentence_transformers")

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.auto_model = small_bert(transformers)

        def forward(self, features, **_):
            out = self.auto_model(features["input_ids"], features["attention_mask"])
            return features | {"token_embeddings": out[0]}

    model = sentence_transformers.SentenceTransformer(modules=[Words()])
    features = {"input_ids": torch.arange(12).view(2, 6), "attention_mask": reals([6, 2], "right").long()}
    report = isotherm.check(model, features)
    assert set(features) == {"input_ids", "attention_mask"}
    assert [head.rows for head in report.layers[0].head_stats] == [8, 8]
    assert [c.implementations for c in report.record.comparisons] == [("sdpa", "eager")]
    assert (report.record.model.tokens, report.record.model.batch) == (6, 2)


def test_a_dict_is_keywords_where_it_fits_and_one_argument_where_it_does_not():
    class Keywords(Model):
        def forward(self, x, scale=1.0):
            return super().forward(x) * scale

    class Whole(Model):
        def forward(self, given: dict):
            return super().forward(given["x"])

    for kind in (Keywords, Whole, lambda layer: nn.DataParallel(Whole(layer))):
        assert len(isotherm.check(kind(Attention()), {"x": batch()}, what_if=()).layers) == 1
