"""The atlas: an ordered table of every rule in use.

`find` looks up a name; `parse` reads a rule as typed on a command line.
"""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import isfinite

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.caps import Sigmoid, Sinks, SoftCap, SoftmaxPlusOne
from isotherm.scale.constants import ByLayer, Fixed, InverseSqrt, MuP, NoScale, QueryPreAttnScalar, Relative
from isotherm.scale.context import Llama4Temperature, LogN, Ministral3Temperature, ScalableSoftmax
from isotherm.scale.learned import PerDim, PerHead
from isotherm.scale.norms import Cosine, QKNorm
from isotherm.scale.rope import DeepSeekMscale, LongRoPE, YaRN
from isotherm.scale.rule import Fold, Product, Rule

Argument = int | float | str | None


@dataclass(frozen=True)
class Entry:
    """One line of the atlas. `example` is the rule to tabulate, or None for a method that acts on weights or the loss."""

    name: str
    formula: str
    citation: str
    sentence: Text
    fold: Fold
    config_keys: tuple[str, ...]
    where: tuple[str, ...]
    example: Rule | None


def _entry(rule: Rule, *where: str) -> Entry:
    return Entry(rule.name, rule.formula, rule.citation, rule.sentence, rule.fold, rule.config_keys, where, rule)


_ENTRIES = (
    _entry(InverseSqrt(), "nearly every transformer"),
    _entry(MuP(), "Megatron-LM with use_mup", "Cerebras BTLM"),
    _entry(NoScale(), "T5", "Gemma 3n", "Gemma 4"),
    _entry(Fixed(0.015625), "Granite", "HyperCLOVA X"),
    _entry(QueryPreAttnScalar(), "Gemma 2", "Gemma 3", "T5Gemma", "VaultGemma"),
    _entry(ByLayer(11), "GPT-2 with scale_attn_by_inverse_layer_idx"),
    _entry(PerHead(), "ViT with locality self-attention"),
    _entry(PerDim(), "TimesFM"),
    _entry(LogN(), "Qwen (first generation)"),
    _entry(ScalableSoftmax()),
    _entry(Llama4Temperature(), "Llama 4"),
    _entry(Ministral3Temperature(), "Ministral 3", "Mistral 4"),
    _entry(YaRN(4.0), "gpt-oss", "Qwen 2.5 and 3 beyond 32k"),
    _entry(LongRoPE(32.0), "Phi-3", "Phi-4-mini"),
    _entry(DeepSeekMscale(40.0), "DeepSeek-V2", "DeepSeek-V3", "Kimi K2"),
    _entry(QKNorm(), "Qwen 3", "Gemma 3", "OLMo 2", "StableLM 2", "Cohere", "Llama 4"),
    _entry(Cosine(), "Swin v2"),
    _entry(SoftCap(50.0), "Gemma 2 (50)", "Grok-1 (30)"),
    _entry(SoftmaxPlusOne()),
    _entry(Sinks(), "gpt-oss", "MiMo-V2-Flash"),
    _entry(Sigmoid()),
    Entry(
        "qk-clip",
        "W_q ← γ^α·W_q, W_k ← γ^(1−α)·W_k, γ = min(1, τ/max s)",
        "Kimi K2, Moonshot AI 2025, arXiv:2507.20534",
        Text(
            "After an optimizer step, shrinks the weights of every head whose logits passed 100.",
            "优化器每步之后，缩小 logits 超过 100 的头的权重。",
        ),
        Fold.W,
        ("qk_clip", "qk_clip_threshold", "qk_clip_alpha"),
        ("Kimi K2", "Megatron-LM with qk_clip"),
        None,
    ),
    Entry(
        "sigma-reparam",
        "Ŵ = γ/σ(W)·W",
        "Zhai et al. 2023, arXiv:2303.06296",
        Text(
            "Makes the spectral norm of each weight one learned number, which keeps the entropy from collapsing.",
            "把每个权重的谱范数变成一个可学习的数，防止注意力熵坍缩。",
        ),
        Fold.W,
        (),
        (),
        None,
    ),
    Entry(
        "z-loss",
        "w·Σ_heads (Σ_layers lse)², w = 1e-4",
        "Zoph et al. 2022, arXiv:2202.08906; x-transformers",
        Text(
            "A term of the loss that pulls the softmax's normaliser towards 1.",
            "损失中的一项，把 softmax 的归一化因子拉向 1。",
        ),
        Fold.L,
        ("attn_z_loss_weight",),
        ("x-transformers",),
        None,
    ),
)

