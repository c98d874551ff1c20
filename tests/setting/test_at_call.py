"""Rules with a number for each query: the true position and the true number of keys, at each step of decoding too."""

from math import log

import pytest
import torch
import torch.nn.functional as F

import isotherm
from isotherm.errors import ArgumentError, InputError
from isotherm.models import Attention as OurAttention
from isotherm.models import Shape
from tests.checkup.models import Attention, Model
from tests.checkup.models import batch as rows
from tests.setting.architectures import batch, build, output

pytest.importorskip("transformers")
RULES = ["log-n:3", "ssmax:0.5", "llama-4:2,0.5", "ministral-3:3,0.4*x1.5"]


def captured(model, given):
    with isotherm.probe.probe(model) as seen, torch.no_grad():
        model(**given)
    return seen.captures


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["Llama", "DeepseekV3", "Mistral"])
def test_decoding_with_a_cache_equals_decoding_without(name, implementation):
    model = build(name)
    model.set_attn_implementation(implementation)
    ids = batch(model)["input_ids"]
    before = output(model, {"input_ids": ids})
    for rule in RULES:
        past, steps = None, []
        with isotherm.apply(model, rule):
            whole = output(model, {"input_ids": ids})
            for token in ids.split([4, *[1] * (ids.shape[1] - 4)], 1):
                with torch.no_grad():
                    result = model(token, past_key_values=past, use_cache=True)
                past = result.past_key_values
                steps.append(result.last_hidden_state)
        assert torch.allclose(torch.cat(steps, 1), whole, atol=2e-5), rule
        assert not torch.allclose(whole, before, atol=1e-2), rule
    assert torch.equal(output(model, {"input_ids": ids}), before)


@pytest.mark.parametrize("name", ["GPTJ", "Bloom", "Gemma2", "Falcon"])
def test_hand_written_attention_decodes_alike(name):
    model = build(name)
    ids = batch(model)["input_ids"]
    with isotherm.apply(model, "log-n:2*x0.8"), torch.no_grad():
        whole = output(model, {"input_ids": ids})
        first = model(ids[:, :7], use_cache=True)
        rest = model(ids[:, 7:], past_key_values=first.past_key_values, use_cache=True)
    assert torch.allclose(torch.cat([first.last_hidden_state, rest.last_hidden_state], 1), whole, atol=2e-5)


@pytest.mark.parametrize("name", ["Bart", "T5"])
@torch.no_grad()
def test_attention_to_an_encoder_decodes_alike(name):
    """Its queries see all of the encoder, so where they stand is known from the decoder's cache alone."""
    model = build(name)
    given = batch(model)
    ids = given.pop("decoder_input_ids")
    for rule in RULES:
        with isotherm.apply(model, rule):
            whole = model(**given, decoder_input_ids=ids).last_hidden_state
            past, encoded, steps = None, None, []
            for token in ids.split([3, 1, 2, 1], 1):
                result = model(
                    **given, decoder_input_ids=token, past_key_values=past, encoder_outputs=encoded, use_cache=True
                )
                past, encoded = result.past_key_values, (result.encoder_last_hidden_state,)
                steps.append(result.last_hidden_state)
        assert torch.allclose(torch.cat(steps, 1), whole, atol=2e-5 * float(whole.abs().max())), rule


def test_generation_under_padding_and_a_static_cache():
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=64, eos_token_id=None)
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.randint(3, 64, (2, 5))
    how = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    padded = {"input_ids": torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)}
    padded["attention_mask"] = (padded["input_ids"] != 0).long()
    with isotherm.apply(model, "log-n:2*x3"):
        with_cache = model.generate(ids, **how)
        assert torch.equal(model.generate(ids, use_cache=False, **how), with_cache)
        assert torch.equal(model.generate(ids, cache_implementation="static", **how), with_cache)
        assert torch.equal(
            model.generate(**padded, **how)[:, 3:], with_cache
        )  # padding is not visible, and does not count


def test_the_number_of_keys_is_that_of_the_window():
    model = build("Mistral")
    given = batch(model, 14)
    with isotherm.apply(model, "log-n:2"):
        ruled = captured(model, given)[0].problem.q
    plain = captured(model, given)[0].problem.q
    seen = torch.arange(1, 15).clamp(max=8).double()
    wanted = (seen.log() / log(2)).clamp(min=1).view(-1, 1)
    assert torch.allclose(ruled.double(), plain * wanted, rtol=1e-5)


