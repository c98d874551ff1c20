"""Implementations that this machine cannot run as they are: flex without its compiler, flash, paged caches; and the ways
older releases kept their table."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isotherm.ops import blockwise
from isotherm.probe import probe
from tests.probe.architectures import build

transformers = pytest.importorskip("transformers")

BATCH, HEADS, KEY_HEADS, DIM = 2, 4, 2, 8


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """What a flash kernel computes, written out: causal from the bottom right, a window, a padding mask, a sink."""
    rows, keys = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    s = query @ key.repeat_interleave(group, 1).mT * (options.get("scaling") or DIM**-0.5)
    offset = torch.arange(keys) - (torch.arange(rows).view(-1, 1) + keys - rows)
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if options.get("is_causal", True):
        seen &= offset <= 0
    if options.get("sliding_window") is not None:
        seen &= offset.abs() < options["sliding_window"]
    s = s.masked_fill(~seen, -torch.inf)
    if attention_mask is not None:
        s = s.masked_fill(~attention_mask.bool().view(BATCH, 1, 1, keys), -torch.inf)
    p = s.softmax(-1)
    module.kept = p
    return (p @ value.repeat_interleave(group, 1)).transpose(1, 2), None


class Caller(nn.Module):
    """An attention layer that asks the table, as a model of transformers does."""

    def __init__(self, rows: int, **options: Any) -> None:
        super().__init__()
        self.rows, self.options, self.is_causal = rows, options, True
        self.name = "flash_attention_2"

    def forward(self, k: Tensor) -> Tensor:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        q = k.repeat_interleave(2, 1)[:, :, -self.rows :] * 1.5
        options = {"scaling": 0.3, **self.options}
        return ALL_ATTENTION_FUNCTIONS[self.name](self, q, k, k.cos(), **options)[0]


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import AttentionInterface

    for name in ("flash_attention_2", "paged|eager"):
        monkeypatch.setitem(AttentionInterface._global_mapping, name, attend)


class ByKeyword(Caller):
    """The same, and names every argument but itself, as Parakeet does."""

    def forward(self, k: Tensor) -> Tensor:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        named = {"query": k.repeat_interleave(2, 1), "key": k, "value": k.cos(), "attention_mask": None, "scaling": 0.3}
        return ALL_ATTENTION_FUNCTIONS[self.name](self, **named)[0]


@pytest.mark.usefixtures("flash")
def test_arguments_by_keyword():
    model, k = ByKeyword(7), torch.randn(BATCH, KEY_HEADS, 7, DIM, generator=torch.Generator().manual_seed(1))
    with probe(model) as seen:
        model(k)
    assert [capture.passed for capture in seen.captures] == [0.3]


PADDING = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("rows", [7, 3, 1])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("mask", [None, PADDING], ids=["whole", "padded"])
def test_flash(rows: int, window: int | None, mask: Tensor | None):
    model = Caller(rows, attention_mask=mask, sliding_window=window)
    k = torch.randn(BATCH, KEY_HEADS, 7, DIM, generator=torch.Generator().manual_seed(1))
    with probe(model) as seen:
        model(k)
    assert seen.unseen == []
    (capture,) = seen.captures
    assert (capture.implementation, capture.passed, capture.kind) == ("flash_attention_2", 0.3, "self")
    stats = blockwise.statistics(capture.problem)
    truth = -torch.special.xlogy(model.kept, model.kept).double().sum(-1)
    torch.testing.assert_close(stats.entropy[~stats.empty], truth[~stats.empty], rtol=0, atol=1e-5)
    assert torch.equal(stats.empty, model.kept.isnan().any(-1))


def counted(calls: list[str], function: Any) -> Any:
    def call(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
        calls.append("run")
        return function(module, query, key, value, attention_mask, **options)

    return call


def test_without_a_scale_the_default_is_assumed_and_the_function_runs_once(monkeypatch: pytest.MonkeyPatch):
    from transformers.modeling_utils import AttentionInterface

    calls: list[str] = []
    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", counted(calls, attend))
    with probe(model := Caller(7, attention_mask=None, scaling=None)) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    (capture,) = seen.captures
    assert (capture.passed, capture.problem.scale) == (None, pytest.approx(DIM**-0.5))
    assert calls == ["run"]


RUNS: list[str] = []


def eager_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **_: Any) -> Any:
    """Attention in which nothing but the mask hides a key."""
    RUNS.append("run")
    k, v = (x.repeat_interleave(2, 1) for x in (key, value))
    s = query @ k.mT * 0.3
    s = s if attention_mask is None else s.masked_fill(~attention_mask, -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2), None


class Eager(Caller):
    def forward(self, k: Tensor) -> Tensor:
        return eager_attention(self, k.repeat_interleave(2, 1), k, k.cos(), None, scaling=0.3)[0]


@pytest.mark.parametrize("kind", [Caller, Eager], ids=["sdpa with a mask", "eager without one"])
def test_is_causal_counts_for_kernels_without_a_mask_only(kind: type[Caller], monkeypatch: pytest.MonkeyPatch):
    """`is_causal` of the module is True here, and nothing is causal. The function runs once: its arguments were understood."""
    from transformers.modeling_utils import AttentionInterface

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", eager_attention)
    RUNS.clear()
    model = kind(7, attention_mask=torch.ones(BATCH, 1, 7, 7, dtype=torch.bool))
    model.name = "sdpa"
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    (capture,) = seen.captures
    assert blockwise.statistics(capture.problem).n.unique().tolist() == [7]
    assert len(RUNS) == 1


def biased(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """Attention with a bias that was made for a longer cache."""
    k, v = (x.repeat_interleave(2, 1) for x in (key, value))
    s = query @ k.mT * options["scaling"] + options["position_bias"][..., : key.shape[2]]
    return (s.softmax(-1) @ v).transpose(1, 2), None


def test_a_bias_longer_than_the_keys_is_cut(monkeypatch: pytest.MonkeyPatch):
    from transformers.modeling_utils import AttentionInterface

    calls: list[str] = []
    monkeypatch.setitem(AttentionInterface._global_mapping, "eager_of_ours", counted(calls, biased))
    bias = torch.randn(1, HEADS, 7, 11, generator=torch.Generator().manual_seed(2))
    model = Caller(7, attention_mask=None, position_bias=bias, is_causal=False)
    model.name = "eager_of_ours"
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    (capture,) = seen.captures
    assert torch.equal(capture.problem.bias, bias[..., :7])
    assert calls == ["run"]


def masked(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """Attention with a mask that was made for a longer cache."""
    k, v = (x.repeat_interleave(2, 1) for x in (key, value))
    s = (query @ k.mT * options["scaling"]).masked_fill(~attention_mask[..., : key.shape[2]], -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2), None


def test_a_mask_longer_than_the_keys_is_cut(monkeypatch: pytest.MonkeyPatch):
    from transformers.modeling_utils import AttentionInterface

    calls: list[str] = []
    monkeypatch.setitem(AttentionInterface._global_mapping, "eager_of_ours", counted(calls, masked))
    mask = torch.rand(BATCH, 1, 7, 11, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[..., 0] = True
    model = Caller(7, attention_mask=mask, is_causal=False)
    model.name = "eager_of_ours"
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    (capture,) = seen.captures
    assert torch.equal(capture.problem.visibility.mask, mask[..., :7])
    assert calls == ["run"]


@pytest.mark.usefixtures("flash")
def test_a_paged_cache_is_listed():
    model = Caller(7, attention_mask=None)
    model.name = "paged|eager"
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    assert seen.captures == []
    assert [entry.module for entry in seen.unseen] == ["Caller"]
    assert "paged" in seen.unseen[0].why.en


@pytest.mark.usefixtures("flash")
def test_an_implementation_that_ignores_what_it_is_told_is_not_believed():
    """`attend` knows no soft cap: what it did is captured, not what it was asked for."""
    model = Caller(7, attention_mask=None, softcap=0.5)
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    assert seen.unseen == []
    (capture,) = seen.captures
    assert (capture.implementation, capture.problem.softcap, capture.passed) == ("flash_attention_2", None, 0.3)
    truth = -torch.special.xlogy(model.kept, model.kept).double().sum(-1)
    torch.testing.assert_close(blockwise.statistics(capture.problem).entropy, truth, rtol=0, atol=1e-5)


def opaque(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """A kernel nobody can look into, that does something of its own."""
    return value.repeat_interleave(2, 1).cumsum(2).transpose(1, 2), None


def test_a_kernel_that_does_something_else_and_shows_nothing_is_listed(monkeypatch: pytest.MonkeyPatch):
    from transformers.modeling_utils import AttentionInterface

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", opaque)
    model = Caller(7, attention_mask=None)
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    assert seen.captures == []
    assert "does not give the model's own result" in seen.unseen[0].why.en


def twice(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """The difference of two attentions: neither of them is the call."""
    k, v = (x.repeat_interleave(2, 1) for x in (key, value))
    one, other = (torch.nn.functional.scaled_dot_product_attention(query, k, v, scale=s) for s in (1.0, 0.1))
    return (one - other).transpose(1, 2), None


def test_a_function_with_two_attentions_inside_is_listed(monkeypatch: pytest.MonkeyPatch):
    from transformers.modeling_utils import AttentionInterface

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", twice)
    model = Caller(7, attention_mask=None)
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    assert seen.captures == []
    assert "does not give the model's own result" in seen.unseen[0].why.en


def forgetful(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """Forgets the scale it is handed (transformers #44380), and drops some weights; fails when asked a second time."""
    module.calls += 1
    if module.calls > module.patience:
        raise RuntimeError("once is enough")
    k, v = (x.repeat_interleave(2, 1) for x in (key, value))
    p = options["dropout"]
    return torch.nn.functional.scaled_dot_product_attention(query, k, v, dropout_p=p).transpose(1, 2), None


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("patience", [10, 1], ids=["repeatable", "fails-again"])
def test_looking_again_at_a_forgotten_scale_disturbs_nothing(
    dropout: float, patience: int, monkeypatch: pytest.MonkeyPatch
):
    from transformers.modeling_utils import AttentionInterface

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", forgetful)
    model = Caller(7, attention_mask=None, dropout=dropout, is_causal=False)
    model.patience = patience
    k = torch.randn(BATCH, KEY_HEADS, 7, DIM, requires_grad=True)
    outcomes = []
    for watched in (False, True):
        model.calls = 0
        torch.manual_seed(5)
        if watched:
            with probe(model) as seen:
                outcomes.append((model(k), torch.get_rng_state()))
        else:
            outcomes.append((model(k), torch.get_rng_state()))
    (plain, state), (probed, state_after) = outcomes
    assert torch.equal(plain, probed)
    assert torch.equal(state, state_after), "the second look drew random numbers"
    if patience > 1:
        assert seen.unseen == []
        (capture,) = seen.captures
        assert (capture.passed, capture.problem.scale) == (0.3, pytest.approx(DIM**-0.5))
        assert capture.problem.k.shape[1] == KEY_HEADS
    else:
        assert seen.captures == []
        assert "once is enough" in seen.unseen[0].why.en


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral"])
def test_flex(name: str, monkeypatch: pytest.MonkeyPatch):
    from torch.nn.attention.flex_attention import flex_attention
    from transformers.integrations import flex_attention as integration

    def uncompiled(q: Tensor, k: Tensor, v: Tensor, training: bool = False, **options: Any) -> Any:
        return flex_attention(q, k, v, **options)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", uncompiled)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :2] = 0
    entropies = []
    for attention in ("flex_attention", "eager"):
        model, batch = build(name, attention, head_dim=16)
        with torch.no_grad():
            plain = model(**batch, attention_mask=mask).logits
            with probe(model) as seen:
                assert torch.equal(plain, model(**batch, attention_mask=mask).logits)
        assert seen.unseen == []
        assert {capture.implementation for capture in seen.captures} == {attention}
        entropies.append([blockwise.statistics(capture.problem).entropy for capture in seen.captures])
    for one, other in zip(*entropies, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4, equal_nan=True)


def test_a_plain_dict_as_in_older_releases(monkeypatch: pytest.MonkeyPatch):
    from transformers import modeling_utils

    table = {"flash_attention_2": attend}
    monkeypatch.setattr(modeling_utils, "ALL_ATTENTION_FUNCTIONS", table)
    model = Caller(7, attention_mask=None)
    with probe(model) as seen:
        assert table["flash_attention_2"] is not attend
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    assert len(seen.captures) == 1
    assert table == {"flash_attention_2": attend}


def test_a_files_own_table_is_wrapped_too(monkeypatch: pytest.MonkeyPatch):
    import sys

    from transformers.modeling_utils import AttentionInterface

    own = AttentionInterface()
    own["sdpa"] = attend
    monkeypatch.setattr(sys.modules[__name__], "ALL_ATTENTION_FUNCTIONS", own, raising=False)

    class Local(Caller):
        def forward(self, k: Tensor) -> Tensor:
            return own["sdpa"](self, k, k, k.cos(), None, scaling=0.3)[0]

    model = Local(7)
    with probe(model) as seen:
        model(torch.randn(BATCH, KEY_HEADS, 7, DIM))
    assert [capture.implementation for capture in seen.captures] == ["sdpa"]
    assert own._local_mapping == {"sdpa": attend}
