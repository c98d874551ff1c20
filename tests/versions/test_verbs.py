"""What a user calls, in words that any supported version of PyTorch and transformers knows. `make test-oldest` and
`make test-newest` run these tests with the versions at both ends; `make test` with those of constraints.txt."""

import json

import pytest
import torch
import torch.nn.functional as F
import transformers

import isotherm
from isotherm.cli import run
from tests.monitor.loops import Attention, Model, build, train

pytestmark = pytest.mark.filterwarnings("default")  # what old and new versions of other libraries say of each other
TOKENS = 24
DECODER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 50,
}
MODELS = {
    "Llama": lambda how: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**DECODER, num_key_value_heads=2, attn_implementation=how)
    ),
    "GPT2": lambda how: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, attn_implementation=how)
    ),
    "Bert": lambda how: transformers.BertModel(transformers.BertConfig(**DECODER, attn_implementation=how)),
}
"""How each architecture is made, and with which implementation of attention."""
DECLARED = 8**-0.5


def stock(name, how="sdpa"):
    torch.manual_seed(0)
    return MODELS[name](how).eval()


def ids(count=TOKENS):
    return torch.randint(1, 50, (1, count), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "how"), [("Llama", "sdpa"), ("Llama", "eager"), ("GPT2", "sdpa"), ("Bert", "sdpa"), ("Bert", "eager")]
)
def test_check_sees_every_layer_of_stock_models_and_the_scale_in_force(name, how):
    model = stock(name, how)
    with torch.no_grad():
        before = model(ids())[0]
        report = isotherm.check(model, {"input_ids": ids()}, what_if=["none"])
        assert torch.equal(model(ids())[0], before)
    assert [layer.heads for layer in report.layers] == [4, 4]
    assert [layer.scale.effective for layer in report.layers] == pytest.approx([DECLARED] * 2, rel=1e-5)
    assert [one.code for one in report.findings if one.severity == "error"] == []


def test_check_measures_what_the_weights_are():
    model = stock("Bert", "eager")
    with torch.no_grad():
        report = isotherm.check(model, {"input_ids": ids()})
        weights = torch.stack(model(ids(), output_attentions=True).attentions)[:, 0].double()  # [layers, H, T, S]
    gate = (1 - weights.square().sum(-1)).mean(-1)
    found = torch.tensor([[head.jacobian_trace.mean for head in layer.head_stats] for layer in report.layers])
    assert torch.allclose(found.double(), gate, rtol=1e-5)


def test_check_on_the_command_line_loads_trained_weights(tmp_path, capsys):
    assert run(["check", "--json", "--html", str(tmp_path / "page.html")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["layers"]) == 6
    assert report["findings"] == []


@pytest.mark.parametrize("what", [{}, {"stats": True}, {"rows": 4}], ids=["plain", "statistics", "rows"])
def test_attention_compiles(what):
    torch.compiler.reset()
    q, k, v = (torch.randn(1, 2, 40, 8, requires_grad=True) for _ in range(3))
    call = torch.compile(lambda *qkv: isotherm.attention(*qkv, causal=True, **what).output, backend="aot_eager")
    output = call(q, k, v)
    assert torch.allclose(output, F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5)
    (d_q,) = torch.autograd.grad(output.sum(), q)
    assert d_q.isfinite().all()


def test_a_watched_run_is_the_same_run(tmp_path):
    plain = train(build(), 6)
    with isotherm.watch(model := build(), every=2, rows=None, store=tmp_path / "run.db") as monitor:
        watched = train(model, 6)
    assert watched == plain
    assert [layer.heads for layer in monitor.layers] == [2, 4]
    assert monitor.latest.step == 4
    assert not [one for one in monitor.events if one.kind != "alert"]


@pytest.mark.parametrize("first", ["compile", "watch"])
def test_a_watched_compiled_run_trains_as_without(first):
    def trained(monitored):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Model(Attention)
        compiled = torch.compile(model, backend="aot_eager")
        if not monitored:
            return train(compiled, 5), None
        with isotherm.watch(compiled if first == "compile" else model, every=1, rows=None) as monitor:
            return train(compiled, 5), monitor

    plain, _ = trained(False)
    watched, monitor = trained(True)
    assert watched == pytest.approx(plain, rel=1e-5)
    assert [layer.heads for layer in monitor.layers] == [2, 4]
    assert monitor.step == 5
    assert not [one for one in monitor.events if one.kind == "trouble"]


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
@torch.no_grad()
def test_a_rule_acts_and_leaves(name):
    model = stock(name)
    before = model(ids())[0]
    with isotherm.apply(model, "log-n:3"):
        whole = model(ids())[0]
        start = model(ids()[:, :10], use_cache=True)
        rest = model(ids()[:, 10:], past_key_values=start.past_key_values, use_cache=True)
    assert not torch.allclose(whole, before, atol=1e-4)
    assert torch.allclose(torch.cat([start[0], rest[0]], 1), whole, atol=1e-5)
    assert torch.equal(model(ids())[0], before)


@torch.no_grad()
def test_a_written_folder_gives_what_apply_gives(tmp_path):
    model = stock("Llama")
    model.save_pretrained(tmp_path / "model")
    with isotherm.apply(model, "x0.5"):
        wanted = model(ids())[0]
    isotherm.write(tmp_path / "model", "x0.5", out=tmp_path / "softer")
    softer = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "softer").eval()
    assert torch.allclose(softer(ids())[0], wanted, atol=1e-5)


def test_the_trainer_is_watched(tmp_path):
    pytest.importorskip("accelerate")
    model = stock("GPT2").train()
    rows = [{"input_ids": ids()[0], "labels": ids()[0]} for _ in range(8)]
    about = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True, logging_steps=1
    )
    trainer = transformers.Trainer(model, about, train_dataset=rows)
    trainer.add_callback(isotherm.monitor.trainer_callback(trainer, every=1, store=tmp_path / "run.db"))
    trainer.train()
    record = isotherm.monitor.store.read(tmp_path / "run.db")
    assert [reading.step for reading in record.readings] == [0, 1, 2]
    assert all(reading.loss is not None for reading in record.readings)
