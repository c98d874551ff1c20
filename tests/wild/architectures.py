"""Stock architectures of transformers and what a check-up should find in them. Most need nothing but their name."""

from typing import Any

import torch

from tests.wild.hub import stock
from tests.wild.stock import Stock, image, noise, words

TWO_LAYERS = """
    afmoe albert apertus arcee aria_text beam beit bert bert-generation biogpt bitnet bloom camembert clip_text_model
    clip_vision_model cohere cohere2 cohere2_moe ctrl cwm data2vec-audio data2vec-text data2vec-vision deberta deberta-v2
    deepseek_v4 deit dinov2 dinov2_with_registers dinov3_vit distilbert doge dpr dpt electra ernie ernie4_5 ernie4_5_moe esm
    eurobert exaone4 exaone_moe falcon flaubert flex_olmo flint gemma gemma2 gemma3_text glm glm4 glm4_moe glmasr_encoder
    gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss granite granite_swa granitemoe granitemoeshared gte helium hubert
    hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 ibert ijepa imagegpt inkling_text jais2 jina_embeddings_v3 kolibri1 laguna
    layoutlm lfm2 llama llama4_text markuplm megatron-bert mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text ministral
    ministral3 mistral mixtral mlcd mobilebert modernbert modernbert-decoder molmo2_text moshi mpnet mpt nanochat nemotron
    nomic_bert nystromformer olmo olmo2 olmo3 olmoe openai-gpt openai_privacy_filter opt persimmon phi phi3 phimoe pixio
    pixtral qwen2 qwen2_audio_encoder qwen2_moe qwen3 qwen3_moe qwen3_vl_text radio rembert roberta roberta-prelayernorm
    roc_bert roformer sapiens2 seed_oss sew sew-d smollm3 solar_open splinter stablelm starcoder2 tapas ultrabert unispeech
    unispeech-sat vaultgemma vit vit_mae vit_msn voxtral_encoder wav2vec2 wavlm xglm xlm xlm-roberta xlm-roberta-xl
"""
ENCODER_AND_DECODER = """
    bart bigbird_pegasus blenderbot blenderbot-small fsmt m2m_100 marian mbart moonshine mt5 mvp nllb-moe pegasus plbart
    switch_transformers t5 t5gemma umt5 whisper
"""
"""Two layers on each side: two self-attentions in the encoder, two in the decoder, and two across."""
TWO_TOWERS = ["altclip", "blip", "chinese_clip", "clip", "clipseg", "metaclip_2", "owlv2", "owlvit"]
MULTIHEAD_LATENT = [
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "minicpm3",
    "mistral4",
]

PAIR = {"input_ids": words(), "pixel_values": image()}
CLIP_OF_FRAMES = noise(2, 2, 3, 32, 32)
BOXES = torch.tensor([1, 2, 30, 40]).expand(2, 20, 4).contiguous()
LATENT: dict[str, Any] = {"head_dim": None, "num_key_value_heads": 4}
WINDOWS = {"embed_dim": 64, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA_THEN_ATTENTION = {"layer_types": ["mamba", "hybrid"], "use_mamba_kernels": False}
SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1, "d_model": 32}
PAST_AND_FUTURE = {
    "past_values": noise(2, 10),
    "past_time_features": noise(2, 10, 1),
    "past_observed_mask": torch.ones(2, 10),
    "future_values": noise(2, 4),
    "future_time_features": noise(2, 4, 1),
}
WIDE_START = frozenset({"frozen-at-init", "logits-large"})
FROZEN = frozenset({"frozen-at-init"})

