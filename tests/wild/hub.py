"""Stock architectures of transformers, built small from their configuration classes."""

import inspect
from typing import Any

import torch
from torch import nn

from tests.wild.stock import Made, Stock, image, noise, words

SMALL: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "type_vocab_size": 2, "embedding_size": 16,
    "d_model": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_layers": 2, "n_heads": 4, "num_layers": 2, "num_heads": 4,
    "d_kv": 16, "d_ff": 48, "d_inner": 48, "dim": 64, "hidden_dim": 48, "embed_dim": 64, "n_positions": 128,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "ffn_dim": 48,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_num_hidden_layers": 2, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "word_embed_proj_dim": 64, "max_source_positions": 64, "max_target_positions": 64,
    "image_size": 32, "patch_size": 8, "num_channels": 3, "projection_dim": 32, "num_queries": 10, "num_mel_bins": 16,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "moe_num_experts": 4,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 16, "first_k_dense_replace": 1,
    "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "sliding_window": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16,
}  # fmt: skip
"""Small sizes, by the names that configurations give them."""
LISTS = ("conv_dim", "conv_kernel", "conv_stride")
"""The sizes above that stand for a list; elsewhere a list (one size a stage) is left alone."""


def small(kind: Any, options: dict[str, Any]) -> Any:
    """A configuration with every size it has a name for made small. An option of None leaves its default."""
    from transformers import PretrainedConfig

    default = kind()
    chosen = {
        name: size
        for name, size in SMALL.items()
        if hasattr(default, name)
        and isinstance(getattr(default, name), list | tuple) == (name in LISTS)
        and not isinstance(getattr(kind, name, None), property)
    }
    for name, value in vars(default).items():
        if isinstance(value, PretrainedConfig):
            chosen[name] = small(type(value), options.get(name, {})).to_dict()
    nested = {name for name, value in options.items() if isinstance(getattr(default, name, None), PretrainedConfig)}
    chosen |= {name: value for name, value in options.items() if name not in nested}
    return kind(**{name: value for name, value in chosen.items() if value is not None})


def batch_for(model: nn.Module) -> dict[str, Any]:
    """What the model's forward asks for: ids, an image, a wave or a spectrogram."""
    asked = inspect.signature(model.forward).parameters
    size = getattr(model.config, "image_size", None) or 32
    size = size if isinstance(size, int) else size[0]
    batch: dict[str, Any] = {}
    if "input_ids" in asked:
        batch["input_ids"] = words()
    if "decoder_input_ids" in asked:
        batch["decoder_input_ids"] = words(9, seed=2)
    if model.main_input_name == "pixel_values":
        batch["pixel_values"] = image(size)
    if model.main_input_name == "input_values":
        batch["input_values"] = noise(2, 4000)
    if model.main_input_name == "input_features":
        batch["input_features"] = noise(2, 16, 128)
    return batch


def made(model_type: str, options: dict[str, Any], batch: dict[str, Any], model_class: str) -> Made:
    import transformers

    torch.manual_seed(0)
    config = small(transformers.CONFIG_MAPPING[model_type], options)
    factory = getattr(transformers, model_class)
    model = factory.from_config(config) if model_class == "AutoModel" else factory(config)
    return model.eval(), batch or batch_for(model)


def stock(
    model_type: str,
    layers: int = 2,
    *,
    options: dict[str, Any] | None = None,
    batch: dict[str, Any] | None = None,
    model: str = "AutoModel",
    **expected: Any,
) -> Stock:
    """A row: the model type, the number of its attention layers, and what differs from a small model with ids."""
    return Stock("transformers", lambda: made(model_type, options or {}, batch or {}, model), layers, **expected)
