"""Stock architectures of transformers, small and with random weights, in the ways in which queries are made."""

import torch
from torch import nn

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
WIDER = {**GROUPED, "head_dim": 16}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64}
LATENT = {
    **SMALL,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 2,
}
PICTURES = {"image_size": 32, "patch_size": 8}
BOTH_SIDES = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
KEYS: dict[str, dict[str, object]] = {
    "Bert": SMALL,
    "Roberta": SMALL,
    "Albert": {**SMALL, "embedding_size": 16},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 64},
    "Electra": {**SMALL, "embedding_size": 16},
    "DebertaV2": {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "GPT2": GPT,
    "GPTNeo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1]],
    },
    "GPTNeoX": SMALL,
    "GPTJ": {**GPT, "rotary_dim": 4},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64},
    "Falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64},
    "Mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 64, "max_seq_len": 64},
    "OPT": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 32,
    },
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 8},
    "Qwen2": GROUPED,
    "Qwen3": WIDER,
    "Phi3": {**GROUPED, "pad_token_id": 0},
    "StableLm": GROUPED,
    "Starcoder2": GROUPED,
    "Olmo2": GROUPED,
    "Gemma": WIDER,
    "Gemma2": WIDER,
    "Gemma3Text": WIDER,
    "Granite": GROUPED,
    "Cohere": GROUPED,
    "HunYuanDenseV1": WIDER,
    "GptOss": {**WIDER, "num_local_experts": 2, "num_experts_per_tok": 1},
    "DeepseekV3": LATENT,
    "Bart": BOTH_SIDES,
    "T5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64},
    "ViT": {**SMALL, **PICTURES},
    "CLIPVisionModel": {**SMALL, **PICTURES},
}
"""The keys of each architecture's configuration."""
WITHOUT_WEIGHTS: dict[str, dict[str, object]] = {
    "Llama4Text": {**WIDER, "intermediate_size_mlp": 48, "num_local_experts": 2, "attn_temperature_tuning": False},
    "XLNet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "vocab_size": 64},
}
"""Architectures in which no weight makes only the queries."""


def build(name: str, **keys: object) -> nn.Module:
    """A model whose weights are large enough for every number in it to matter."""
    import transformers

    described = {"eos_token_id": None, "bos_token_id": None, **(KEYS | WITHOUT_WEIGHTS)[name], **keys}
    plain = name.removesuffix("Model")
    config = getattr(transformers, f"{plain}Config")(**described)
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, f"{plain}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def batch(model: nn.Module, length: int = 11) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=drawn)}
    ids = torch.randint(64, (2, length), generator=drawn)
    return (
        {"input_ids": ids, "decoder_input_ids": ids[:, :7]} if model.config.is_encoder_decoder else {"input_ids": ids}
    )


def output(model: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(**given).last_hidden_state
    return result
