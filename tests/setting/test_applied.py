"""`isotherm.apply`: the logits become what was asked for, nothing else changes, and nothing stays behind."""

import copy
import io
import threading
from math import sqrt
from typing import ClassVar

import pytest
import torch
from torch import nn

import isotherm
from isotherm.errors import ArgumentError
from tests.checkup.models import DIM, HEADS, Attention, Model
from tests.checkup.models import batch as rows
from tests.setting.architectures import batch, build, output

pytest.importorskip("transformers")
HALF = torch.tensor(0.5)


@pytest.fixture(scope="module")
def llama():
    return build("Llama")


def test_a_factor_multiplies_the_scale_in_force(llama):
    given, before = batch(llama), output(llama, batch(llama))
    with isotherm.apply(llama, "x0.5"):
        applied = output(llama, given)
    changed = copy.deepcopy(llama)
    for layer in changed.layers:
        layer.self_attn.scaling *= 0.5
    assert torch.equal(applied, output(changed, given))
    assert not torch.allclose(applied, before, atol=0.1)


def test_a_number_is_the_scale_itself(llama):
    with isotherm.apply(llama, 0.5 / sqrt(8)):
        as_number = output(llama, batch(llama))
    with isotherm.apply(llama, isotherm.scale.Relative(0.5)):
        assert torch.allclose(as_number, output(llama, batch(llama)), atol=1e-5)


def test_the_rule_in_force_changes_no_bit(llama):
    before = output(llama, batch(llama))
    with isotherm.apply(llama, "1/sqrt(d)"):
        assert torch.equal(output(llama, batch(llama)), before)
        assert type(llama.layers[0].self_attn.q_proj) is nn.Linear


def test_nothing_stays_behind(llama):
    before, state = output(llama, batch(llama)), [sorted(vars(module)) for module in llama.modules()]
    classes = [type(module) for module in llama.modules()]
    for _ in range(2):
        applied = isotherm.apply(llama, "x2")
        assert classes != [type(module) for module in llama.modules()]
        applied.remove()
        applied.remove()
    with pytest.raises(KeyError), isotherm.apply(llama, "x2"):
        raise KeyError
    assert classes == [type(module) for module in llama.modules()]
    assert state == [sorted(vars(module)) for module in llama.modules()]
    assert torch.equal(output(llama, batch(llama)), before)


def test_several_are_removed_in_any_order(llama):
    before = output(llama, batch(llama))
    half, double = isotherm.apply(llama, "x0.5"), isotherm.apply(llama, "x2")
    assert torch.equal(output(llama, batch(llama)), before)
    half.remove()
    with isotherm.apply(llama, "1/sqrt(d)"):  # a scale is that of the model as it is now
        assert torch.allclose(output(llama, batch(llama)), before, atol=1e-5)
    double.remove()
    assert torch.equal(output(llama, batch(llama)), before)


