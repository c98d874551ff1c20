"""The valve: logits come back to τ, in models whose q and k are made in many ways."""

from functools import partial

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from isotherm.errors import ArgumentError
from isotherm.monitor.monitor import watch
from isotherm.monitor.valve import Valve
from tests.monitor.loops import Attention, Written, batch, build

SHAPE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
STOCK = {
    "GPT2LMHeadModel": {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 16, "vocab_size": 50, **ENDS},
    "LlamaForCausalLM": {**SHAPE, "num_key_value_heads": 2},
    "BertForMaskedLM": SHAPE,
    "GPTNeoXForCausalLM": {**SHAPE, **ENDS},
    "Phi3ForCausalLM": {**SHAPE, **ENDS, "num_key_value_heads": 2},
    "DeepseekV2ForCausalLM": {
        **SHAPE, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 16, "first_k_dense_replace": 2,
    },
}  # fmt: skip


def stock(name, **options):
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    return cls(cls.config_class(**options)).eval()  # no dropout


def steps(model, run, valve, count):
    """The largest logit of every head before each of some steps that leave the weights alone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    found = []
    with watch(model, every=1, rows=None, valve=valve, alarms=False) as monitor:
        for _ in range(count):
            run(model).backward()
            optimizer.step()
            found.append(monitor.latest.values["max_logit"])
    return np.array(found), monitor


def on_ids(model):
    ids = torch.arange(3, 15).view(1, -1)
    return model(input_ids=ids, labels=ids).loss


def on_vectors(model):
    return model(batch(0)).square().mean()


@pytest.mark.parametrize("name", STOCK)
def test_every_head_comes_back_to_tau(name):
    model = stock(name, **STOCK[name])
    before, _ = steps(model, on_ids, None, 1)
    tau = float(np.median(before))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found, monitor = steps(model, on_ids, Valve(tau), 6)
    assert found[0].max() > 1.05 * tau
    assert found[-1].max() <= tau * (1 + 1e-3)
    hot = before[0][: monitor.layers[0].heads] > tau
    first = found[1][: monitor.layers[0].heads]
    np.testing.assert_allclose(first[hot], tau, rtol=1e-4)  # the first layer's input does not change
    np.testing.assert_allclose(first[~hot], before[0][: len(hot)][~hot], rtol=1e-4)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, state[name])}
    assert changed
    assert not any(part in ("v_proj", "value", "mlp") for name in changed for part in name.split("."))
    assert {event.kind for event in monitor.events} == {"valve"}
    assert monitor.events[0].numbers["max_logit"] == pytest.approx(before[0][: len(hot)].max(), rel=1e-4)


@pytest.mark.parametrize("kind", [Attention, Written])
def test_hand_written_and_fused_layers(kind):
    model = build(kind)
    before, _ = steps(model, on_vectors, None, 1)
    tau = 0.7 * float(before.min())
    found, _ = steps(model, on_vectors, Valve(tau), 6)
    assert found[-1].max() <= tau * (1 + 1e-3)


def test_heads_with_keys_of_their_own_share_the_factor_between_q_and_k():
    model = build()
    before, _ = steps(model, on_vectors, None, 1)
    hot = int(before[0][:2].argmax())
    tau = 0.5 * float(before[0][hot])
    old = model.layers[0].qkv.weight.detach().clone().view(3, 2, 8, 16)
    steps(model, on_vectors, Valve(tau), 1)
    new = model.layers[0].qkv.weight.detach().view(3, 2, 8, 16)
    torch.testing.assert_close(new[:2, hot], old[:2, hot] * 0.5**0.5)
    torch.testing.assert_close(new[2], old[2])


def test_master_weights_are_clipped_with_the_weights_that_they_are_of():
    model = build().bfloat16()
    masters = {weight: weight.detach().float() for weight in model.parameters()}

    def run(it):
        return it(batch(0).bfloat16()).square().mean()

    before, _ = steps(model, run, None, 1)
    tau = 0.5 * float(before.min())
    steps(model, run, Valve(tau, masters), 1)
    for weight, master in masters.items():
        torch.testing.assert_close(
            weight.float(), master, rtol=1e-2, atol=0
        )  # what the optimizer copies back is no larger
    for weight, master in masters.items():
        weight.data.copy_(master)
    after, _ = steps(model, run, None, 1)
    assert after[0][:2].max() <= tau * 1.02


def test_a_single_head_is_clipped():
    model = build(heads=(1,))
    before, _ = steps(model, on_vectors, None, 1)
    found, _ = steps(model, on_vectors, Valve(0.5 * float(before.max())), 2)
    assert found[-1].max() == pytest.approx(0.5 * before.max(), rel=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_that_is_met_later_is_clipped_too(compiled):
    """Experts, which are traced in the step after the one in which they were met."""
    model, tau = build(heads=(2, 4)), 0.5
    for layer in model.layers if compiled else ():
        layer.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, every=1, rows=None, valve=Valve(tau), alarms=False) as monitor:
        for expert in (0, 0, 1, 1, 1, 1):
            model.layers[expert](batch(0)).square().mean().backward()
            optimizer.step()
    assert {event.kind for event in monitor.events} == {"valve"}
    assert {event.layer for event in monitor.events} == {0, 1}
    assert monitor.latest.values["max_logit"][2:].max() <= tau * (1 + 1e-3)


def test_under_qk_norm_it_says_that_it_can_do_nothing():
    model = stock("Qwen3ForCausalLM", **SHAPE, num_key_value_heads=2, head_dim=8)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.warns(RuntimeWarning, match="QK-norm sets the length of q again"):
        _, monitor = steps(model, on_ids, Valve(1e-3), 2)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [event.kind for event in monitor.events] == ["trouble", "trouble"]


def test_negative_largest_logits_are_left_alone():
    model = build()
    with torch.no_grad():
        for layer in model.layers:
            width = layer.qkv.weight.shape[1]
            layer.qkv.weight[width : 2 * width] = -layer.qkv.weight[:width]
            layer.qkv.bias[: 2 * width] = 0
    before, _ = steps(model, on_vectors, None, 1)
    found, monitor = steps(model, on_vectors, Valve(1e3), 2)
    np.testing.assert_array_equal(found[1], before[0])
    assert np.isfinite(found).all()
    assert monitor.events == []


def test_layers_without_attention_are_no_concern_of_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), Attention(), nn.Linear(16, 16), nn.ReLU(), Attention(heads=4))
    before, _ = steps(model, on_vectors, None, 1)
    tau = 0.5 * float(before.max())
    found, _ = steps(model, on_vectors, Valve(tau), 5)
    assert found[-1].max() <= tau * (1 + 1e-3)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf")])
def test_tau_is_a_positive_number(tau):
    with pytest.raises(ArgumentError, match="tau"):
        Valve(tau)


def test_a_layer_that_is_used_twice_is_clipped_once():
    model = build(heads=(2,))
    model.layers.append(model.layers[0])
    before, monitor = steps(model, on_vectors, None, 1)
    assert [layer.name for layer in monitor.layers] == ["layers.0", "layers.0#2"]
    tau = 0.5 * float(before.min())
    old = model.layers[0].qkv.weight.detach().clone().view(3, 2, 8, 16)
    _, monitor = steps(model, on_vectors, Valve(tau), 1)
    factor = (tau / before[0].reshape(2, 2).max(0)) ** 0.5
    torch.testing.assert_close(
        model.layers[0].qkv.weight.detach().view(3, 2, 8, 16)[:2], old[:2] * torch.tensor(factor).view(1, 2, 1, 1)
    )
    assert [event.numbers["heads"] for event in monitor.events] == [2]


class Reaching(Attention):
    """Reads the weights of a module that is wrapped, and calls none."""

    def forward(self, x):
        b, t, w = x.shape
        inner = next(part for part in self.qkv.modules() if isinstance(part, nn.Linear))
        made = nn.functional.linear(x, inner.weight, inner.bias)
        q, k, v = made.view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(b, t, w))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # which the compiler asks for
@pytest.mark.parametrize("wrap", [checkpoint_wrapper, partial(torch.compile, backend="eager")])
def test_weights_inside_of_wrappers_are_found(wrap):
    model = build(Reaching)
    for layer in model.layers:
        layer.qkv = wrap(layer.qkv)
    found, _ = steps(model, on_vectors, Valve(0.05), 4)
    assert found[0].max() > 0.5
    np.testing.assert_allclose(found[-1].max(), 0.05, rtol=1e-3)