TEXT: dict[str, Stock] = {
    "bros": stock("bros", batch={"input_ids": words(), "bbox": noise(2, 20, 8)}),
    "big_bird": stock("big_bird"),
    "bamba": stock("bamba", 1, options={"attn_layer_indices": [1]}),
    "canine": stock("canine", 4),
    "codegen": stock("codegen", options={"rotary_dim": 8}),
    # the span convolution beside attention has a softmax too, over the taps of a kernel that a Linear makes
    "convbert": stock("convbert"),
    "cpmant": stock("cpmant", true=WIDE_START, why="init_std is 1"),
    "diffllama": stock("diffllama", 4),  # two softmaxes a layer, one subtracted from the other
    "esmc": stock("esmc", options={"num_key_value_heads": 4}),
    "falcon_h1": stock("falcon_h1", options={"mamba_d_ssm": 128, "mamba_n_groups": 1}),
    "gpt_neo": stock("gpt_neo", options={"attention_types": [[["global", "local"], 1]], "window_size": 4}),
    "gptj": stock("gptj", options={"rotary_dim": 8}),
    "granitemoehybrid": stock("granitemoehybrid", 1, options={"layer_types": ["mamba", "attention"]}),
    "hrm_text": stock("hrm_text", 16),  # two layers, passed eight times
    "jamba": stock(
        "jamba", 1, options={"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    ),
    "jetmoe": stock("jetmoe", unknown=2),
    "kimi_linear": stock("kimi_linear", options={"num_key_value_heads": 4, **HYBRID}, unseen=1),
    "layoutlmv3": stock(
        "layoutlmv3",
        options={"coordinate_size": 8, "shape_size": 16, "visual_embed": False},
        batch={"input_ids": words(), "bbox": BOXES},
    ),
    "led": stock("led", 6, unknown=2),
    "lilt": stock(
        "lilt",
        4,
        options={"channel_shrink_ratio": 4, "hidden_size": 96},
        batch={"input_ids": words(), "bbox": BOXES},
        unknown=4,  # text scores and layout scores are added: two products
    ),
    "longcat_flash": stock("longcat_flash", 4, options={"head_dim": 8, "num_key_value_heads": 4, "zero_expert_num": 0}),
    "longformer": stock("longformer", unknown=2),
    "longt5": stock("longt5", 6, unknown=2),
    "luke": stock("luke", options={"entity_vocab_size": 20, "entity_emb_size": 16}),
    "minimax": stock("minimax", unseen=1),
    "mra": stock("mra", unseen=2),
    "muse_glimmer_text": stock("muse_glimmer_text", true=FROZEN, why="qk_scale_factor is 3.87, and there are few keys"),
    "muse_spark_text": stock("muse_spark_text", true=FROZEN, why="qk_scale_factor is 5.47, and there are few keys"),
    # six products a head stand for one attention: queries × landmarks, landmarks × landmarks, landmarks × keys
    "nystromformer-landmarks": stock(
        "nystromformer", 6, options={"num_landmarks": 4, "segment_means_seq_len": 20}, unknown=6
    ),
    "olmo_hybrid": stock("olmo_hybrid", unseen=1),
    "pegasus_x": stock("pegasus_x", 8, unknown=2),  # an encoder layer attends within blocks and from global tokens
    "perceiver": stock(
        "perceiver", 3,
        options={"num_latents": 6, "d_latents": 32, "num_self_attends_per_block": 2, "num_self_attention_heads": 4,
                 "num_cross_attention_heads": 4, "d_model": 24},
        batch={"inputs": noise(2, 20, 24)},
    ),
    # the decoder attends in two streams, the main one and the predicting one
    "prophetnet": stock(
        "prophetnet", 8,
        options={"num_hidden_layers": None, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4}, unknown=4,
    ),
    "qwen2_vl_text": stock("qwen2_vl_text", options=SECTIONS),
    "qwen2_5_vl_text": stock("qwen2_5_vl_text", options=SECTIONS),
    "qwen3_5_text": stock("qwen3_5_text", 1, options=HYBRID),
    "qwen3_next": stock("qwen3_next", 1, options=HYBRID),
    "recurrent_gemma": stock("recurrent_gemma", 1, options={"num_hidden_layers": 3}),
    "reformer": stock(
        "reformer",
        options={"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (4, 8), "attention_head_size": 16,
                 "attn_layers": ["local", "lsh"], "feed_forward_size": 48},
        batch={"input_ids": words(32)}, unseen=2,
    ),
    "squeezebert": stock("squeezebert", options={"embedding_size": 64}),
    "t5gemma2": stock("t5gemma2", 4),  # self- and cross-attention are one softmax in its decoder
    "udop": stock(
        "udop", 6, options={"relative_bias_args": [{"type": "1d"}]},
        batch={"input_ids": words(), "decoder_input_ids": words(9), "bbox": BOXES / 100},
    ),
    "xlnet": stock("xlnet", options={"max_position_embeddings": None}, unknown=2),
    "xmod": stock("xmod", options={"languages": ["en_XX"], "default_language": "en_XX"}),
    "yoso": stock("yoso", unseen=2),
    "zamba2": stock(
        "zamba2", 1,
        options={**MAMBA_THEN_ATTENTION, "hybrid_layer_ids": [1], "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 32,
                 "num_mem_blocks": 1, "use_shared_attention_adapter": False, "num_key_value_heads": 4,
                 "attention_head_dim": 32},
    ),
}  # fmt: skip
VISION: dict[str, Stock] = {
    "aimv2_vision_model": stock("aimv2_vision_model", 3, unknown=1),  # the pooling query is a parameter
    "beit-relative": stock("beit", options={"use_relative_position_bias": True}),
    "cvt": stock("cvt", 13),
    "donut-swin": stock("donut-swin", 3, options=WINDOWS),
    "glpn": stock("glpn", 8),
    "hiera": stock("hiera", 24, unknown=7),
    "levit": stock(
        "levit", 5,
        options={"hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
                 "key_dim": [8, 8, 8], "patch_size": 16, "image_size": 64},
        batch={"pixel_values": image(64)},
    ),
    "maskformer-swin": stock("maskformer-swin", 3, options=WINDOWS),
    "mobilevit": stock("mobilevit", 9),
    "pvt": stock("pvt", 8),
    "pvt_v2": stock("pvt_v2", 8),
    "rf_detr": stock("rf_detr", 6, unseen=2),  # deformable: a Linear makes the weights
    "sam3_vit_model": stock("sam3_vit_model", unknown=2),
    "sam_vision_model": stock("sam_vision_model", unknown=2),
    "segformer": stock("segformer", 8),
    "siglip_vision_model": stock("siglip_vision_model", 3),
    "swiftformer": stock("swiftformer", 4, unseen=4),
    "swin": stock("swin", 3, options=WINDOWS),
    "swinv2": stock("swinv2", 3, options=WINDOWS),
    "timesformer": stock("timesformer", 4, options={"num_frames": 2}, batch={"pixel_values": CLIP_OF_FRAMES}),
    "videomae": stock("videomae", options={"num_frames": 2}, batch={"pixel_values": CLIP_OF_FRAMES}),
    "vitdet": stock("vitdet", unknown=2),
    "vivit": stock(
        "vivit", options={"num_frames": 2, "tubelet_size": [2, 8, 8]}, batch={"pixel_values": CLIP_OF_FRAMES}
    ),
    "vjepa2": stock(
        "vjepa2", 4,
        options={"frames_per_clip": 2, "crop_size": 32, "pred_hidden_size": 64, "pred_num_attention_heads": 4,
                 "pred_num_hidden_layers": 2},
        batch={"pixel_values_videos": CLIP_OF_FRAMES}, unknown=4,
    ),
    "yolos": stock("yolos", options={"image_size": [32, 32]}),
}  # fmt: skip
SOUND_AND_SERIES: dict[str, Stock] = {
    "audio-spectrogram-transformer": stock(
        "audio-spectrogram-transformer", options={"max_length": 64}, batch={"input_values": noise(2, 64, 16)}
    ),
    "decision_transformer": stock(
        "decision_transformer",
        batch={"states": noise(2, 6, 17), "actions": noise(2, 6, 4), "rewards": noise(2, 6, 1),
               "returns_to_go": noise(2, 6, 1), "timesteps": torch.arange(6).expand(2, 6), "attention_mask": torch.ones(2, 6)},
    ),
    "fastspeech2_conformer": stock("fastspeech2_conformer", 4, unknown=4),
    "gemma4_audio": stock("gemma4_audio", unknown=2),
    "informer": stock("informer", 6, options=SERIES, batch=PAST_AND_FUTURE, unknown=4),
    "parakeet_encoder": stock(
        "parakeet_encoder", options={"num_key_value_heads": 4, "subsampling_conv_channels": 16},
        batch={"input_features": noise(2, 128, 16)}, unknown=2,
    ),
    "patchtst": stock(
        "patchtst", options={"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4},
        batch={"past_values": noise(2, 16, 2)},
    ),
    "speech_to_text": stock(
        "speech_to_text", 6, options={"input_feat_per_channel": 16, "num_conv_layers": 2, "conv_channels": 16},
        batch={"input_features": noise(2, 40, 16), "decoder_input_ids": words(9)},
    ),
    "speecht5": stock(
        "speecht5", 6, model="SpeechT5ForSpeechToText",
        batch={"input_values": noise(2, 4000), "decoder_input_ids": words(9)},
    ),
    "time_series_transformer": stock("time_series_transformer", 6, options=SERIES, batch=PAST_AND_FUTURE),
    "timesfm": stock(
        "timesfm", options={"patch_length": 8, "horizon_length": 8, "context_length": 64},
        batch={"past_values": noise(2, 64), "past_values_padding": torch.zeros(2, 64, dtype=torch.long),
               "freq": torch.zeros(2, 1, dtype=torch.long)},
    ),
    "trocr": stock("trocr", model="TrOCRForCausalLM"),
    "wav2vec2-bert": stock("wav2vec2-bert", batch={"input_features": noise(2, 30, 160)}),
    "wav2vec2-conformer": stock("wav2vec2-conformer", unknown=2),
}  # fmt: skip
SEVERAL_SENSES: dict[str, Stock] = {
    "blip_2_qformer": stock(
        "blip_2_qformer", 3, options={"encoder_hidden_size": 64},
        batch={"query_embeds": noise(2, 6, 64), "encoder_hidden_states": noise(2, 9, 64)},
    ),
    "flava": stock("flava", 6, batch=PAIR),
    "git": stock("git", 4, batch=PAIR),
    "groupvit": stock("groupvit", 20, batch=PAIR, unknown=2),  # the softmax of an assignment is over the queries
    "idefics": stock(
        "idefics", 3, options={"cross_layer_interval": 2, "use_resampler": False, "additional_vocab_size": 0},
        batch={"input_ids": words(), "image_encoder_embeddings": noise(2, 1, 4, 64),
               "image_attention_mask": torch.ones(2, 20, 1)},
    ),
    "lxmert": stock(
        "lxmert", 6, options={"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16},
        batch={"input_ids": words(), "visual_feats": noise(2, 5, 16), "visual_pos": noise(2, 5, 4)},
    ),
    # upstream: without an image the causal mask is lost under sdpa, so the two really compute different attention
    "paligemma": stock(
        "paligemma", true=frozenset({"implementations-disagree"}), why="outputs differ between sdpa and eager unprobed"
    ),
    "siglip": stock("siglip", 5, batch=PAIR),
    "vilt": stock("vilt", batch=PAIR),
}  # fmt: skip
TRANSFORMERS: dict[str, Stock] = (
    {name: stock(name) for name in TWO_LAYERS.split()}
    | {name: stock(name, 6) for name in ENCODER_AND_DECODER.split()}
    | {name: stock(name, 4, batch=PAIR) for name in TWO_TOWERS}
    | {name: stock(name, options=LATENT) for name in MULTIHEAD_LATENT}
    | TEXT
    | VISION
    | SOUND_AND_SERIES
    | SEVERAL_SENSES
)
