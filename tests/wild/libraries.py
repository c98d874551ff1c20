"""Models from other libraries: diffusion, language, proteins, tables. Each row is a function that builds a model."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from tests.wild.stock import Made, Stock, image, noise, words

LIBRARIES: dict[str, dict[str, Stock]] = {}


def row(library: str, layers: int, **expected: Any) -> Callable[[Callable[[Any], Made]], Callable[[Any], Made]]:
    """Enter a function as a row: it receives the imported library, and its name is the model's."""

    def enter(build: Callable[[Any], Made]) -> Callable[[Any], Made]:
        def seeded() -> Made:
            torch.manual_seed(0)
            model, batch = build(importlib.import_module(library))
            return model.eval(), batch

        LIBRARIES.setdefault(library, {})[build.__name__] = Stock(library, seeded, layers, **expected)
        return build

    return enter


HEADS = {"num_attention_heads": 4, "attention_head_dim": 16}
LATENT = {"in_channels": 4, "sample_size": 8}
STEP = torch.tensor([1, 2])
TEXT = noise(2, 7, 32)


@row("diffusers", 8)
def unet(diffusers: Any) -> Made:
    model = diffusers.UNet2DConditionModel(
        **LATENT, out_channels=4, layers_per_block=1, block_out_channels=(32, 64), cross_attention_dim=32,
        attention_head_dim=8, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return model, {"sample": noise(2, 4, 8, 8), "timestep": STEP, "encoder_hidden_states": TEXT}


@row("diffusers", 8, unknown=8)
def unet_sliced(diffusers: Any) -> Made:
    """The same, one head at a time: still eight layers."""
    model, batch = unet(diffusers)
    model.set_attention_slice(1)
    return model, batch


@row("diffusers", 2)
def dit(diffusers: Any) -> Made:
    model = diffusers.DiTTransformer2DModel(
        **HEADS, **LATENT, num_layers=2, patch_size=2, num_embeds_ada_norm=10, norm_num_groups=4
    )
    return model, {"hidden_states": noise(2, 4, 8, 8), "timestep": STEP, "class_labels": STEP}


@row("diffusers", 4)
def pixart(diffusers: Any) -> Made:
    model = diffusers.PixArtTransformer2DModel(
        **HEADS, **LATENT, num_layers=2, cross_attention_dim=64, caption_channels=32, use_additional_conditions=False
    )
    conditions = {"resolution": None, "aspect_ratio": None}
    return model, {
        "hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": TEXT, "timestep": STEP,
        "added_cond_kwargs": conditions,
    }  # fmt: skip


@row("diffusers", 2)
def stable_diffusion_3(diffusers: Any) -> Made:
    model = diffusers.SD3Transformer2DModel(
        **HEADS, **LATENT, patch_size=2, num_layers=2, joint_attention_dim=32, caption_projection_dim=64,
        pooled_projection_dim=32, out_channels=4, pos_embed_max_size=8,
    )  # fmt: skip
    return model, {
        "hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": TEXT, "pooled_projections": noise(2, 32),
        "timestep": STEP,
    }  # fmt: skip


@row("diffusers", 2)
def flux(diffusers: Any) -> Made:
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=False,
    )  # fmt: skip
    return model, {
        "hidden_states": noise(2, 16, 4), "encoder_hidden_states": TEXT, "pooled_projections": noise(2, 32),
        "timestep": STEP.float(), "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(7, 3),
    }  # fmt: skip


@row("diffusers", 4)
def wan(diffusers: Any) -> Made:
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=32,
        freq_dim=32, ffn_dim=32, num_layers=2, cross_attn_norm=True, rope_max_seq_len=32,
    )  # fmt: skip
    return model, {"hidden_states": noise(2, 4, 2, 8, 8), "encoder_hidden_states": TEXT, "timestep": STEP}


@row("diffusers", 4, unseen=2)
def sana(diffusers: Any) -> Made:
    """Its self-attention is linear, without a softmax."""
    model = diffusers.SanaTransformer2DModel(
        **LATENT, out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=16, num_cross_attention_heads=2,
        cross_attention_head_dim=16, cross_attention_dim=32, caption_channels=32, patch_size=1,
    )  # fmt: skip
    return model, {"hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": TEXT, "timestep": STEP}


@row("diffusers", 2)
def autoencoder(diffusers: Any) -> Made:
    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 16), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4,
    )  # fmt: skip
    return model, image(32)


def x_transformers(**options: Any) -> Callable[[Any], Made]:
    def build(library: Any) -> Made:
        layers = library.Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **options)
        return library.TransformerWrapper(num_tokens=99, max_seq_len=64, attn_layers=layers), words()

    return build


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "flash": ({"attn_flash": True}, {}),
    "qk-norm": ({"attn_qk_norm": True}, {}),
    "alibi": ({"alibi_pos_bias": True}, {}),
    "relative-bias": ({"rel_pos_bias": True}, {"true": frozenset({"frozen-at-init"})}),  # the bias starts at N(0, 64)
    "rotary": ({"rotary_pos_emb": True}, {}),
    "xpos": ({"rotary_xpos": True}, {"unknown": 2}),  # q and k are scaled by position
    "one-key-head": ({"attn_one_kv_head": True}, {}),
    "grouped": ({"attn_kv_heads": 2}, {"unknown": 2}),
    "softclamp": ({"attn_softclamp_logits": True}, {"unknown": 2}),
    "talking-heads": ({"attn_pre_talking_heads": True}, {"unseen": 2, "unknown": 2}),
    "sparse": ({"attn_sparse_topk": 4}, {}),
    "memory": ({"attn_num_mem_kv": 3}, {"unknown": 2}),
    "selective": ({"attn_selective": True}, {"unseen": 2, "unknown": 2}),
    "sigmoid": ({"attn_sigmoid": True}, {"unseen": 2}),
    "distance": ({"attn_l2_distance": True}, {"unknown": 2}),
}
for name, (options, expected) in VARIANTS.items():
    built = x_transformers(**options)
    built.__name__ = name
    row("x_transformers", 2, **expected)(built)


@row("x_transformers", 6)
def encoder_decoder(library: Any) -> Made:
    sizes = {"num_tokens": 99, "depth": 2, "heads": 4, "max_seq_len": 64}
    sides = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in sizes.items()}
    return library.XTransformer(dim=64, **sides), (words(), words(9, seed=2))


def litgpt(config: str, **sizes: Any) -> Callable[[Any], Made]:
    def build(library: Any) -> Made:
        small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "head_size": 16, "n_query_groups": 2, "intermediate_size": 48}
        chosen = library.Config.from_name(config, padded_vocab_size=99, block_size=64, **{**small, **sizes})
        return library.GPT(chosen), words()

    build.__name__ = config
    return build


for config in ("Llama-3.2-1B", "Gemma-2-2b", "Gemma-3-1b-it", "Qwen3-0.6B"):
    row("litgpt", 2)(litgpt(config))
for config in ("pythia-14m", "phi-2", "OLMo-2-1124-7B"):
    row("litgpt", 2)(litgpt(config, n_query_groups=4))
