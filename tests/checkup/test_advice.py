"""Advice is taken literally, in every layout of projections: the spread is then at its target, and the finding is gone."""

import json
import re
import threading
from math import log
from statistics import median
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isotherm
from isotherm.checkup.changes import Slice, slices
from isotherm.record import CheckRecord, from_plain, to_plain
from tests.checkup.models import DIM, HEADS, Attention, Model, batch, trained
from tests.probe.architectures import build

D = DIM // HEADS
QUICK = {"what_if": (), "compare": False}


def heads_of(x, heads=HEADS):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Attention whose subclasses make q, k and v in their own way; `v` and the hot scale are kept."""

    def __init__(self, scale=20.0):
        super().__init__()
        self.kept, self.values = [scale], []  # in a list, so that no attribute is a scale

    def forward(self, x):
        q, k, v = self.qkv(x)
        self.values.append(v.detach())
        return F.scaled_dot_product_attention(q, k, v, scale=self.kept[0], enable_gqa=True).transpose(1, 2).flatten(2)


class Separate(Block):
    def __init__(self, bias=True):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=bias) for _ in range(3))

    def qkv(self, x):
        return (heads_of(p(x)) for p in (self.q, self.k, self.v))


class OtherUse(Separate):
    """The queries are used for something else, too: as in a Set Transformer they are added to the output, or they gate it, or
    the values."""

    def __init__(self, use):
        super().__init__()
        self.use = use

    def qkv(self, x):
        q, k, v = super().qkv(x)
        return (q, k, v * q.sigmoid()) if self.use == "values" else (q, k, v)

    def forward(self, x):
        output, q = super().forward(x), self.q(x)
        return output + q if self.use == "output" else output * q.sigmoid() if self.use == "gate" else output


class Fused(Block):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(DIM, 3 * DIM)

    def qkv(self, x):
        return (heads_of(part) for part in self.c_attn(x).chunk(3, -1))


class Rotated(Fused):
    """The same, with a rotation in between: q is no view of the projection."""

    def qkv(self, x):
        q, k, v = super().qkv(x)
        angle = torch.arange(x.shape[1]).view(-1, 1) * torch.linspace(1, 0.01, D // 2)
        q, k = (
            torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
            for a, b in (q.chunk(2, -1), k.chunk(2, -1))
        )
        return q, k, v


class Interleaved(Fused):
    def qkv(self, x):
        return self.c_attn(x).unflatten(-1, (HEADS, 3, D)).transpose(1, 2).unbind(3)


class Strided(Fused):
    """Einops' (d h qkv): a head's features are far apart."""

    def qkv(self, x):
        return self.c_attn(x).unflatten(-1, (D, HEADS, 3)).permute(4, 0, 3, 1, 2).unbind(0)


class Grouped(Block):
    """Two groups of [q q k v], as in Falcon."""

    def __init__(self):
        super().__init__()
        self.query_key_value = nn.Linear(DIM, 8 * D)

    def qkv(self, x):
        y = self.query_key_value(x).unflatten(-1, (2, 4, D)).permute(0, 2, 3, 1, 4)
        return y[:, :, :2].flatten(1, 2), y[:, :, 2], y[:, :, 3]


class Functional(Block):
    """F.linear with a slice of one parameter."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(3 * DIM, DIM) / DIM**0.5), nn.Parameter(torch.randn(3 * DIM) / 5)

    def qkv(self, x):
        return (heads_of(F.linear(x, w, b)) for w, b in zip(self.w.chunk(3), self.b.chunk(3), strict=True))


class Columns(Functional):
    """The other way round: x @ w, and v first."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(self.w.detach().t().contiguous())

    def qkv(self, x):
        v, q, k = (heads_of(part) for part in (x @ self.w).chunk(3, -1))
        return q, k, v


class Einsum(Block):
    """A parameter [heads, width, dim] for each of q, k and v."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(HEADS, DIM, D) / DIM**0.5) for _ in range(3))

    def qkv(self, x):
        return (torch.einsum("bnd,hdk->bhnk", x, w) for w in (self.wq, self.wk, self.wv))


