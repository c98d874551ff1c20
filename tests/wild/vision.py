"""Models for images from timm, torchvision, vit-pytorch and others, and what a check-up should find in them."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from tests.wild.stock import Made, Stock, image, noise, words

VIT = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4}
VIT_14 = {**VIT, "img_size": 56}
WINDOWS = {"img_size": 64, "embed_dim": 64, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}


def timm(name: str, layers: int, side: int = 64, *, options: dict[str, Any] | None = None, **expected: Any) -> Stock:
    def build() -> Made:
        torch.manual_seed(0)
        model = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=5, **(options or {}))
        return model.eval(), image(side)

    return Stock("timm", build, layers, **expected)


TIMM: dict[str, Stock] = {
    "vit": timm("vit_tiny_patch16_224", 2, options=VIT),
    "vit-siglip": timm("vit_base_patch16_siglip_224", 3, options=VIT),  # one more in the pooling head
    "vit-dinov3": timm("vit_small_patch16_dinov3_qkvb", 2, options=VIT),
    "vit-registers": timm("vit_base_patch14_reg4_dinov2", 2, 56, options=VIT_14),
    "deit3": timm("deit3_small_patch16_224", 2, options=VIT),
    "beit": timm("beit_base_patch16_224", 2, options=VIT),
    "eva": timm("eva_giant_patch14_224", 2, 56, options=VIT_14),
    "eva02": timm("eva02_tiny_patch14_224", 2, 56, options=VIT_14),
    "samvit": timm("samvit_base_patch16", 2, options={**VIT, "global_attn_indexes": (1,), "window_size": 2}),
    "convit": timm(
        "convit_tiny", 3, options={**VIT, "local_up_to_layer": 1}, unknown=1, true=frozenset({"frozen-at-init"}),
        why="its first layer also attends by position, and is drawn so that this starts almost as a convolution",
    ),
    "cait": timm("cait_xxs24_224", 4, options=VIT, unknown=2),  # talking heads mix several q·k
    # two attend between channels, two from the class token
    "xcit": timm("xcit_nano_12_p16_224", 4, options={"embed_dim": 64, "depth": 2, "num_heads": 4}),
    "swin": timm("swin_tiny_patch4_window7_224", 4, options=WINDOWS),
    "swinv2": timm("swinv2_tiny_window8_256", 4, options=WINDOWS),
    "swinv2-cr": timm("swinv2_cr_tiny_224", 4, options=WINDOWS),
    "maxvit": timm("maxvit_nano_rw_256", 14, 128, options={"img_size": 128}),
    "coatnet": timm("coatnet_nano_rw_224", 9, options={"img_size": 64}, unknown=9),
    "csatv2": timm("csatv2", 18, 256),  # most of its layers attend across the batch, without a scale
    "pit": timm("pit_ti_224", 12, 224),
    "twins-svt": timm("twins_svt_small", 18, options={"img_size": 64}),
    "pvt-v2": timm("pvt_v2_b0", 8),
    "levit": timm("levit_128s", 11, 224),
    "mvitv2": timm("mvitv2_tiny", 10, 224, unknown=10),
    "volo": timm("volo_d1_224", 20, 224, unseen=4),  # outlook attention: a Linear makes the weights
    "visformer": timm(
        "visformer_tiny", 8, 224, true=frozenset({"frozen-at-init", "logits-diverging", "logits-large"}),
        why="BatchNorm has its initial statistics, and the logits do exceed 1e4",
    ),
    "mobilevit": timm("mobilevit_xxs", 9),
    "mobilevitv2": timm("mobilevitv2_050", 9, unseen=3, unknown=6),  # softmax over scores of one token each, no q·k
    "hiera": timm("hiera_tiny_224", 12, 224, unknown=4),
    "davit": timm("davit_tiny", 12, unknown=6),
    "gcvit": timm("gcvit_xxtiny", 12, 224, unknown=6),
    "edgenext": timm("edgenext_xx_small", 3),
    "botnet": timm("botnet26t_256", 3, 256, unknown=3),
    "halonet": timm("halonet26t", 3, 256, unknown=3),
    "nextvit": timm("nextvit_small", 4),  # its ConvAttention is a convolution
    "tiny-vit": timm("tiny_vit_5m_224", 10, 224),
    "resnet-clip": timm("resnet50_clip", 1, 224),
}  # fmt: skip

PLAIN = {"image_size": 64, "patch_size": 16, "num_classes": 5, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 48}
FRAMES = {**PLAIN, "image_patch_size": 16, "frames": 4, "frame_patch_size": 2}
CLASSES = {"num_classes": 5}
TWO_SCALES = {
    f"{size}_{name}": value
    for size, width in (("sm", 32), ("lg", 64))
    for name, value in {
        "dim": width,
        "enc_depth": 1,
        "enc_heads": 2,
        "enc_mlp_dim": 32,
        "patch_size": width // 4,
    }.items()
}


def lucid(layers: int, place: str, options: dict[str, Any], *, batch: Any = None, **expected: Any) -> Stock:
    """A model of vit-pytorch; `place` is its file and class."""

    def build() -> Made:
        torch.manual_seed(0)
        file, kind = place.split(".")
        model = getattr(importlib.import_module(f"vit_pytorch.{file}"), kind)(**options)
        return model.eval(), image(64) if batch is None else batch

    return Stock("vit_pytorch", build, layers, **expected)


VIT_PYTORCH: dict[str, Stock] = {
    "vit": lucid(2, "vit.ViT", PLAIN),
    "vit-1d": lucid(
        2, "vit_1d.ViT", {"seq_len": 64, **{key: PLAIN[key] for key in PLAIN if key != "image_size"}}, batch=noise(2, 3, 64)
    ),
    "vit-3d": lucid(
        2, "vit_3d.ViT", {key: FRAMES[key] for key in FRAMES if key != "patch_size"}, batch=noise(2, 3, 4, 64, 64)
    ),
    "qk-norm": lucid(2, "simple_vit_with_qk_norm.SimpleViT", PLAIN),
    "flash": lucid(2, "simple_flash_attn_vit.SimpleViT", {**PLAIN, "use_flash": True}),
    "small-dataset": lucid(2, "vit_for_small_dataset.ViT", PLAIN),
    "parallel": lucid(4, "parallel_vit.ViT", {**PLAIN, "num_parallel_branches": 2}),
    "patch-merger": lucid(
        3, "vit_with_patch_merger.ViT", {**PLAIN, "patch_merge_layer": 1, "patch_merge_num_tokens": 4}, unknown=1
    ),
    "deepvit": lucid(2, "deepvit.DeepViT", PLAIN),
    "cait": lucid(4, "cait.CaiT", {**PLAIN, "cls_depth": 2}, unknown=4),  # talking heads
    "xcit": lucid(3, "xcit.XCiT", {**PLAIN, "cls_depth": 1}),
    "rvt": lucid(2, "rvt.RvT", PLAIN),
    "ats": lucid(2, "ats_vit.ViT", {**PLAIN, "max_tokens_per_depth": (8, 4)}),
    "crossvit": lucid(
        6, "cross_vit.CrossViT",
        {**TWO_SCALES, **CLASSES, "image_size": 64, "depth": 1, "cross_attn_depth": 2, "cross_attn_heads": 2},
    ),
    "nest": lucid(
        3, "nest.NesT",
        {**CLASSES, "image_size": 64, "patch_size": 4, "dim": 16, "heads": 2, "num_hierarchies": 3, "block_repeats": (1, 1, 1)},
    ),
    "maxvit": lucid(
        4, "max_vit.MaxViT",
        {**CLASSES, "dim_conv_stem": 16, "dim": 32, "dim_head": 16, "depth": (1, 1), "window_size": 4},
    ),
    "levit": lucid(
        5, "levit.LeViT", {**CLASSES, "image_size": 64, "dim": (32, 48, 64), "depth": 1, "heads": (2, 2, 2), "mlp_mult": 1},
        unknown=4, true=frozenset({"frozen-at-init"}), why="its position bias is drawn at √d times the usual spread",
    ),
}  # fmt: skip


def torchvision(build: Callable[[Any], Made], layers: int, **expected: Any) -> Stock:
    def seeded() -> Made:
        torch.manual_seed(0)
        model, batch = build(importlib.import_module("torchvision.models"))
        return model.eval(), batch

    return Stock("torchvision", seeded, layers, **expected)


def swin_v2(models: Any) -> Made:
    parts = models.swin_transformer
    blocks = {"block": parts.SwinTransformerBlockV2, "downsample_layer": parts.PatchMergingV2}
    return parts.SwinTransformer([4, 4], 64, [2, 2], [2, 4], [4, 4], **blocks), image(64)


TORCHVISION: dict[str, Stock] = {
    "vit": torchvision(lambda models: (models.VisionTransformer(32, 8, 2, 4, 64, 48), image()), 2),
    "swin": torchvision(lambda models: (models.SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4]), image(64)), 4),
    "swin-v2": torchvision(swin_v2, 4),
    "maxvit": torchvision(
        lambda models: (models.MaxVit((64, 64), 16, 4, [32, 64], [1, 1], 16, 0.0), image(64)), 4, unknown=4
    ),
}
TOWERS = (
    {"layers": 2, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 32},
    {"context_length": 16, "vocab_size": 99, "width": 64, "heads": 4, "layers": 2},
)


def open_clip(layers: int, **pooling: Any) -> Stock:
    def build() -> Made:
        torch.manual_seed(0)
        seen, read = TOWERS
        model = importlib.import_module("open_clip.model").CLIP(32, {**seen, **pooling}, read)
        return model.eval(), (image(), words(16))

    return Stock("open_clip", build, layers)


OPEN_CLIP: dict[str, Stock] = {
    "clip": open_clip(4),
    "pooled": open_clip(5, attentional_pool=True, attn_pooler_queries=4, attn_pooler_heads=4),
}