def test_an_encoder_counts_every_key_and_stands_where_its_token_stands():
    model = build("Bert")
    given = batch(model, 6) | {"attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])}
    plain = captured(model, given)[0].problem.q.double()
    for rule, wanted in (
        ("log-n:2", torch.tensor([6.0, 4.0]).log().view(2, 1, 1, 1) / log(2)),
        ("llama-4:2,0.5", (1 + 0.5 * torch.tensor([0.0, 1, 1, 2, 2, 3]).log1p()).view(-1, 1)),
    ):
        with isotherm.apply(model, rule):
            ruled = captured(model, given)[0].problem.q.double()
        assert torch.allclose(ruled, plain * wanted.double(), rtol=1e-5), rule


def test_models_of_other_libraries_and_our_own():
    model = Model(Attention(), Attention(fused=False)).eval()
    reference = Model(
        Attention(scale=0.25 * log(23) / log(3)), Attention(scale=0.25 * log(23) / log(3), fused=False)
    ).eval()
    reference.load_state_dict(model.state_dict())
    with isotherm.apply(model, "log-n:3", batch=rows()):
        assert torch.allclose(model(rows()), reference(rows()), atol=1e-5)
    shape = Shape(vocabulary=8, width=32, heads=4, layers=1)
    plain, ruled = OurAttention(shape), OurAttention(shape, isotherm.scale.LogN(3) * isotherm.scale.InverseSqrt())
    ruled.load_state_dict(plain.state_dict())
    holder = torch.nn.ModuleDict({"attention": plain})
    holder.forward = lambda x: holder["attention"](x, causal=True)
    x = torch.randn(2, 9, 32)
    with isotherm.apply(holder, "log-n:3", batch=x):
        assert torch.allclose(holder(x), ruled(x, causal=True), atol=1e-6)


class KeysFirst(Attention):
    """Its logits are k·qᵀ, turned afterwards."""

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        weights = (k @ q.mT * 0.25).mT.softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


def test_a_product_with_the_keys_first_is_refused():
    model = Model(KeysFirst()).eval()
    before = model(rows())
    with pytest.raises(ArgumentError, match=r"layers\.0: no product of its q and kᵀ, in this order"):
        isotherm.apply(model, "log-n:3", batch=rows())
    assert torch.equal(model(rows()), before)
    with isotherm.apply(model, "x0.5", batch=rows()):  # this acts on the projection, whatever follows
        halved = model(rows())
    model.layers[0].q_proj.weight.data *= 0.5
    model.layers[0].q_proj.bias.data *= 0.5
    assert torch.allclose(halved, model(rows()), atol=1e-6)


def test_one_head_alone():
    model = build("Llama")
    with isotherm.apply(model, "log-n:2", heads=[1]):
        ruled = captured(model, batch(model))[0].problem.q
    ratio = (ruled / captured(model, batch(model))[0].problem.q)[0, :, -1, 0]
    assert torch.allclose(ratio, torch.tensor([1.0, log(11) / log(2), 1, 1]))


class LastQuery(torch.nn.Module):
    """The last position attends to all: four heads on two key heads, the first key hidden from two of them. Where it is packed,
    the heads of a key head are rows of the kernel's call, as when transformers 5.23 decodes."""

    packed = False

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(16, width) for width in (32, 16, 16))

    def forward(self, x):
        q = self.q_proj(x[:, -1:]).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = (p(x).unflatten(-1, (2, 8)).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        mask = torch.ones(1, 4, 1, x.shape[1], dtype=torch.bool)
        mask[:, 2:, :, 0] = False
        if self.packed:
            q, mask = q.reshape(-1, 2, 2, 8), mask.reshape(1, 2, 2, -1)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        output = F.scaled_dot_product_attention(q, k, v, mask)
        return output.reshape(x.shape[0], 4, 1, 8).transpose(1, 2).flatten(2)


@torch.no_grad()
def test_heads_that_a_call_takes_as_rows():
    torch.manual_seed(0)
    model = torch.nn.Sequential(LastQuery()).eval()
    x = torch.randn(2, 9, 16)
    before = model(x)
    with isotherm.apply(model, "log-n:3", heads=[1, 2], batch=x):
        wanted = model(x)
        model[0].packed = True
        assert torch.allclose(model(x), wanted, atol=1e-6)
    assert torch.allclose(model(x), before, atol=1e-6)
    assert not torch.allclose(wanted, before, atol=1e-3)


@torch.no_grad()
def test_compiled_code_is_left_for_the_call():
    model = Model(Attention()).eval()
    compiled = torch.compile(model, backend="eager")
    before = compiled(rows())
    with isotherm.apply(model, "log-n:3", batch=rows()):
        assert torch.equal(compiled(rows()), model(rows()))
        assert not torch.equal(compiled(rows()), before)
    assert torch.equal(compiled(rows()), before)
    torch._dynamo.reset()


def test_gradients_pass_through_it():
    model = build("Llama")
    with isotherm.apply(model, "log-n:3"):
        output_now = model(**batch(model)).last_hidden_state
        output_now.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.layers.parameters())


def test_what_cannot_act_says_so():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True).eval()
    with pytest.raises(ArgumentError, match=r"self_attn .*multi-head, takes no number for each query"):
        isotherm.apply(layer, "log-n", batch=torch.randn(2, 5, 32))
    model = build("GptOss")
    with pytest.raises(ArgumentError, match=r"layers\.0\.self_attn: no product of its q and kᵀ"):
        isotherm.apply(model, "log-n")  # its sinks are one more logit of each row
    assert type(model.layers[0].self_attn).__name__ == "GptOssAttention"
    assert "_isotherm_factors" not in vars(model.layers[0].self_attn)
    model = build("Llama4Text", attn_temperature_tuning=True, floor_scale=2, no_rope_layers=[0, 0])
    with pytest.raises(ArgumentError, match="already"):
        isotherm.apply(model, "log-n")
    model = build("Llama")
    with isotherm.apply(model, "log-n"):
        for layer in model.layers:
            layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
        with pytest.raises(InputError, match="another implementation"):
            output(model, batch(model))
