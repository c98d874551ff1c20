"""Pictures, sounds and noise for models that do not read text, in the shape that a configuration asks for."""

from collections.abc import Callable, Mapping
from math import pi, prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from isotherm.errors import InputError
from isotherm.language import Text

LARGEST_INPUT = 2**26
"""The most numbers in a generated picture or sound: about 4,700 × 4,700 pixels of three colours."""
PROMPT = 77
"""The number of tokens of a prompt, as CLIP's text encoder gives to a diffusion model."""


def picture(config: Any) -> Tensor:
    """A smooth picture [1, C, H, W] with an edge and some noise, normalised to mean 0 and variance 1."""
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    channels = int(getattr(config, "num_channels", 3))
    bound("image_size", size, max(3, channels) * height * width)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    grain = torch.randn(3, height, width, generator=torch.Generator().manual_seed(0))
    waves = torch.stack([torch.sin(2 * pi * (k * x + y)) for k in (1, 2, 3)])
    image = waves + (x > 0.6).float() + 0.2 * grain
    return ((image - image.mean()) / image.std())[torch.arange(channels) % 3].unsqueeze(0)


def sound(config: Any, *, spectrum: bool) -> Tensor:
    """A rising tone with a pause: a log-mel-like spectrum [1, M, T], or one second of samples [1, 16000]."""
    if spectrum:
        bins, frames = int(getattr(config, "num_mel_bins", 80)), 2 * int(getattr(config, "max_source_positions", 1500))
        bound("max_source_positions", frames // 2, bins * frames)
        m, t = torch.meshgrid(torch.linspace(0, 1, bins), torch.linspace(0, 1, frames), indexing="ij")
        return (torch.exp(-((m - t) ** 2) / 0.02) - 0.5 + 0.1 * torch.sin(40 * t)).unsqueeze(0)
    t = torch.linspace(0, 1, 16000)
    return (torch.sin(2 * pi * (200 + 300 * t) * t) * (t % 0.5 < 0.4)).unsqueeze(0)


def bound(key: str, value: object, numbers: int) -> None:
    """Refuse an input of more numbers than any model takes."""
    if numbers > LARGEST_INPUT:
        raise InputError(
            "config.json", Text("{key} = {value} is too large", "{key} = {value} 过大").format(key=key, value=value)
        )


def noise(*shape: int, key: str) -> Tensor:
    """Standard normal numbers, the same every time. `key` is what the configuration calls their size."""
    bound(key, shape, prod(shape))
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def diffusion_input(kind: str, config: Any) -> dict[str, Any] | None:
    """What a denoising model of diffusers reads: a noisy sample, a timestep and a prompt. None for a class not known here."""
    make = _DIFFUSION.get(kind)
    return None if make is None else make(config)


def _sample(config: Any) -> Tensor:
    size = getattr(config, "sample_size", None) or 32
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return noise(1, int(config.in_channels), height, width, key="sample_size")


def _prompt(width: int) -> Tensor:
    return noise(1, PROMPT, width, key="cross_attention_dim")


def _unet(config: Any) -> dict[str, Any]:
    width = config.cross_attention_dim
    width = width if isinstance(width, int) else max(width)
    width = getattr(config, "encoder_hid_dim", None) or width
    given = {"sample": _sample(config), "timestep": torch.tensor([500]), "encoder_hidden_states": _prompt(width)}
    if getattr(config, "addition_embed_type", None) == "text_time":  # SDXL: a pooled prompt and six sizes
        pooled = int(config.projection_class_embeddings_input_dim) - 6 * int(config.addition_time_embed_dim)
        sizes = torch.tensor([[1024.0, 1024.0, 0.0, 0.0, 1024.0, 1024.0]])
        added = {"text_embeds": noise(1, pooled, key="projection_class_embeddings_input_dim"), "time_ids": sizes}
        return given | {"added_cond_kwargs": added}
    return given


def _pixels(config: Any) -> dict[str, Any]:
    return {"sample": _sample(config), "timestep": torch.tensor([500])}


def _dit(config: Any) -> dict[str, Any]:
    return {"hidden_states": _sample(config), "timestep": torch.tensor([500]), "class_labels": torch.tensor([0])}


def _pixart(config: Any) -> dict[str, Any]:
    prompt = _prompt(int(config.caption_channels))
    sizes: dict[str, Tensor | None] = {"resolution": None, "aspect_ratio": None}
    if getattr(config, "use_additional_conditions", None) or config.sample_size == 128:
        sizes = {"resolution": torch.tensor([[1024.0, 1024.0]]), "aspect_ratio": torch.tensor([[1.0]])}
    given = {"hidden_states": _sample(config), "timestep": torch.tensor([500]), "encoder_hidden_states": prompt}
    return given | {"added_cond_kwargs": sizes}


def _sd3(config: Any) -> dict[str, Any]:
    return {
        "hidden_states": _sample(config),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": _prompt(int(config.joint_attention_dim)),
        "pooled_projections": noise(1, int(config.pooled_projection_dim), key="pooled_projection_dim"),
    }


def _flux(config: Any) -> dict[str, Any]:
    side = 16
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([torch.zeros_like(row), row, column], -1).flatten(0, 1).float()
    given = {
        "hidden_states": noise(1, side * side, int(config.in_channels), key="in_channels"),
        "timestep": torch.tensor([0.5]),
        "encoder_hidden_states": _prompt(int(config.joint_attention_dim)),
        "pooled_projections": noise(1, int(config.pooled_projection_dim), key="pooled_projection_dim"),
        "img_ids": places,
        "txt_ids": torch.zeros(PROMPT, 3),
    }
    return given | ({"guidance": torch.tensor([3.5])} if config.guidance_embeds else {})


def _autoencoder(config: Any) -> dict[str, Any]:
    return {
        "sample": picture(
            SimpleNamespace(image_size=min(int(config.sample_size), 256), num_channels=config.in_channels)
        )
    }


_DIFFUSION: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "UNet2DConditionModel": _unet,
    "UNet2DModel": _pixels,
    "DiTTransformer2DModel": _dit,
    "PixArtTransformer2DModel": _pixart,
    "SD3Transformer2DModel": _sd3,
    "FluxTransformer2DModel": _flux,
    "AutoencoderKL": _autoencoder,
}


def moved(value: Any, device: Any, dtype: torch.dtype | None) -> Any:
    """The tensors of a batch, however nested, on a device; those with decimals in this precision too, unless it is None."""
    if isinstance(value, Tensor):
        return value.to(device, dtype) if dtype is not None and value.is_floating_point() else value.to(device)
    if isinstance(value, dict):
        return {name: moved(inner, device, dtype) for name, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(moved(inner, device, dtype) for inner in value)
    return value
