"""Stock architectures, small and random: each a factory of a model and a batch, and what a probe should see in it.

Weights are drawn wide enough that the softmax is far from uniform: on a freshly initialised model a wrong scale would
change next to nothing.
"""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

Batch = dict[str, Any]
Traced = Literal["constant", "normalised", "per-query", "untraced"]

VOCABULARY, WIDTH, HEADS, DIM, TOKENS, BATCH = 61, 32, 4, 8, 7, 2
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**COMMON, "num_key_value_heads": 2, "head_dim": DIM, "max_position_embeddings": 64}
ENCODER = {**COMMON, "max_position_embeddings": 64, "type_vocab_size": 2}
PLAIN = 1 / sqrt(DIM)


@dataclass(frozen=True)
class Architecture:
    """`calls` attention calls in one forward, of which `cross` are cross-attention. `scale` is what q·k of the projections
    is multiplied by in all (one number, or one per call), None where it is no one number; `q` and `k` are what became of
    them on the way. `weights` names where the model returns its weights, `returned` of which calls (all, if empty)."""

    family: str
    config: str
    model: str
    options: Batch = field(default_factory=dict)
    calls: int = 2
    cross: int = 0
    scale: float | tuple[float, ...] | None = PLAIN
    q: Traced = "constant"
    k: Traced = "constant"
    inputs: Literal["text", "pairs", "image", "audio", "clip", "patches"] = "text"
    weights: tuple[str, ...] = ("attentions",)
    returned: tuple[int, ...] = ()
    written: bool = False
    eager_only: bool = False


def yarn(factor: float) -> float:
    return 0.1 * log(factor) + 1


def causal(family: str, name: str, options: Batch | None = None, **expected: Any) -> Architecture:
    """A decoder of the Llama kind: grouped queries, causal."""
    return Architecture(family, f"{name}Config", f"{name}ForCausalLM", GROUPED | (options or {}), **expected)


def encoder(family: str, name: str, options: Batch | None = None, **expected: Any) -> Architecture:
    return Architecture(family, f"{name}Config", f"{name}Model", ENCODER | (options or {}), **expected)


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 4}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": HEADS,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 2, "num_experts": 2, "moe_intermediate_size": 16}