class LoneBias(Block):
    """As BEiT: the biases of q and v are parameters beside the fused weight, and k has none."""

    def __init__(self):
        super().__init__()
        self.qkv_proj = nn.Linear(DIM, 3 * DIM, bias=False)
        self.q_bias, self.v_bias = (nn.Parameter(torch.randn(DIM)) for _ in range(2))

    def qkv(self, x):
        bias = torch.cat([self.q_bias, torch.zeros(DIM), self.v_bias])
        return (heads_of(part) for part in F.linear(x, self.qkv_proj.weight, bias).chunk(3, -1))


class SharedNorm(Separate):
    """One gain for q and k: the logits depend on its square."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(D)

    def qkv(self, x):
        q, k, v = super().qkv(x)
        return self.norm(q), self.norm(k), v


class Lora(nn.Linear):
    """An adapter as peft adds it: a base layer and two narrow matrices."""

    def __init__(self, base):
        super().__init__(1, 1)
        del self.weight, self.bias
        self.base_layer, self.lora_A, self.lora_B = base, nn.Linear(DIM, 4, bias=False), nn.Linear(4, DIM, bias=False)

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B(self.lora_A(x))


class Adapted(Separate):
    def __init__(self):
        super().__init__()
        self.q = Lora(self.q)


class Normed(Separate):
    """QK-norm with a gain of one head's size, of all heads', or stored minus 1."""

    def __init__(self, norm=nn.RMSNorm, over=D):
        super().__init__()
        self.q_norm, self.k_norm, self.over = norm(over), norm(over), over

    def qkv(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.over == DIM:
            return heads_of(self.q_norm(q)), heads_of(self.k_norm(k)), heads_of(v)
        return self.q_norm(heads_of(q)), self.k_norm(heads_of(k)), heads_of(v)


class OffsetRMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim) / 5)

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


class Cosine(Separate):
    """As Swin v2: a learned temperature for each head, exponentiated and clamped."""

    def __init__(self, tau=4.5):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.full((HEADS, 1, 1), tau))

    def forward(self, x):
        q, k, v = self.qkv(x)
        self.values.append(v.detach())
        a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit_scale.clamp(max=log(100)).exp()
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Divided(Cosine):
    """A temperature that divides."""

    def __init__(self):
        super().__init__()
        del self.logit_scale
        self.temperature = nn.Parameter(torch.full((HEADS, 1, 1), 0.01))

    def forward(self, x):
        q, k, v = self.qkv(x)
        self.values.append(v.detach())
        a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT / self.temperature
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Biased(Separate):
    """A bias on the logits: their spread is not proportional to q·k."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        self.values.append(v.detach())
        near = -0.08 * (torch.arange(x.shape[1]).view(-1, 1) - torch.arange(x.shape[1])).abs()
        a = q @ k.mT * self.kept[0] + near
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Relative(Separate):
    """A bias that is made of q: it changes with it."""

    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn(HEADS, D, 23))

    def forward(self, x):
        q, k, v = self.qkv(x)
        self.values.append(v.detach())
        a = q @ k.mT * self.kept[0]
        return ((a + 9 * (q @ self.places)).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Fixed(Separate):
    """Unit vectors at a fixed scale: nothing is learned that could be changed."""

    def __init__(self):
        super().__init__()
        self.scaling = 60.0

    def forward(self, x):
        q, k, v = self.qkv(x)
        self.values.append(v.detach())
        a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.scaling
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Configured(Separate):
    """Reads its scale from a configuration when it runs."""

    def __init__(self):
        super().__init__(bias=False)
        self.config = SimpleNamespace(attention_multiplier=20.0)

    def forward(self, x):
        q, k, v = self.qkv(x)
        self.values.append(v.detach())
        return (
            F.scaled_dot_product_attention(q.sin(), k.cos(), v, scale=self.config.attention_multiplier)
            .transpose(1, 2)
            .flatten(2)
        )


LAYOUTS = {
    "separate": (Separate, "multiply layers.0.q.weight and layers.0.q.bias by"),
    "separate, no bias": (lambda: Separate(bias=False), "multiply layers.0.q.weight by"),
    "fused": (Fused, "multiply rows 0–63 of layers.0.c_attn.weight and entries 0–63 of layers.0.c_attn.bias by"),
    "fused, rotated": (
        Rotated,
        "multiply rows 0–63 of layers.0.c_attn.weight and entries 0–63 of layers.0.c_attn.bias by",
    ),
    "interleaved": (
        Interleaved,
        "multiply rows 0–15 of every 48 of layers.0.c_attn.weight and entries 0–15 of every 48 of",
    ),
    "strided": (Strided, "multiply rows 0–189 of layers.0.c_attn.weight in steps of 3 and entries 0–189 of"),
    "grouped": (
        Grouped,
        "multiply rows 0–31 of every 64 of layers.0.query_key_value.weight and entries 0–31 of every 64",
    ),
    "slice of a parameter": (Functional, "multiply rows 0–63 of layers.0.w and entries 0–63 of layers.0.b by"),
    "columns of a parameter": (Columns, "multiply columns 64–127 of layers.0.w by"),
    "einsum": (Einsum, "multiply layers.0.wq by"),
    "bias beside a fused weight": (
        LoneBias,
        "multiply rows 0–63 of layers.0.qkv_proj.weight and layers.0.q_bias by",
    ),
    "one norm for q and k": (SharedNorm, "multiply layers.0.norm.weight by"),
    "adapter": (
        Adapted,
        "multiply layers.0.q.base_layer.weight, layers.0.q.base_layer.bias and layers.0.q.lora_B.weight by",
    ),
    "QK-norm": (Normed, "multiply layers.0.q_norm.weight by"),
    "QK-norm, LayerNorm": (lambda: Normed(nn.LayerNorm), "multiply layers.0.q_norm.weight and layers.0.q_norm.bias by"),
    "QK-norm over the width": (lambda: Normed(over=DIM), "multiply layers.0.q_norm.weight by"),
    "QK-norm, gain minus 1": (lambda: Normed(OffsetRMSNorm), "multiply layers.0.q_norm.weight by"),
    "cosine": (Cosine, "add -"),
    "cosine, beyond its clamp": (lambda: Cosine(log(700.0)), "add -"),
    "temperature that divides": (Divided, "multiply layers.0.temperature by"),
    "bias": (Biased, "multiply layers.0.q.weight and layers.0.q.bias by"),
    "bias made of q": (Relative, "multiply layers.0.q.weight and layers.0.q.bias by"),
    "queries in the output": (lambda: OtherUse("output"), "multiply layers.0.k.weight and layers.0.k.bias by"),
    "queries in a gate": (lambda: OtherUse("gate"), "multiply layers.0.k.weight and layers.0.k.bias by"),
    "queries in the values": (lambda: OtherUse("values"), "multiply layers.0.k.weight and layers.0.k.bias by"),
    "fixed": (Fixed, "set layers.0.scaling to"),
    "configuration": (Configured, "set attention_multiplier = "),
}


def indices(change, size):
    """The indices that a change means, written a second time."""
    whole = range(change.start, change.stop, change.step)
    if change.block is None:
        return list(whole)
    return [start + i for start in range(0, size, change.block) for i in whole]


def take(model, changes):
    """Do what the machine-readable part says."""
    with torch.no_grad():
        for change in changes:
            owner, _, leaf = change.target.rpartition(".")
            if change.kind == "configuration":
                for module in model.modules():
                    if hasattr(module, "config"):
                        setattr(module.config, change.target, change.number)
                continue
            if change.kind == "attribute":
                setattr(model.get_submodule(owner), leaf, change.number)
                continue
            tensor = model.get_parameter(change.target)
            where = (
                ...
                if change.axis is None
                else (slice(None),) * change.axis + (indices(change, tensor.shape[change.axis]),)
            )
            old = tensor[where]
            tensor[where] = old * change.number if change.operation == "multiply" else old + change.number


def says(text, changes):
    """The sentence names every target and number of the changes, and every range."""
    for change in changes:
        assert change.target in text.en
        assert change.target in text.zh
        assert f"{change.number:.4g}" in text.en
        assert f"{change.number:.4g}" in text.zh
        assert float(f"{change.number:.4g}") == change.number
        if change.axis is not None:
            assert str(change.start) in text.en
            assert str(change.stop - 1) in text.zh


def spread(report, layer=0):
    return median(head.logit_std for head in report.layers[layer].head_stats)


@pytest.mark.parametrize(("make", "words"), LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("untrained", [True, False], ids=["untrained", "trained"])
def test_advice_taken_literally_brings_the_spread_to_its_target(make, words, untrained):
    torch.manual_seed(0)
    layer = make()
    model = Model(layer).eval() if untrained else trained(Model(layer))
    before = isotherm.check(model, batch(), **QUICK)
    advice = before.layers[0].advice
    assert advice.how.en.startswith(words)
    assert advice.changes
    says(advice.how, advice.changes)
    assert f"(tried: spread {advice.spread:.4g} → {advice.achieved:.4g})" in advice.how.en
    v = layer.values[0]
    take(model, advice.changes)
    after = isotherm.check(model, batch(), **QUICK)
    assert spread(after) == pytest.approx(advice.target, rel=0.02)
    assert spread(after) == pytest.approx(advice.achieved, rel=1e-3)
    assert after.layers[0].advice is None
    assert "frozen-at-init" not in {finding.code for finding in after.findings}
    torch.testing.assert_close(layer.values[-1], v, rtol=0, atol=0)


TORCH = {
    "MultiheadAttention": (
        "layers.0.self_attn.in_proj_weight",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, HEADS, batch_first=True), 2),
    ),
    "no bias": (
        "layers.0.self_attn.in_proj_weight",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(DIM, HEADS, batch_first=True, bias=False), 2, enable_nested_tensor=False
        ),
    ),
}