@pytest.mark.parametrize("name", ["GPT2", "Qwen3", "HunYuanDenseV1", "Olmo2", "Bloom", "DeepseekV3", "Llama4Text"])
def test_one_head_of_one_layer_is_multiplied(name):
    model, given = build(name), {}
    given = batch(model)
    seen = []
    for rule in (None, "x0.5"):
        applied = rule and isotherm.apply(model, rule, layers=0, heads=[2])
        with isotherm.probe.probe(model) as looked, torch.no_grad():
            model(**given)
        if applied:
            applied.remove()
        capture = looked.captures[0]
        keys = capture.problem.k.repeat_interleave(4 // capture.problem.k.shape[1], 1)
        seen.append(capture.problem.scale * capture.problem.q @ keys.mT)
    wanted = seen[0] * torch.tensor([1, 1, 0.5, 1]).view(-1, 1, 1)
    assert torch.allclose(seen[1], wanted, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("name", "step", "near"),
    [("Bert", 1e-5, 1e-8), ("Qwen3", 3e-3, 1e-3), ("Llama4Text", 3e-3, 1e-3)],  # norms of the latter compute in float32
)
def test_gradients_are_exact(name, step, near):
    model = build(name).double()
    factors = {"*": torch.tensor([1.0, 0.7, 1.3, 1.0], dtype=torch.float64, requires_grad=True)}
    with isotherm.apply(model, factors):
        loss = model(**batch(model)).last_hidden_state[..., 3].pow(3).sum()
        (found,) = torch.autograd.grad(loss, factors["*"])
        numeric = torch.zeros(4, dtype=torch.float64)
        for head in range(4):
            for move in (step, -step):
                with torch.no_grad():
                    factors["*"][head] += move  # the tensor may be changed in place
                    numeric[head] += output(model, batch(model))[..., 3].pow(3).sum() / (2 * move)
                    factors["*"][head] -= move
    assert torch.allclose(found, numeric, rtol=0, atol=near * float(numeric.abs().max()))


def test_a_model_trains_under_it(llama):
    model = copy.deepcopy(llama)
    parameters = [name for name, _ in model.named_parameters()]
    with isotherm.apply(model, "x0.5"):
        assert [name for name, _ in model.named_parameters()] == parameters
        model(**batch(model)).last_hidden_state.square().mean().backward()
    changed = copy.deepcopy(llama)
    for layer in changed.layers:
        layer.self_attn.scaling *= 0.5
    changed(**batch(model)).last_hidden_state.square().mean().backward()
    for one, other in zip(model.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


def test_compiled_code_notices():
    model = Model(Attention()).eval()
    compiled, before = torch.compile(model, backend="eager", fullgraph=True), model(rows())
    assert torch.equal(compiled(rows()), before)
    with isotherm.apply(compiled, "x0.5", batch=rows()):
        assert torch.equal(compiled(rows()), model(rows()))
        assert not torch.equal(compiled(rows()), before)
    assert torch.equal(compiled(rows()), before)
    torch._dynamo.reset()


@pytest.mark.parametrize("fast", [True, False])
def test_the_encoder_of_pytorch_keeps_its_fused_path(fast, monkeypatch):
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 9, 32)
    taken = []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a: taken.append(1) or fused(*a))
    grad = torch.no_grad() if fast else torch.enable_grad()
    with isotherm.apply(model, "x0.5", heads=[0, 1], batch=x), grad:
        taken.clear()
        applied = model(x)
    assert bool(taken) == fast
    with torch.no_grad():
        for one in model.layers:
            one.self_attn.in_proj_weight[:16] *= 0.5
            one.self_attn.in_proj_bias[:16] *= 0.5
    with grad:
        assert torch.equal(model(x), applied)


def test_hand_written_attention_with_a_norm():
    model = Model(Attention(fused=False, norm=True)).eval()
    changed = copy.deepcopy(model)
    changed.layers[0].scale = 0.3
    with isotherm.apply(model, 0.3, batch=rows()):
        assert torch.allclose(model(rows()), changed(rows()), atol=1e-5)


class LoneBias(Attention):
    """As BEiT: the bias of a fused projection is put together from those of q and v."""

    by: torch.Tensor | float = 1.0

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.q_bias, self.v_bias = (nn.Parameter(torch.randn(DIM)) for _ in range(2))

    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros(DIM), self.v_bias])
        fused = nn.functional.linear(x, self.qkv.weight, bias)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in fused.chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q * self.by, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("heads", [None, [1]], ids=["all heads", "one head"])
def test_a_bias_that_is_put_together_is_multiplied_with_its_weight(heads):
    model, by = Model(LoneBias(), LoneBias()).eval(), torch.ones(HEADS, 1, 1)
    by[slice(None) if heads is None else heads] = 0.5
    with isotherm.apply(model, "x0.5", heads=heads, batch=rows()):
        applied = model(rows())
    for layer in model.layers:
        layer.by = by
    torch.testing.assert_close(applied, model(rows()))


class OtherUse(Attention):
    """Its queries are used for something else, too: `use` says what for."""

    by: torch.Tensor | float = 1.0

    def __init__(self, use, **options):
        super().__init__(**options)
        self.use = use

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.use == "keys":
            k = self.k_proj(q)
        if self.use == "a gate":
            v = v * q.sigmoid()
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (q, k, v))
        if self.fused:
            out = nn.functional.scaled_dot_product_attention(q * self.by, k, v)
        else:
            out = torch.softmax(q * self.by @ k.mT / sqrt(q.shape[-1]), -1) @ v
        if self.use == "the output":  # as in a Set Transformer
            out = out + q
        return self.o_proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("heads", [None, [1]], ids=["all heads", "one head"])
@pytest.mark.parametrize("fused", [True, False], ids=["sdpa", "hand-written"])
@pytest.mark.parametrize("use", ["the output", "a gate", "keys"])
def test_queries_with_another_use_are_multiplied_at_the_call(use, fused, heads):
    model, by = Model(OtherUse(use, fused=fused), OtherUse(use, fused=fused)).eval(), torch.ones(HEADS, 1, 1)
    by[slice(None) if heads is None else heads] = 0.5
    before = model(rows())
    with isotherm.apply(model, "x0.5", heads=heads, batch=rows()):
        applied = model(rows())
    assert torch.equal(before, model(rows()))
    for layer in model.layers:
        layer.by = by
    torch.testing.assert_close(applied, model(rows()))


