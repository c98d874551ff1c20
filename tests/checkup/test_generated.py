"""What models of diffusers are given: each input in the shape that the model's configuration asks for."""

from types import SimpleNamespace

import pytest
import torch

from isotherm.checkup.batch import make_batch
from isotherm.checkup.generated import LARGEST_INPUT, PROMPT, bound, diffusion_input, moved, picture
from isotherm.checkup.loading.loaded import Loaded
from isotherm.errors import InputError

UNET = {"in_channels": 4, "sample_size": 8, "cross_attention_dim": 12}
SDXL = {"addition_embed_type": "text_time", "projection_class_embeddings_input_dim": 50, "addition_time_embed_dim": 5}
TEXTS = {"joint_attention_dim": 10, "pooled_projection_dim": 6}
PROMPTED = (1, PROMPT, 12)


def shapes(given):
    return {
        name: shapes(value) if isinstance(value, dict) else None if value is None else tuple(value.shape)
        for name, value in given.items()
    }


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("UNet2DConditionModel", UNET, {"sample": (1, 4, 8, 8), "encoder_hidden_states": PROMPTED}),
        (
            "UNet2DConditionModel",
            UNET | {"sample_size": (6, 10), "cross_attention_dim": (12, 7)},
            {"sample": (1, 4, 6, 10), "encoder_hidden_states": PROMPTED},
        ),
        (
            "UNet2DConditionModel",
            UNET | {"sample_size": None, "encoder_hid_dim": 9},
            {"sample": (1, 4, 32, 32), "encoder_hidden_states": (1, PROMPT, 9)},
        ),
        (
            "UNet2DConditionModel",
            UNET | SDXL,
            {
                "sample": (1, 4, 8, 8),
                "encoder_hidden_states": PROMPTED,
                "added_cond_kwargs": {"text_embeds": (1, 20), "time_ids": (1, 6)},
            },
        ),
        ("UNet2DModel", UNET, {"sample": (1, 4, 8, 8)}),
        ("DiTTransformer2DModel", UNET, {"hidden_states": (1, 4, 8, 8), "class_labels": (1,)}),
        (
            "PixArtTransformer2DModel",
            UNET | {"caption_channels": 12},
            {
                "hidden_states": (1, 4, 8, 8),
                "encoder_hidden_states": PROMPTED,
                "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
            },
        ),
        *(
            (
                "PixArtTransformer2DModel",
                UNET | {"caption_channels": 12, "sample_size": side} | more,
                {
                    "hidden_states": (1, 4, side, side),
                    "encoder_hidden_states": PROMPTED,
                    "added_cond_kwargs": {"resolution": (1, 2), "aspect_ratio": (1, 1)},
                },
            )
            for side, more in ((128, {}), (8, {"use_additional_conditions": True}))
        ),
        (
            "SD3Transformer2DModel",
            UNET | TEXTS,
            {
                "hidden_states": (1, 4, 8, 8),
                "encoder_hidden_states": (1, PROMPT, 10),
                "pooled_projections": (1, 6),
            },
        ),
    ],
)
def test_noise_a_timestep_and_a_prompt(kind, config, expected):
    given = diffusion_input(kind, SimpleNamespace(**config))
    assert given.pop("timestep").tolist() == [500]
    assert shapes(given) == expected
    noise = next(iter(given.values()))
    assert noise.std() == pytest.approx(1, abs=0.2)
    assert torch.equal(noise, next(iter(diffusion_input(kind, SimpleNamespace(**config)).values())))


@pytest.mark.parametrize("guidance", [True, False])
def test_flux_is_told_where_each_patch_is(guidance):
    config = SimpleNamespace(in_channels=4, guidance_embeds=guidance, **TEXTS)
    given = diffusion_input("FluxTransformer2DModel", config)
    patches = given["hidden_states"].shape[1]
    assert ("guidance" in given) is guidance
    assert 0 < float(given["timestep"]) < 1
    assert shapes(given)["txt_ids"] == (given["encoder_hidden_states"].shape[1], 3)
    assert shapes(given)["encoder_hidden_states"] == (1, PROMPT, 10)
    assert shapes(given)["pooled_projections"] == (1, 6)
    places = given["img_ids"]
    assert shapes(given)["img_ids"] == (patches, 3)
    assert len(places.unique(dim=0)) == patches
    assert places[1].tolist() == [0, 0, 1]
    assert places[-1].tolist() == [0, 15, 15]


def test_an_autoencoder_reads_a_picture_of_bounded_size():
    for side, used in ((64, 64), (1024, 256)):
        config = SimpleNamespace(sample_size=side, in_channels=3)
        assert shapes(diffusion_input("AutoencoderKL", config)) == {"sample": (1, 3, used, used)}


def test_a_class_that_is_not_known():
    assert diffusion_input("Other", SimpleNamespace()) is None


class Config(dict):
    """As diffusers keeps it: a dict whose keys are attributes too."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class UNet2DModel(torch.nn.Module):
    def __init__(self, **config):
        super().__init__()
        self.layer, self.config = torch.nn.Linear(2, 2).half(), Config(_class_name="UNet2DModel", **config)

    def forward(self, sample, timestep, return_dict=True):
        return sample


class Strange(UNet2DModel):
    pass


def test_a_model_of_diffusers_is_given_noise_in_its_precision():
    given = make_batch(Loaded(UNet2DModel(in_channels=2, sample_size=4), "it", "here"), "text", 5)
    assert shapes(given) == {"sample": (1, 2, 4, 4), "timestep": (1,)}
    assert (given["sample"].dtype, given["timestep"].dtype) == (torch.float16, torch.int64)
    with pytest.raises(InputError, match="takes sample, timestep, which cannot be generated"):
        make_batch(Loaded(Strange(), "it", "here"), "text", 5)


def test_what_is_too_large_is_refused():
    bound("size", 1, LARGEST_INPUT)
    for ask in (
        lambda: bound("size", 1, LARGEST_INPUT + 1),
        lambda: diffusion_input("UNet2DModel", SimpleNamespace(in_channels=4, sample_size=2**13)),
        lambda: picture(SimpleNamespace(image_size=2**13)),
        lambda: picture(SimpleNamespace(image_size=2**12, num_channels=5)),
    ):
        with pytest.raises(InputError, match="is too large"):
            ask()


def test_a_nested_batch_is_moved_and_only_decimals_change_their_precision():
    ids, numbers = torch.tensor([1, 2]), torch.tensor([0.5])
    batch = {"a": [ids, (numbers, "word")], "b": {"c": numbers}, "d": 3}
    got = moved(batch, "cpu", torch.float16)
    assert (type(got["a"]), type(got["a"][1]), got["a"][1][1], got["d"]) == (list, tuple, "word", 3)
    assert [got["a"][0].dtype, got["a"][1][0].dtype, got["b"]["c"].dtype] == [torch.int64, torch.float16, torch.float16]
    assert moved(batch, "meta", None)["b"]["c"].device.type == "meta"
    assert moved(batch, "meta", None)["b"]["c"].dtype == torch.float32