@pytest.mark.parametrize(("weight", "make"), TORCH.values(), ids=TORCH.keys())
def test_advice_on_torchs_own_modules(weight, make):
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        model.get_parameter(weight)[:DIM] *= 100
    advice = isotherm.check(model, batch(), **QUICK).layers[0].advice
    assert advice.how.en.startswith(f"multiply rows 0–63 of {weight}")
    take(model, advice.changes)
    assert spread(isotherm.check(model, batch(), **QUICK)) == pytest.approx(1.0, rel=0.02)


def test_a_multi_head_module_with_separate_weights_names_the_one_of_the_queries():
    torch.manual_seed(0)

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.norm = (
                nn.MultiheadAttention(DIM, HEADS, kdim=24, vdim=24, batch_first=True),
                nn.LayerNorm(DIM),
            )

        def forward(self, x, y):
            return self.norm(self.attn(x, y, y)[0])

    model = Cross().eval()
    with torch.no_grad():
        model.attn.q_proj_weight *= 100
    given = (batch(), torch.randn(2, 9, 24))
    advice = isotherm.check(model, given, **QUICK).layers[0].advice
    assert advice.how.en.startswith("multiply attn.q_proj_weight and entries 0–63 of attn.in_proj_bias by")
    take(model, advice.changes)
    assert spread(isotherm.check(model, given, **QUICK)) == pytest.approx(1.0, rel=0.02)