TRANSFORMERS: dict[str, Architecture] = {
    "gpt2": Architecture("gpt2", "GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt2-by-layer": Architecture(
        "gpt2", "GPT2Config", "GPT2LMHeadModel", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, scale=(PLAIN, PLAIN / 2)
    ),
    "gpt2-unscaled": Architecture(
        "gpt2", "GPT2Config", "GPT2LMHeadModel", {**GPT2, "scale_attn_weights": False}, scale=1.0
    ),
    "gpt2-upcast": Architecture(
        "gpt2",
        "GPT2Config",
        "GPT2LMHeadModel",
        {**GPT2, "reorder_and_upcast_attn": True},
        eager_only=True,
        written=True,
    ),
    "llama": causal("llama", "Llama"),
    "llama-yarn": causal("llama", "Llama", {"rope_parameters": YARN}, scale=PLAIN * yarn(16) ** 2),
    "qwen2": causal("qwen2", "Qwen2"),
    "qwen3": causal("qwen3", "Qwen3", q="normalised", k="normalised", scale=None),
    "gemma": causal("gemma", "Gemma"),
    "gemma2": causal("gemma2", "Gemma2", {"query_pre_attn_scalar": 50, "sliding_window": 3}, scale=50**-0.5, eager_only=True),
    "gemma3": Architecture(
        "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", {**GROUPED, "sliding_window": 3},
        q="normalised", k="normalised", scale=None,
    ),
    "mistral": causal("mistral", "Mistral", {"sliding_window": 3}),
    "mixtral": causal("mixtral", "Mixtral", MOE),
    "phi": causal("phi", "Phi"),
    "phi3": causal("phi3", "Phi3"),
    "olmo2": causal("olmo2", "Olmo2", q="normalised", k="normalised", scale=None),
    "granite": causal("granite", "Granite", {"attention_multiplier": 0.75}, scale=0.75),
    "deepseek-v3": causal(
        "deepseek_v3", "DeepseekV3",
        {
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 2,
            "topk_group": 1, "first_k_dense_replace": 1,
            "q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
            "num_key_value_heads": HEADS, "head_dim": 4,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        scale=12**-0.5 * yarn(16) ** 2,
    ),
    "gpt-oss": causal("gpt_oss", "GptOss", {**MOE, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
                      scale=PLAIN * yarn(32) ** 2, eager_only=True),
    "stablelm": causal("stablelm", "StableLm"),
    "stablelm-qk-norm": causal("stablelm", "StableLm", {"qk_layernorm": True}, q="normalised", k="normalised", scale=None),
    "cohere": causal("cohere", "Cohere"),
    "cohere-qk-norm": causal("cohere", "Cohere", {"use_qk_norm": True}, q="normalised", k="normalised", scale=None),
    "llama4": Architecture(
        "llama4", "Llama4TextConfig", "Llama4ForCausalLM",
        {**GROUPED, **MOE, "intermediate_size_mlp": 24, "attn_temperature_tuning": True, "floor_scale": 2,
         "no_rope_layers": [0, 0], "attention_chunk_size": 64},
        q="per-query", scale=None,
    ),
    "gpt-neox": Architecture(
        "gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", {**COMMON, "max_position_embeddings": 64}
    ),
    "opt": Architecture(
        "opt", "OPTConfig", "OPTForCausalLM",
        {**COMMON, "ffn_dim": 24, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 64},
    ),
    "falcon": Architecture("falcon", "FalconConfig", "FalconForCausalLM", {**COMMON, "alibi": False}),
    "falcon-grouped": Architecture(
        "falcon", "FalconConfig", "FalconForCausalLM",
        {**COMMON, "alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon-alibi": Architecture(
        "falcon", "FalconConfig", "FalconForCausalLM", {**COMMON, "alibi": True, "multi_query": False}
    ),
    "bloom": Architecture(
        "bloom", "BloomConfig", "BloomForCausalLM", {**COMMON, "n_layer": 2, "n_head": HEADS}, written=True
    ),
    "gptj": Architecture("gptj", "GPTJConfig", "GPTJForCausalLM", {**GPT2, "rotary_dim": 4}, written=True),
    "mpt": Architecture(
        "mpt", "MptConfig", "MptForCausalLM",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_heads": HEADS, "n_layers": 2, "max_seq_len": 64}, written=True,
    ),
    "bert": encoder("bert", "Bert"),
    "roberta": encoder("roberta", "Roberta"),
    "distilbert": Architecture(
        "distilbert", "DistilBertConfig", "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": WIDTH, "hidden_dim": 24, "n_layers": 2, "n_heads": HEADS,
         "max_position_embeddings": 64},
    ),
    "electra": encoder("electra", "Electra", {"embedding_size": 16}),
    "albert": encoder("albert", "Albert", {"embedding_size": 16}),
    "deberta-v2": encoder(
        "deberta_v2", "DebertaV2",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "max_relative_positions": 8},
        scale=1 / sqrt(3 * DIM), written=True,
    ),
    "xlnet": Architecture(
        "xlnet", "XLNetConfig", "XLNetModel",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": 2, "n_head": HEADS, "d_inner": 24},
        q="untraced", scale=None, written=True,
    ),
    "t5": Architecture(
        "t5", "T5Config", "T5Model",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": DIM, "d_ff": 24, "num_layers": 2, "num_heads": HEADS,
         "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2},
        calls=6, cross=2, scale=1.0, inputs="pairs", weights=("encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
    "bart": Architecture(
        "bart", "BartConfig", "BartModel",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24,
         "decoder_ffn_dim": 24, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
         "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
         "decoder_start_token_id": 2, "forced_eos_token_id": 2},
        calls=6, cross=2, inputs="pairs", weights=("encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
    "whisper": Architecture(
        "whisper", "WhisperConfig", "WhisperModel",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24,
         "decoder_ffn_dim": 24, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "num_mel_bins": 8,
         "max_source_positions": 10, "max_target_positions": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
         "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
        calls=6, cross=2, inputs="audio", weights=("encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
    "vit": Architecture(
        "vit", "ViTConfig", "ViTModel",
        {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
         "image_size": 12, "patch_size": 4},
        inputs="image",
    ),
    "clip": Architecture(
        "clip", "CLIPConfig", "CLIPModel",
        {
            "text_config": {**COMMON, "max_position_embeddings": 16, "projection_dim": 16},
            "vision_config": {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS,
                              "intermediate_size": 24, "image_size": 12, "patch_size": 4, "projection_dim": 16},
            "projection_dim": 16,
        },
        calls=4, inputs="clip", weights=("vision_model_output.attentions", "text_model_output.attentions"),
    ),
    "swin-v2": Architecture(
        "swinv2", "Swinv2Config", "Swinv2Model",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4},
        calls=3, q="normalised", k="normalised", scale=None, inputs="patches", written=True, returned=(1, 2),
    ),
}  # fmt: skip


def widen(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights with which attention is neither uniform nor an arg-max, and norms with gains that differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2 and "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() >= 2 and "logit_scale" not in name:
                embeds = "embed" in name or "wte" in name or "wpe" in name
                parameter.copy_(noise * (0.7 if embeds else 1.2 / sqrt(max(parameter.shape[-1], 1))))
            elif "bias" in name or "sinks" in name:
                parameter.copy_(noise * 0.2)
            elif parameter.dim() == 1:
                parameter.copy_(1 + 0.2 * noise)
    return model.eval()


def inputs(kind: str, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS), generator=generator)
    other = torch.randint(3, VOCABULARY, (BATCH, 5), generator=generator)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "text": {"input_ids": ids},
        "pairs": {"input_ids": ids, "decoder_input_ids": other},
        "image": {"pixel_values": noise(BATCH, 3, 12, 12)},
        "audio": {"input_features": noise(BATCH, 8, 20), "decoder_input_ids": other},
        "clip": {"input_ids": ids, "pixel_values": noise(BATCH, 3, 12, 12)},
        "patches": {"pixel_values": noise(BATCH, 3, 32, 32)},
    }[kind]


def build(name: str, attention: str = "eager", **options: Any) -> tuple[nn.Module, Batch]:
    """The model with that attention implementation, in evaluation mode, and a batch for it."""
    architecture = TRANSFORMERS[name]
    package = f"transformers.models.{architecture.family}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some files script functions as they are imported
        configuration = importlib.import_module(f"{package}.configuration_{architecture.family}")
        modeling = importlib.import_module(f"{package}.modeling_{architecture.family}")
    given = {**architecture.options, **options, "attn_implementation": attention}
    torch.manual_seed(0)
    config = getattr(configuration, architecture.config)(**given)
    return widen(getattr(modeling, architecture.model)(config)), inputs(architecture.inputs)


class NanoAttention(nn.Module):
    """As a tutorial writes it: one fused projection, softmax by hand."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("causal", torch.ones(64, 64).tril().view(1, 1, 64, 64).bool())

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.attn(x).chunk(3, -1))
        return q, k, v

    def merge(self, y: Tensor) -> Tensor:
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        att = (q @ k.transpose(-2, -1)) * (1.0 / sqrt(k.size(-1)))
        att = att.masked_fill(~self.causal[:, :, : x.size(1), : x.size(1)], float("-inf"))
        return self.merge(torch.softmax(att, dim=-1) @ v)


Factory = Callable[[], tuple[nn.Module, Batch]]