ATLAS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}

_ALIASES = {"1/√d": "1/sqrt(d)", "mup": "1/d", "softmax-1": "softmax1"}


def find(name: str) -> Entry:
    """The atlas entry of that name.

    >>> find("logn")
    Traceback (most recent call last):
    isotherm.errors.ArgumentError: scale: expected a rule of the atlas (nearest: log-n, longrope), got 'logn'
    """
    key = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if key in ATLAS:
        return ATLAS[key]
    near = get_close_matches(key, [*ATLAS, *_ALIASES], n=3, cutoff=0.5)
    expected = (
        Text("a rule of the atlas (nearest: {names})", "规则表中的规则（相近的有：{names}）")
        if near
        else Text(
            "a rule of the atlas ({names}), a number above 0 or a factor such as x0.5",
            "规则表中的规则（{names}）、大于 0 的数，或 x0.5 这样的倍数",
        )
    )
    raise ArgumentError("scale", expected.format(names=", ".join(near or ATLAS)), got=repr(name))


def parse(text: str) -> Rule:
    """Read a rule's short form: a name with arguments after a colon, a number, `x0.5` (a factor), or a product of these.

    >>> parse("softcap:50 * 1/sqrt(d)")
    Product(rules=(SoftCap(cap=50), InverseSqrt()))
    >>> parse("log-n:512"), parse("0.125"), parse("1/8"), parse("x0.5")
    (LogN(train_length=512), Fixed(value=0.125), Fixed(value=0.125), Relative(factor=0.5))
    """
    rules = [_factor(part.strip(), text) for part in text.split("*")]
    return rules[0] if len(rules) == 1 else Product(tuple(rules))


def _factor(part: str, text: str) -> Rule:
    if not part:
        raise ArgumentError("scale", Text("a rule on each side of *", "* 两侧各一条规则"), got=repr(text))
    number = _number(part)
    if number is not None:
        return Fixed(float(number))
    times = _number(part[1:]) if part[0] in "x×" else None
    if times is not None:
        return Relative(float(times))
    name, colon, rest = part.partition(":")
    entry = find(name)
    if entry.example is None:
        expected = Text("a rule for attention ({name} acts outside it)", "注意力中的规则（{name} 作用于注意力之外）")
        raise ArgumentError("scale", expected.format(name=entry.name), got=repr(part))
    arguments = [_argument(word.strip()) for word in rest.split(",")] if colon else []
    try:
        return type(entry.example)(*arguments)
    except TypeError:
        names = ",".join(argument.name for argument in fields(type(entry.example)))  # type: ignore[arg-type]
        expected = Text("{name}, with these values after a colon: {values}", "{name}，冒号后依次为：{values}")
        raise ArgumentError("scale", expected.format(name=entry.name, values=names or "-"), got=repr(part)) from None


def _argument(word: str) -> Argument:
    number = _number(word)
    return (None if word == "none" else word) if number is None else number


def _number(word: str) -> int | float | None:
    top, slash, bottom = word.partition("/")
    try:
        if slash:
            return float(top) / float(bottom)
        number = float(word)  # of 400 digits: inf
        return int(word) if word.lstrip("+-").isdigit() and isfinite(number) else number
    except (ValueError, ZeroDivisionError):
        return None