STOCK = {
    "gpt2": ("transformer.h.1.attn.c_attn.weight", "columns 0–31 of transformer.h.1.attn.c_attn.weight"),
    "gpt-neox": ("gpt_neox.layers.1.attention.query_key_value.weight", "rows 0–7 of every 24 of"),
    "bloom": ("transformer.h.1.self_attention.query_key_value.weight", "rows 0–7 of every 24 of"),
    "falcon-grouped": ("transformer.h.1.self_attention.query_key_value.weight", "rows 0–15 of every 32 of"),
    "llama": ("model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"),
    "qwen3": ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"),
    "olmo2": ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"),
    "gemma3": ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"),
    "cohere-qk-norm": ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"),
    "stablelm-qk-norm": ("model.layers.1.self_attn.q_layernorm", "model.layers.1.self_attn.q_layernorm.norms.0.weight"),
    "deepseek-v3": ("model.layers.1.self_attn.q_b_proj.weight", "model.layers.1.self_attn.q_b_proj.weight"),
    "swin-v2": ("encoder.layers.1.blocks.0.attention.self", "attention.self.logit_scale"),
    "bert": ("encoder.layer.1.attention.self.query.weight", "encoder.layer.1.attention.self.query.weight"),
    "t5": ("encoder.block.1.layer.0.SelfAttention.q.weight", "encoder.block.1.layer.0.SelfAttention.q.weight"),
}


