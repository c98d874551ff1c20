"""What folders and files hold: one file of weights, parts of larger models, and formats that are not read."""

import json
import sys

import pytest
import torch

import isotherm
from isotherm.checkup.batch import make_batch
from isotherm.checkup.load import Loading, load
from isotherm.errors import InputError
from tests.checkup.folders import bert_folder, change_config

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture
def copy(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "bert")
    return tmp_path / "bert"


ALONE = {
    "q4.gguf": r"q4.gguf: GGUF holds weights for llama.cpp; check the model that it was converted from, or convert it back",
    "model.onnx": r"model.onnx: ONNX holds a graph without PyTorch modules; check the model that it was exported from",
    "model.pt2": r"model.pt2: an exported program has no modules to look into",
    "weights.pt": r"weights.pt: a pickle alone does not say what model it belongs to; check the folder with its config.json",
    "weights.PTH": r"weights.PTH: a pickle alone",
    "pytorch_model.bin": r"pytorch_model.bin: a pickle alone",
    "model.h5": r"model.h5: weights of another framework; convert them to PyTorch first",
}


@pytest.mark.parametrize(("name", "message"), ALONE.items(), ids=ALONE.keys())
def test_formats_that_are_not_read_say_what_to_do(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(InputError, match=message):
        load(str(tmp_path / name), Loading())
    with pytest.raises(InputError, match=message.split(":")[1]):
        load(str(tmp_path), Loading())


@pytest.mark.parametrize(("name", "message"), [("model.py", "package.module:function"), ("notes.md", "not a model")])
def test_other_files(tmp_path, name, message):
    (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=message):
        load(str(tmp_path / name), Loading())


def test_gguf_beside_a_configuration_is_named(copy):
    (copy / "model.safetensors").rename(copy / "model.gguf")
    with pytest.raises(InputError, match=r"bert: GGUF holds weights"):
        load(str(copy), Loading())


def test_one_file_of_weights(copy):
    whole = load(str(copy), Loading())
    (copy / "model.safetensors").rename(copy / "best.safetensors")
    one = load(str(copy / "best.safetensors"), Loading())
    assert one.name == "best.safetensors"
    assert one.weights.missing == one.weights.unexpected == ()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, one.model.state_dict()[name])
    assert make_batch(one, "the temperature of attention", 8)["input_ids"].shape == (1, 6)


def test_a_shard_alone_lacks_the_other_weights(copy):
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    first = {name: tensor for name, tensor in tensors.items() if "layer.1." not in name}
    save_file(first, copy / "model-00001-of-00002.safetensors", {"format": "pt"})
    missing = load(str(copy / "model-00001-of-00002.safetensors"), Loading()).weights.missing
    assert set(missing) == tensors.keys() - first.keys()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "config.json").unlink(), r"model.safetensors: needs the model's config.json beside it"),
        (lambda p: (p / "config.json").write_text("{"), r"bert/config.json: not JSON"),
        (lambda p: (p / "model.safetensors").write_bytes(b"\0" * 64), r"bert/model.safetensors: corrupt or truncated"),
    ],
    ids=["no config", "config not JSON", "garbage"],
)
def test_a_file_of_weights_that_cannot_be_loaded(copy, damage, message):
    damage(copy)
    with pytest.raises(InputError, match=message):
        load(str(copy / "model.safetensors"), Loading())


@pytest.mark.parametrize("inner", ["0_Transformer", ""], ids=["in a folder", "at the root"])
def test_a_sentence_transformers_folder(folder, tmp_path, inner):
    import shutil

    shutil.copytree(folder, tmp_path / "sentence" / inner)
    modules = [
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 0, "path": inner, "type": "sentence_transformers.models.Transformer"},
    ]
    (tmp_path / "sentence" / "modules.json").write_text(json.dumps(modules))
    loaded = load(str(tmp_path / "sentence"), Loading())
    assert (loaded.name, type(loaded.model).__name__) == ("sentence", "BertModel")
    assert make_batch(loaded, "the temperature of attention", 8)["input_ids"].shape == (1, 6)


@pytest.mark.parametrize("modules", ["[]", "3", '[{"path": "../x"}]', '[{"path": "/etc"}]', '[{"path": 3}]', "[[]]"])
def test_a_sentence_transformers_folder_that_points_nowhere(copy, modules):
    (copy / "modules.json").write_text(modules)
    with pytest.raises(InputError, match=r"modules.json: names no module with a folder of its own"):
        load(str(copy), Loading())


PIPELINE = {
    "_class_name": "StableDiffusionPipeline",
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "scheduler": ["diffusers", "DDIMScheduler"],
    "vae": ["diffusers", "AutoencoderKL"],
    "safety_checker": [None, None],
}


def test_a_pipeline_names_its_parts_that_attend(tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps(PIPELINE))
    (tmp_path / "text_encoder").mkdir()
    message = rf"check a part that attends \(text_encoder, unet, vae\): isotherm check {tmp_path}/text_encoder$"
    with pytest.raises(InputError, match=message):
        load(str(tmp_path), Loading())


def test_a_part_of_a_pipeline_needs_diffusers(copy, monkeypatch):
    change_config(copy, _class_name="UNet2DConditionModel")
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(
        InputError, match=r"^bert: diffusers is needed for this; install it with: pip install diffusers$"
    ):
        load(str(copy), Loading())


SMALL = {"sample_size": 8, "in_channels": 4, "out_channels": 4, "norm_num_groups": 4, "layers_per_block": 1}
PARTS = {
    "UNet2DConditionModel": SMALL
    | {
        "block_out_channels": (8, 16),
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": 12,
        "attention_head_dim": 4,
    },
    "DiTTransformer2DModel": {
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 1,
        "sample_size": 8,
        "norm_num_groups": 4,
    },
    "SD3Transformer2DModel": {
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "caption_projection_dim": 16,
        "joint_attention_dim": 12,
        "pooled_projection_dim": 20,
        "pos_embed_max_size": 8,
    },
    "PixArtTransformer2DModel": {
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 8,
        "num_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "cross_attention_dim": 16,
        "caption_channels": 12,
    },
    "FluxTransformer2DModel": {
        "in_channels": 4,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 12,
        "pooled_projection_dim": 12,
        "axes_dims_rope": (4, 4, 8),
        "guidance_embeds": True,
    },
    "AutoencoderKL": {"sample_size": 16, "block_out_channels": (8,), "norm_num_groups": 4},
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_of_a_pipeline_is_loaded_and_gets_input(tmp_path, kind):
    diffusers = pytest.importorskip("diffusers")
    getattr(diffusers, kind)(**PARTS[kind]).save_pretrained(tmp_path / "part")
    loaded = load(str(tmp_path / "part"), Loading())
    assert (type(loaded.model).__name__, loaded.weights.missing) == (kind, ())
    assert isotherm.check(loaded.model, what_if=(), compare=False).layers
    file = load(str(tmp_path / "part" / "diffusion_pytorch_model.safetensors"), Loading())
    assert file.weights.missing == ()


def test_a_part_of_a_pipeline_that_gets_no_input(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    diffusers.UNet1DModel(block_out_channels=(8, 8, 8)).save_pretrained(tmp_path / "part")
    with pytest.raises(InputError, match="takes sample, timestep, which cannot be generated; pass a batch"):
        make_batch(load(str(tmp_path / "part"), Loading()), "text", 8)
