"""The scale a model declares, read from its configuration and from what is known of its architecture.

`declared` returns the multiplier between the projections' q·k and the logits that the architecture's definition asks for:
the rule, its number, and who says so: you, configuration keys, or an architecture that is known. If nobody does, the layer is
compared with the convention, 1/√d, and departing from that is no error. For a class of transformers that is not in the list
below 1/√d is only assumed; `anew.py` asks the installed class before a departure is called wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

from torch import nn

from isotherm.scale import (
    ByLayer,
    DeepSeekMscale,
    Fixed,
    InverseSqrt,
    LongRoPE,
    NoScale,
    Product,
    Relative,
    Rule,
    YaRN,
)
from isotherm.scale import value as value_of

CONVENTION = "convention"
"""The source if nothing says what the scale should be."""
ASSUMED = "architecture"
"""The source for a class of transformers of which nothing else is known."""
YOU = "you"


@dataclass(frozen=True)
class Declared:
    """A declared rule, its number at this layer (None if it has no single one), and where it was read."""

    rule: str
    value: float | None
    source: str


def first_source(source: str) -> str:
    """Who says what the scale is, without the keys that add a factor to it.

    >>> first_source("convention, yarn factor = 4.0")
    'convention'
    """
    return source.partition(",")[0]


@dataclass(frozen=True)
class LayerPlace:
    """One attention layer: its module, the configuration nearest to it, its index, head dimension and heads."""

    module: nn.Module
    config: Any
    layer: int
    head_dim: int
    heads: int = 1

    def get(self, key: str, default: Any = None) -> Any:
        """A configuration value; the default if the key is missing or None."""
        found = getattr(self.config, key, None)
        return default if found is None else found

    @property
    def model_type(self) -> str:
        """The architecture's name in transformers."""
        return str(self.get("model_type", ""))


def declared(place: LayerPlace, yours: Rule | None = None) -> Declared:
    """The scale that this layer declares. A rule of `yours` that sets the scale replaces what the model says; any other is
    applied on top of it."""
    rule, source = _of_model(place)
    if yours is not None:
        rule = yours.at_layer(place.layer) if yours.sets_scale or rule is None else rule * yours.at_layer(place.layer)
        source = YOU
    if rule is None:
        return Declared("cosine", None, source)
    fixed = Product(tuple(part for part in rule.factors if not part.per_query))
    return Declared(str(rule), value_of(fixed, place.head_dim, 1024, place.heads), source)


def _of_model(place: LayerPlace) -> tuple[Rule | None, str]:
    """The model's own rule and where it was read. The rule is None for cosine attention with a learned temperature."""
    if isinstance(own := getattr(place.module, "declares", None), Rule):
        return own, "rule"
    if place.config is None:
        return InverseSqrt(), CONVENTION
    if place.model_type in _COSINE:
        return None, _architecture(place)
    rule, source = _base(place)
    factor, rope = _rope(place)
    return (rule, source) if factor is None else (rule * factor, f"{source}, {rope}")


def _base(place: LayerPlace) -> tuple[Rule, str]:
    special = _ARCHITECTURES.get(place.model_type)
    if special is not None:
        return special(place)
    if (scalar := place.get("query_pre_attn_scalar")) is not None:
        return Fixed(float(scalar) ** -0.5), f"query_pre_attn_scalar = {scalar}"
    if (number := place.get("attention_multiplier")) is not None:
        return Fixed(float(number)), f"attention_multiplier = {number}"
    if (scalar := place.get("attention_scores_scalar")) is not None:
        return Fixed(float(scalar) ** -0.5), f"attention_scores_scalar = {scalar}"
    if not type(place.module).__module__.startswith("transformers."):
        return InverseSqrt(), CONVENTION
    return InverseSqrt(), _architecture(place) if place.model_type in _INVERSE_SQRT else ASSUMED


def _architecture(place: LayerPlace) -> str:
    return f"architecture ({place.model_type})"


def _unscaled(place: LayerPlace) -> tuple[Rule, str]:
    return NoScale(), _architecture(place)


def _gpt2(place: LayerPlace) -> tuple[Rule, str]:
    scaled, by_layer = place.get("scale_attn_weights", True), place.get("scale_attn_by_inverse_layer_idx", False)
    rule: Rule = InverseSqrt() if scaled else NoScale()
    if by_layer and not getattr(place.module, "is_cross_attention", False):
        rule = rule * ByLayer(place.layer)
    return rule, f"scale_attn_weights = {scaled}, scale_attn_by_inverse_layer_idx = {by_layer}"


def _mla(place: LayerPlace) -> tuple[Rule, str]:
    """DeepSeek's latent attention: 1/√d over the whole query, times m² under YaRN."""
    rope = _rope_parameters(place)
    m, factor = rope.get("mscale_all_dim"), rope.get("factor")
    if m and factor and float(factor) > 1 and rope.get("rope_type", rope.get("type", "default")) != "default":
        return InverseSqrt() * DeepSeekMscale(float(factor), float(m)), f"mscale_all_dim = {m}, factor = {factor}"
    return InverseSqrt(), _architecture(place)