@pytest.mark.parametrize(("planted", "words"), STOCK.values(), ids=STOCK.keys())
def test_advice_on_stock_models(request, planted, words):
    """The parameter itself is multiplied, so that the advice has something to undo."""
    model, given = build(request.node.callspec.id)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(planted):
                parameter.copy_(parameter + 4 if "logit_scale" in name else parameter * 60)
    report = isotherm.check(model, given, **QUICK)
    found = [(layer.index, layer.advice) for layer in report.layers if layer.advice and words in layer.advice.how.en]
    assert found, [layer.advice and layer.advice.how.en for layer in report.layers]
    index, advice = found[0]
    says(advice.how, advice.changes)
    take(model, advice.changes)
    after = isotherm.check(model, given, **QUICK)
    assert spread(after, index) == pytest.approx(advice.target, rel=0.02)


HOT = {
    "separate": (Separate, "multiply rows 16–31 of layers.0.q.weight and entries 16–31 of layers.0.q.bias by"),
    "fused": (Fused, "multiply rows 16–31 of layers.0.c_attn.weight and entries 16–31 of"),
    "interleaved": (Interleaved, "multiply rows 48–63 of layers.0.c_attn.weight and entries 48–63 of"),
    "strided": (Strided, "multiply rows 3–183 of layers.0.c_attn.weight in steps of 12 and"),
    "grouped": (Grouped, "multiply rows 16–31 of layers.0.query_key_value.weight and"),
    "QK-norm over the width": (lambda: Normed(over=DIM), "multiply entries 16–31 of layers.0.q_norm.weight by"),
}


@pytest.mark.parametrize(("make", "words"), HOT.values(), ids=HOT.keys())
def test_advice_for_one_head_names_its_rows(make, words):
    torch.manual_seed(0)
    layer = make()
    layer.kept[0] = D**-0.5
    model = trained(Model(layer))
    rows = [int(number) for number in re.findall(r"\d+", words)[:2]]
    step = 12 if "steps" in words else 1
    with torch.no_grad():
        hot = layer.q_norm.weight if "q_norm" in words else next(p for n, p in model.named_parameters() if n in words)
        hot[rows[0] : rows[1] + 1 : step] *= 500
    before = isotherm.check(model, batch(), **QUICK)
    (finding,) = before.findings
    assert (finding.code, finding.head) == ("logits-large", 1)
    assert words in finding.advice.en
    says(finding.advice, finding.changes)
    take(model, finding.changes)
    after = isotherm.check(model, batch(), **QUICK)
    assert after.findings == ()
    siblings = [head.max_logit for head in after.layers[0].head_stats]
    assert after.layers[0].head_stats[1].max_logit < 3 * max(siblings[:1] + siblings[2:])
    for head in (0, 2, 3):
        old, new = before.layers[0].head_stats[head], after.layers[0].head_stats[head]
        assert new.logit_std == pytest.approx(old.logit_std, rel=1e-5)


