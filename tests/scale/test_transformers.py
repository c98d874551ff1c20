"""The same numbers as the models in `transformers`: what reaches their attention function is what our rule makes."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isotherm.scale import (
    ByLayer,
    Cosine,
    DeepSeekMscale,
    Fixed,
    InverseSqrt,
    Llama4Temperature,
    LongRoPE,
    Ministral3Temperature,
    NoScale,
    PerDim,
    QKNorm,
    QueryPreAttnScalar,
    Rule,
    Sinks,
    Site,
    SoftCap,
    YaRN,
    value,
)

pytest.importorskip("transformers")

HEADS, KEY_HEADS, DIM, WIDTH, TOKENS = 6, 3, 14, 66, 5
SIZES = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": DIM,
    "num_hidden_layers": 2,
    "attn_implementation": "eager",
}


def modeling(family: str) -> Any:
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def build(family: str, config: str, attention: str, layer: int = 0, **options: Any) -> Any:
    """An attention layer of that family with small random weights."""
    configuration = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    torch.manual_seed(0)
    module = getattr(modeling(family), attention)(getattr(configuration, config)(**SIZES | options), layer)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run an attention layer and give back what its attention function is called with."""

    def run(family: str, attention: Any, name: str = "eager_attention_forward", **arguments: Any) -> dict[str, Any]:
        call: dict[str, Any] = {}

        def listen(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
            call.update(query=query, key=key, **options)
            return query.transpose(1, 2), None

        monkeypatch.setattr(modeling(family), name, listen)
        attention(**arguments)
        return call

    return run


def inputs() -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Hidden states, and a rotary embedding that rotates nothing."""
    hidden = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    return hidden, (torch.ones(1, TOKENS, DIM), torch.zeros(1, TOKENS, DIM))


def split(projected: Tensor) -> Tensor:
    return projected.view(2, TOKENS, -1, DIM).transpose(1, 2)


def site(positions: Tensor | None = None) -> Site:
    positions = torch.arange(TOKENS) if positions is None else positions
    return Site(DIM, HEADS, positions, torch.arange(1, TOKENS + 1).view(1, 1, -1))


@pytest.mark.parametrize(
    ("family", "config", "attention", "options", "rule"),
    [
        pytest.param("llama", "LlamaConfig", "LlamaAttention", {}, InverseSqrt(), id="llama"),
        pytest.param(
            "gemma2",
            "Gemma2Config",
            "Gemma2Attention",
            {"query_pre_attn_scalar": 224},
            QueryPreAttnScalar(224) * SoftCap(50),
            id="gemma-2",
        ),
        pytest.param("gemma3", "Gemma3TextConfig", "Gemma3Attention", {}, QueryPreAttnScalar(), id="gemma-3"),
        pytest.param(
            "granite",
            "GraniteConfig",
            "GraniteAttention",
            {"attention_multiplier": 0.015625},
            Fixed(0.015625),
            id="granite",
        ),
    ],
)
def test_constant(family: str, config: str, attention: str, options: dict[str, Any], rule: Rule, heard: Any) -> None:
    hidden, rotary = inputs()
    module = build(family, config, attention, **options)
    call = heard(family, module, hidden_states=hidden, position_embeddings=rotary, attention_mask=None)
    assert call["scaling"] == pytest.approx(value(rule, DIM, TOKENS), rel=1e-12)
    assert call.get("softcap") == rule.resolve(site()).softcap


@pytest.mark.parametrize("weights", [True, False], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("by_layer", [True, False], ids=["by-layer", "all-layers"])
def test_gpt2(weights: bool, by_layer: bool) -> None:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(
        n_embd=HEADS * DIM, n_head=HEADS, scale_attn_weights=weights, scale_attn_by_inverse_layer_idx=by_layer
    )
    rule = (InverseSqrt() if weights else NoScale()) * (ByLayer(4) if by_layer else NoScale())
    assert GPT2Attention(config, layer_idx=4).scaling == pytest.approx(value(rule, DIM, TOKENS), rel=1e-12)


def test_t5_does_not_scale() -> None:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    attention = T5Attention(T5Config(d_model=WIDTH, d_kv=DIM, num_heads=HEADS), layer_idx=0)
    assert attention.scaling == value(NoScale(), DIM, TOKENS)


def test_timesfm_per_dim(heard: Any) -> None:
    module = build("timesfm", "TimesFmConfig", "TimesFmAttention")
    hidden, _ = inputs()
    call = heard("timesfm", module, "simple_eager_attention_forward", hidden_states=hidden)
    q = split(module.q_proj(hidden))
    torch.testing.assert_close(call["query"] * call["scaling"], PerDim(module.scaling).resolve(site()).apply(q, q)[0])


def test_llama4_temperature(heard: Any) -> None:
    """floor_scale 3 and five tokens: the first two below the step, the rest above."""
    module = build(
        "llama4", "Llama4TextConfig", "Llama4TextAttention", no_rope_layers=[0, 0], floor_scale=3, attn_scale=0.25
    )
    hidden, rotary = inputs()
    call = heard("llama4", module, hidden_states=hidden, position_embeddings=rotary, attention_mask=None)
    q = split(module.q_proj(hidden))
    scaled, _ = Llama4Temperature(3, 0.25).resolve(site()).apply(q, q)
    torch.testing.assert_close(call["query"], scaled)
    assert not torch.allclose(scaled, q)


def test_ministral3_temperature(heard: Any) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 100,
        "max_position_embeddings": 1600,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.25,
    }
    module = build("ministral3", "Ministral3Config", "Ministral3Attention", rope_parameters=rope)
    hidden, rotary = inputs()
    positions = torch.tensor([0, 99, 100, 299, 300])
    call = heard(
        "ministral3",
        module,
        hidden_states=hidden,
        position_embeddings=rotary,
        attention_mask=None,
        position_ids=positions[None],
    )
    q = split(module.q_proj(hidden))
    scaled, _ = Ministral3Temperature(100, 0.25).resolve(site(positions)).apply(q, q)
    torch.testing.assert_close(call["query"], scaled)
    assert not torch.allclose(scaled, q)


def rope_factor(rope: dict[str, Any]) -> float:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(**SIZES, max_position_embeddings=65536, rope_parameters={"rope_theta": 1e4, **rope})
    factor: float = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, device="cpu")[1]
    return factor


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"attention_factor": 1.25}, id="attention-factor"),
        pytest.param({"mscale": 1.0, "mscale_all_dim": 1.0}, id="equal-mscales"),
        pytest.param({"mscale": 1.0, "mscale_all_dim": 0.5}, id="unequal-mscales"),
    ],
)
def test_yarn(options: dict[str, float]) -> None:
    rope = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, **options}
    assert rope_factor(rope) ** 2 == pytest.approx(value(YaRN(16.0, **options), DIM, TOKENS), rel=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"attention_factor": 1.25}], ids=["plain", "attention-factor"])
def test_longrope(options: dict[str, float]) -> None:
    ones = [1.0] * (DIM // 2)
    rope = {
        "rope_type": "longrope",
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "short_factor": ones,
        "long_factor": ones,
        **options,
    }
    assert rope_factor(rope) ** 2 == pytest.approx(value(LongRoPE(16.0, 4096, **options), DIM, TOKENS), rel=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("mscale_all_dim", [1.0, 0.707, 0.0])
@pytest.mark.parametrize("version", [2, 3], ids=["v2", "v3"])
def test_deepseek(version: int, mscale_all_dim: float) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": mscale_all_dim,
    }
    attention = build(
        f"deepseek_v{version}",
        f"DeepseekV{version}Config",
        f"DeepseekV{version}Attention",
        rope_parameters=rope,
        qk_nope_head_dim=10,
        qk_rope_head_dim=6,
    )
    rule = DeepSeekMscale(40.0, mscale_all_dim) * InverseSqrt()
    assert attention.scaling == pytest.approx(value(rule, 16, TOKENS), rel=1e-12)


@pytest.mark.parametrize(
    ("family", "config", "attention", "options", "kind", "over"),
    [
        pytest.param("qwen3", "Qwen3Config", "Qwen3Attention", {}, "rms", "head", id="qwen-3"),
        pytest.param("gemma3", "Gemma3TextConfig", "Gemma3Attention", {}, "rms", "head", id="gemma-3"),
        pytest.param("olmo2", "Olmo2Config", "Olmo2Attention", {}, "rms", "width", id="olmo-2"),
        pytest.param("cohere", "CohereConfig", "CohereAttention", {"use_qk_norm": True}, "layer", "head", id="cohere"),
    ],
)
def test_qk_norm(
    family: str, config: str, attention: str, options: dict[str, Any], kind: Any, over: Any, heard: Any
) -> None:
    module = build(family, config, attention, **options)
    hidden, rotary = inputs()
    call = heard(family, module, hidden_states=hidden, position_embeddings=rotary, attention_mask=None)
    shift = 1 if family == "gemma3" else 0
    eps = getattr(module.q_norm, "variance_epsilon", None) or module.q_norm.eps
    rule = QKNorm(kind, over, eps, module.q_norm.weight + shift, module.k_norm.weight + shift)
    q, k = rule.resolve(site()).apply(split(module.q_proj(hidden)), split(module.k_proj(hidden)))
    torch.testing.assert_close(call["query"], q)
    torch.testing.assert_close(call["key"], k)


def test_llama4_norm_is_rms_in_spite_of_its_name() -> None:
    norm = modeling("llama4").Llama4TextL2Norm(1e-5)
    q = torch.randn(2, HEADS, TOKENS, DIM)
    torch.testing.assert_close(norm(q), QKNorm(eps=1e-5).resolve(site()).apply(q, q)[0])


def test_swin_v2_cosine() -> None:
    from transformers import Swinv2Config

    torch.manual_seed(0)
    attention = modeling("swinv2").Swinv2SelfAttention(Swinv2Config(), HEADS * DIM, HEADS, 3).eval()
    for parameter in attention.continuous_position_bias_mlp.parameters():
        nn.init.zeros_(parameter)  # a constant bias, which a softmax does not see
    assert attention.logit_scale.exp().flatten().tolist() == pytest.approx([value(Cosine(), DIM, 9)] * HEADS)
    with torch.no_grad():
        attention.logit_scale.copy_(torch.linspace(0, 5, HEADS).view(-1, 1, 1))
    hidden = torch.randn(2, 9, HEADS * DIM)
    weights = attention(hidden, output_attentions=True)[1]
    q, k = (p(hidden).view(2, 9, HEADS, DIM).transpose(1, 2) for p in (attention.query, attention.key))
    q, k = Cosine(attention.logit_scale.flatten()).resolve(Site.single(DIM, 9, HEADS)).apply(q, k)
    torch.testing.assert_close(weights, (q @ k.mT).softmax(-1))


def test_gpt_oss_sinks() -> None:
    module = build("gpt_oss", "GptOssConfig", "GptOssAttention")
    q, k, v = (torch.randn(2, heads, TOKENS, DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    theirs, _ = modeling("gpt_oss").eager_attention_forward(module, q, k, v, None, scaling=0.25)
    sink = Sinks(module.sinks).resolve(site()).sink
    assert sink is not None
    logits = q @ k.repeat_interleave(2, 1).mT * 0.25
    lse = logits.logsumexp(-1, keepdim=True)
    ours = logits.softmax(-1) @ v.repeat_interleave(2, 1) * (lse - torch.logaddexp(lse, sink.view(-1, 1, 1))).exp()
    torch.testing.assert_close(theirs.transpose(1, 2), ours)


def test_gemma2_soft_cap() -> None:
    """The cap comes after the scale, so a product of the two has one meaning."""
    module = build("gemma2", "Gemma2Config", "Gemma2Attention")
    q, k, v = (torch.randn(2, heads, TOKENS, DIM) * 5 for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    _, theirs = modeling("gemma2").eager_attention_forward(module, q, k, v, None, scaling=0.25, softcap=7.0)
    resolved = (SoftCap(7.0) * Fixed(0.25)).resolve(site())
    scaled, k = resolved.apply(q, k)
    assert resolved.softcap is not None
    capped = resolved.softcap * torch.tanh(scaled @ k.repeat_interleave(2, 1).mT / resolved.softcap)
    torch.testing.assert_close(theirs, capped.softmax(-1))