def _longcat(place: LayerPlace) -> tuple[Rule, str]:
    """LongCat's latent attention multiplies q by √(width / rank) after its projection."""
    rule, source = _mla(place)
    width, rank = place.get("hidden_size"), place.get("q_lora_rank")
    return (rule * Relative(sqrt(width / rank)), f"q_lora_rank = {rank}") if width and rank else (rule, source)


def _mpt(place: LayerPlace) -> tuple[Rule, str]:
    scale = getattr(place.get("attn_config"), "softmax_scale", None)
    return (Fixed(float(scale)), f"softmax_scale = {scale}") if scale else (InverseSqrt(), _architecture(place))


def _deberta(place: LayerPlace) -> tuple[Rule, str]:
    """Disentangled attention adds content and position terms and divides by the spread of their sum: 1/√(d·terms)."""
    terms = 1 + sum(term in (place.get("pos_att_type") or ()) for term in ("c2p", "p2c"))
    return Fixed(1 / sqrt(place.head_dim * terms)), f"pos_att_type gives {terms} terms"


def _zamba2(place: LayerPlace) -> tuple[Rule, str]:
    """Heads are twice as wide as usual, since they read the first layer's input as well; the scale is that of half a head."""
    return Fixed((place.head_dim / 2) ** -0.5), _architecture(place)


_MLA = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "longcat_flash", "glm4_moe_lite", "minicpm3", "youtu")
_NO_SCALE = (
    "t5", "mt5", "umt5", "longt5", "switch_transformers", "pop2piano", "udop", "pix2struct", "pix2struct_text_model",
    "gpt_neo", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text",
)  # fmt: skip
_COSINE = ("swinv2", "swin2sr")
_INVERSE_SQRT = frozenset((
    "albert", "arcee", "bart", "beit", "bert", "bert-generation", "biogpt", "blenderbot", "bloom", "camembert", "clip",
    "clip_text_model", "clip_vision_model", "codegen", "cohere", "cohere2", "data2vec-text", "deit", "dinov2", "distilbert",
    "electra", "ernie", "esm", "falcon", "gemma", "glm", "glm4", "gpt_neox", "gpt_oss", "gptj", "hubert", "layoutlm", "llama",
    "llama4_text", "m2m_100", "marian", "mbart", "mistral", "mixtral", "modernbert", "mpnet", "nemotron", "olmo", "olmo2",
    "olmoe", "openai-gpt", "opt", "pegasus", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "rembert",
    "roberta", "siglip_text_model", "siglip_vision_model", "smollm3", "stablelm", "starcoder2", "vit", "vit_mae", "wav2vec2",
    "whisper", "xglm", "xlm-roberta", "xlnet",
))  # fmt: skip
"""Architectures whose papers or original code divide by √d. A class of theirs that does not is wrong, whoever installed it."""
_ARCHITECTURES: dict[str, Callable[[LayerPlace], tuple[Rule, str]]] = {
    **dict.fromkeys(_MLA, _mla),
    **dict.fromkeys(_NO_SCALE, _unscaled),
    **dict.fromkeys(("gpt2", "imagegpt", "decision_transformer", "gpt_bigcode"), _gpt2),
    **dict.fromkeys(("deberta", "deberta-v2"), _deberta),
    "longcat_flash": _longcat,
    "mpt": _mpt,
    "zamba2": _zamba2,
}


def _rope_parameters(place: LayerPlace) -> dict[str, Any]:
    """The rotary parameters under either of transformers' names; of one dict per layer type, this layer's."""
    found = place.get("rope_parameters") or place.get("rope_scaling") or {}
    found = dict(found)
    if found and all(isinstance(inner, dict) for inner in found.values()):
        kinds = place.get("layer_types") or []
        kind = kinds[place.layer] if place.layer < len(kinds) else next(iter(found))
        found = dict(found.get(kind) or {})
    return found


def _rope(place: LayerPlace) -> tuple[Rule | None, str]:
    """The factor that a stretched rotary embedding multiplies into the logits, and the keys it was read from."""
    rope = _rope_parameters(place)
    kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor")
    given = rope.get("attention_factor")
    original = rope.get("original_max_position_embeddings") or place.get("original_max_position_embeddings")
    if kind == "yarn" and factor:
        rule = YaRN(float(factor), given, rope.get("mscale"), rope.get("mscale_all_dim"))
        return rule, f"yarn factor = {factor}"
    if kind == "longrope":
        reach = place.get("max_position_embeddings")
        stretch = float(factor) if factor else (reach / original if reach and original else 1.0)
        if stretch > 1:
            return LongRoPE(stretch, int(original or reach), given), f"longrope factor = {stretch:g}"
    return None, ""