class Faint(Normed):
    """With a faint bias: what the layer needs is then no certain cure of each head."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        a = q @ k.mT * 12 + 0.01 * torch.arange(x.shape[1])
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_head_whose_gain_is_shared_is_told_that_the_others_change():
    torch.manual_seed(0)
    layer = Faint()
    model = trained(Model(layer))
    found = isotherm.check(model, batch(), **QUICK).findings
    assert len(found) > 1
    assert len({finding.advice for finding in found}) == 1  # one change for all, not one upon the other
    for finding in found:
        assert finding.advice.en.startswith(
            "q and k are normalised, so rescaling the query weights does nothing: multiply"
        )
        assert "layers.0.q_norm.weight" in finding.advice.en
        assert finding.advice.en.endswith("all heads of the layer share this and change too.")
    take(model, found[0].changes)
    assert isotherm.check(model, batch(), **QUICK).findings == ()


def test_what_the_whole_layer_needs_answers_the_findings_about_its_heads():
    torch.manual_seed(0)
    layer = Separate()
    layer.kept[0] = 60.0
    model = trained(Model(layer))
    report = isotherm.check(model, batch(), **QUICK)
    large = [finding for finding in report.findings if finding.code == "logits-large"]
    assert large
    assert all(finding.changes == report.layers[0].advice.changes for finding in large)
    take(model, large[0].changes)
    assert {finding.code for finding in isotherm.check(model, batch(), **QUICK).findings} <= {"scale-mismatch"}


class Unclamped(Cosine):
    def forward(self, x):
        q, k, v = self.qkv(x)
        a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit_scale.exp()
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_one_head_of_a_cosine_layer_has_a_temperature_of_its_own():
    torch.manual_seed(0)
    layer = Unclamped(log(20.0))
    with torch.no_grad():
        layer.logit_scale[2] = log(400.0)
    model = trained(Model(layer))
    (finding,) = isotherm.check(model, batch(), **QUICK).findings
    assert re.search(
        r"add -\d\.\d+ to index 2 of dimension 0 of layers\.0\.logit_scale \(tried: largest logit", finding.advice.en
    )
    take(model, finding.changes)
    assert isotherm.check(model, batch(), **QUICK).findings == ()


def test_many_hot_heads_of_a_layer_are_changed_and_the_others_are_not():
    torch.manual_seed(0)
    layer = Attention()
    with torch.no_grad():
        layer.q_proj.weight[: 3 * D] *= 300
    model = trained(Model(layer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isotherm.checkup.findings.HEADS_NAMED", 2)
        patch.setattr("isotherm.checkup.advised.HEADS_NAMED", 2)
        (finding,) = isotherm.check(model, batch(), **QUICK).findings
    assert "multiply rows 0–47 of layers.0.q_proj.weight and entries 0–47 of" in finding.advice.en
    take(model, finding.changes)
    assert isotherm.check(model, batch(), **QUICK).findings == ()


def test_layers_are_tried_at_once_and_each_gets_what_it_was_promised():
    torch.manual_seed(0)
    model = trained(Model(Fused(), Normed(), Separate(), Cosine()))
    layers = isotherm.check(model, batch(), **QUICK).layers
    for layer in layers:
        assert layer.advice.achieved == pytest.approx(layer.advice.target, rel=0.02)
    take(model, layers[2].advice.changes)  # its own input is as it was
    assert spread(isotherm.check(model, batch(), **QUICK), 2) == pytest.approx(layers[2].advice.achieved, rel=1e-3)


def test_a_parameter_that_layers_share_is_called_shared():
    torch.manual_seed(0)
    model = Model(Separate(), Separate(), Separate()).eval()
    model.layers[1].q = model.layers[0].q
    model.layers[2].q.weight = model.layers[0].q.weight
    first, second, third = (layer.advice for layer in isotherm.check(model, batch(), **QUICK).layers)
    assert first.how.en.endswith("; this also changes other layers that share it: 1, 2")
    assert second.how.en.endswith("; this also changes other layers that share it: 0, 2")
    assert "0, 1" in third.how.zh


class Bent(Separate):
    """q is bent after its projection: no weight scales it."""

    def qkv(self, x):
        q, k, v = super().qkv(x)
        return q.sin(), k.cos(), v


def test_where_no_weight_scales_q_another_scale_is_tried_on_what_was_captured():
    torch.manual_seed(0)
    advice = isotherm.check(Model(Bent()).eval(), batch(), **QUICK).layers[0].advice
    assert advice.changes == ()
    assert advice.how.en.startswith("pass a scale of ")
    assert "instead of 20 (tried on the captured q and k: spread " in advice.how.en
    assert advice.achieved == pytest.approx(1.0, rel=0.02)


class Steep(Biased):
    """A bias that alone freezes the softmax."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        a = q @ k.mT + torch.arange(x.shape[1]) * 9.0
        return (a.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_where_a_bias_freezes_a_head_no_advice_is_given():
    torch.manual_seed(0)
    report = isotherm.check(Model(Steep()).eval(), batch(), **QUICK)
    assert report.layers[0].advice is None
    frozen = [one for one in report.findings if one.code == "frozen-at-init"]
    assert {one.severity for one in frozen} == {"note"}
    assert "The bias that is added makes this" in frozen[0].message.en


def test_frozen_at_init_says_what_the_layer_needs():
    torch.manual_seed(0)
    for layer, words in ((Fused(), "multiply rows 0–63 of layers.0.c_attn.weight"), (Cosine(), "layers.0.logit_scale")):
        report = isotherm.check(Model(layer).eval(), batch(), **QUICK)
        frozen = [finding for finding in report.findings if finding.code == "frozen-at-init"]
        assert frozen
        assert all(words in finding.advice.en for finding in frozen)
        normalised = isinstance(layer, Cosine)
        assert all(("1/√d" in finding.advice.en) != normalised for finding in frozen)


def test_a_wrong_scale_is_set_where_the_module_keeps_it():
    torch.manual_seed(0)
    layer = Attention(scale=1.0)
    model = trained(Model(layer))
    (finding,) = isotherm.check(model, batch(), declared="1/sqrt(d)", **QUICK).findings
    assert finding.code == "scale-mismatch"
    assert "until then set layers.0.scale to 0.25 (tried: scale in force 1 → 0.25)" in finding.advice.en
    take(model, finding.changes)
    assert isotherm.check(model, batch(), **QUICK).findings == ()


def test_a_wrong_scale_in_the_code_is_tried_on_what_was_captured():
    torch.manual_seed(0)
    layer = Separate()
    layer.kept[0] = 1.0
    found = isotherm.check(trained(Model(layer)), batch(), declared="1/sqrt(d)", **QUICK).findings
    (finding,) = [finding for finding in found if finding.code == "scale-mismatch"]
    assert "until then pass a scale of 0.25 to the attention function instead of 1" in finding.advice.en
    assert finding.changes == ()


def test_a_trial_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = Model(Fused(), Cosine(), Normed()).train()
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in model.named_parameters()}
    written = {name: parameter._version for name, parameter in model.named_parameters()}
    seen, stop = [], threading.Event()

    def watch():
        while not stop.wait(0.001):
            now = [parameter for _, parameter in model.named_parameters()]
            seen.append(all(a is b for a, (b, _) in zip(now, before.values(), strict=True)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    report = isotherm.check(model, batch(), **QUICK)
    stop.set()
    watcher.join()
    assert all(layer.advice.changes for layer in report.layers)
    assert seen
    assert all(seen)
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert parameter._version == written[name]
        assert torch.equal(parameter, before[name][1])
    assert not any(module._forward_hooks for module in model.modules())


def test_a_healthy_model_is_not_run_again():
    torch.manual_seed(0)
    layer = Separate()
    layer.kept[0] = D**-0.5
    isotherm.check(trained(Model(layer)), batch(), **QUICK)
    assert len(layer.values) == 1


def test_a_model_that_cannot_be_copied_gets_what_the_captured_tensors_tell():
    torch.manual_seed(0)
    layer = Separate()
    layer.lock = threading.Lock()
    advice = isotherm.check(Model(layer).eval(), batch(), **QUICK).layers[0].advice
    assert advice.how.en.startswith("pass a scale of")
    assert advice.changes == ()


def test_an_interrupt_of_a_trial_is_passed_on():
    torch.manual_seed(0)
    model = Model(Separate()).eval()
    runs = []

    def interrupt(*_):
        runs.append(None)
        if len(runs) > 1:
            raise KeyboardInterrupt

    model.layers[0].q.register_forward_hook(interrupt)
    weight = model.layers[0].q.weight.detach().clone()
    with pytest.raises(KeyboardInterrupt):
        isotherm.check(model, batch(), **QUICK)
    assert torch.equal(model.layers[0].q.weight, weight)


def test_changes_survive_json_and_old_reports_load():
    torch.manual_seed(0)
    record = isotherm.check(Model(Interleaved()).eval(), batch(), **QUICK).record
    document = json.loads(json.dumps(to_plain(record)))
    again = from_plain(CheckRecord, document)
    assert again.layers[0].advice.changes == record.layers[0].advice.changes
    assert again.findings[0].changes == record.findings[0].changes != ()
    for advised in (document["layers"][0]["advice"], *document["findings"]):
        del advised["changes"]
    del document["layers"][0]["advice"]["achieved"]
    old = from_plain(CheckRecord, document)
    assert old.layers[0].advice.changes == ()
    assert old.layers[0].advice.achieved is None


@pytest.mark.parametrize(
    ("given", "width", "expected"),
    [
        ([3], 9, [Slice(3, 4)]),
        ([3, 4, 5], 9, [Slice(3, 6)]),
        ([0, 3, 6], 9, [Slice(0, 7, 3)]),
        ([1, 2, 5, 6, 9, 10], 12, [Slice(1, 3, 1, 4)]),
        ([1, 2, 5, 6], 12, [Slice(1, 3), Slice(5, 7)]),
        ([0, 1, 5, 6, 7], 12, [Slice(0, 2), Slice(5, 8)]),
        ([0, 1, 3, 4, 7, 8, 12, 13, 20, 21], 30, []),
    ],
)
def test_indices_as_few_slices(given, width, expected):
    assert slices(given, width) == expected