@torch.no_grad()
def test_queries_with_another_use_are_noticed_in_a_compiled_model():
    model = Model(OtherUse("the output")).eval()
    compiled = torch.compile(model, backend="eager")
    compiled(rows())
    with isotherm.apply(compiled, "x0.5", batch=rows()):
        applied = compiled(rows())
    model.layers[0].by = 0.5
    torch.testing.assert_close(applied, model(rows()))
    torch._dynamo.reset()


def test_queries_with_another_use_in_the_outermost_module_are_not_multiplied_before_the_call():
    with pytest.raises(ArgumentError, match="used for something else, too"):
        isotherm.apply(OtherUse("the output").eval(), "x0.5", batch=rows())


class Serving(Model):
    """While a copy of it runs, so does it itself, as in another thread; `seen` says whether it gave what it gave before."""

    served: "tuple[Model, torch.Tensor] | None" = None
    seen: ClassVar[list[bool]] = []

    def forward(self, x):
        if self.served is not None and self is not self.served[0]:
            self.seen.append(torch.equal(self.served[0](x), self.served[1]))
        return super().forward(x)


def test_nothing_changes_before_the_rule_is_on(monkeypatch):
    model = Serving(Attention(), Attention()).eval()
    monkeypatch.setattr(Serving, "served", (model, model(rows())))
    monkeypatch.setattr(Serving, "seen", [])
    isotherm.apply(model, "x0.5", batch=rows()).remove()
    assert Serving.seen
    assert all(Serving.seen)


class TwoQueries(Attention):
    """Two softmaxes in one module, whose queries nothing makes alone: one norm serves them and the keys."""

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        out = sum(
            nn.functional.scaled_dot_product_attention(one * self.early, self.q_norm(k), v) for one in self.pair(q)
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def pair(self, q):
        return self.q_norm(q), self.q_norm(q.flip(-1))


def test_a_module_that_attends_twice_is_multiplied_once():
    model = Model(TwoQueries(norm=True)).eval()
    with isotherm.apply(model, "x0.5", batch=rows()):
        applied = model(rows())
    model.layers[0].early = 0.5
    torch.testing.assert_close(applied, model(rows()))


def test_a_module_that_attends_twice_takes_one_factor():
    with pytest.raises(ArgumentError, match=r"layers\.0"):
        isotherm.apply(Model(TwoQueries(norm=True)).eval(), {"0": "x0.5", "1": "x2"}, batch=rows())


class TurnedFirst(TwoQueries):
    """The first of two products is written as k·qᵀ, and turned afterwards."""

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        (one, other), k = self.pair(q), self.q_norm(k)
        weights = ((k @ one.mT / 4).mT.softmax(-1), (other @ k.mT / 4).softmax(-1))
        return self.o_proj((sum(weights) @ v).transpose(1, 2).flatten(2))


def test_a_module_is_refused_if_one_of_its_products_cannot_be_multiplied():
    with pytest.raises(ArgumentError, match="nothing in the call can be multiplied"):
        isotherm.apply(Model(TurnedFirst(norm=True)).eval(), "x0.5", batch=rows())


class TwoSoftmaxes(Attention):
    """Differential attention."""

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        one, other = (
            (a @ b.mT / sqrt(a.shape[-1])).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
        )
        return self.o_proj(((one - 0.3 * other) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("heads", [None, [1]], ids=["all heads", "one head"])
def test_a_call_of_two_softmaxes_is_refused_in_a_sentence(heads):
    with pytest.raises(ArgumentError, match="nothing in the call can be multiplied"):
        isotherm.apply(Model(TwoSoftmaxes()).eval(), "x0.5", heads=heads, batch=rows())


class QuantLinear(nn.Linear):
    """A projection that gives a second thing beside its output, as I-BERT's do."""

    def forward(self, x):
        return super().forward(x), None


class Pairs(Attention):
    def forward(self, x):
        projected = (self.q_proj(x)[0], self.k_proj(x), self.v_proj(x))
        q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in projected)
        return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("heads", [None, [1]])
def test_a_projection_may_give_more_than_its_output(heads):
    model = Model(Pairs()).eval()
    model.layers[0].q_proj = QuantLinear(64, 64)
    changed = copy.deepcopy(model)
    of_heads = slice(None) if heads is None else slice(16, 32)
    changed.layers[0].q_proj.weight.data[of_heads] *= 0.5
    changed.layers[0].q_proj.bias.data[of_heads] *= 0.5
    with isotherm.apply(model, "x0.5", heads=heads, batch=rows()):
        assert torch.allclose(model(rows()), changed(rows()), atol=1e-6)


def test_a_copy_keeps_it_and_other_threads_see_it(llama):
    model, outputs = copy.deepcopy(llama), []
    with isotherm.apply(model, "x0.5"):
        copied = copy.deepcopy(model)
        thread = threading.Thread(target=lambda: outputs.append(output(model, batch(model))))
        thread.start()
        thread.join()
        here = output(model, batch(model))
    assert torch.equal(outputs[0], here)
    assert torch.equal(output(copied, batch(model)), here)


def test_a_pickled_copy_keeps_it(llama):
    with isotherm.apply(llama, "x0.5", heads=[1]):
        here, file = output(llama, batch(llama)), io.BytesIO()
        torch.save(llama, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
    assert torch.equal(output(loaded, batch(llama)), here)


def test_check_sees_the_new_scale(llama):
    with isotherm.apply(llama, "x0.5"):
        report = isotherm.check(llama, batch(llama), what_if=(), compare=False)
    assert report.layers[0].scale.effective == pytest.approx(0.5 / sqrt(8))


def test_layers_that_share_a_projection_take_one_factor():
    model = build("Albert")
    with isotherm.apply(model, {"*": HALF}):
        whole = output(model, batch(model))
    with isotherm.apply(model, "x0.5"):
        assert torch.equal(output(model, batch(model)), whole)
    with pytest.raises(ArgumentError, match=r"layers: expected one factor for .* that share"):
        isotherm.apply(model, "x0.5", layers=1)


@pytest.mark.parametrize(
    ("rule", "where", "message"),
    [
        ("x0.5", {"layers": "layers.7"}, r"layers: expected .*layers\.0\.self_attn, layers\.1.* got 'layers\.7'"),
        ("x0.5", {"layers": []}, "layers: expected at least one layer"),
        ("x0.5", {"heads": [4]}, r"heads: expected heads from 0 to 3 in layers\.0\.self_attn, got \[4\]"),
        ("x0.5", {"heads": []}, "heads: expected heads from 0 to 3"),
        ("softcap:50", {}, "rule: expected a rule that only multiplies"),
        ("qk-norm", {}, "rule: expected a rule that only multiplies"),
        ("per-dim", {}, None),
        ("no-such-rule", {}, "rule: expected a rule of the atlas"),
        (True, {}, "rule: expected a rule, a number"),
        ({}, {}, "rule: expected at least one layer"),
        ({"*": torch.ones(3)}, {}, "rule: expected one number, or 4 for the heads"),
        ({"*": torch.ones(4, dtype=torch.long)}, {}, "rule: expected a floating-point tensor"),
        ("x0.5", {"batch": torch.full((1, 4), 999)}, "batch: expected an input that the model runs on, got IndexError"),
        ({"*": HALF}, {"layers": 0}, "layers: expected none beside a mapping"),
    ],
)
def test_bad_input_is_one_clear_error(llama, rule, where, message):
    classes = [type(module) for module in llama.modules()]
    if message is None:
        isotherm.apply(llama, rule, **where).remove()  # untrained, it is 1/√d
    else:
        with pytest.raises(ArgumentError, match=message):
            isotherm.apply(llama, rule, **where)
    assert classes == [type(module) for module in llama.modules()]


def test_what_cannot_be_reached_is_refused_by_name():
    model = build("XLNet")
    with pytest.raises(ArgumentError, match=r"layer\.0\.rel_attn"):
        isotherm.apply(model, "x0.5")
    with pytest.raises(ArgumentError, match=r"a factor such as x0\.5 for layer\.0\.rel_attn"):
        isotherm.apply(model, "1/sqrt(d)")
    with pytest.raises(ArgumentError, match="no attention ran"):
        isotherm.apply(nn.Linear(3, 3), "x0.5", batch=torch.randn(2, 3))
    with pytest.warns(DeprecationWarning, match="deprecated"):
        traced = torch.jit.trace(Model(Attention()).eval(), rows())
    with pytest.raises(ArgumentError, match=r"layers\.0\.q_proj is scripted code"):
        isotherm.apply(traced, "x0.5", batch=rows())
    assert all("isotherm" not in str(type(module)) for module in model.modules())
