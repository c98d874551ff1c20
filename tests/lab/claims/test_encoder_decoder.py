from isotherm import scale
from isotherm.lab.claims.encoder_decoder.experiment import CLAIM

from .running import multiplies_by, run, value_of

SMALL = {"width": 24, "heads": 2, "vocabulary": 9, "length": 3, "steps": 90, "seeds": 3}


def test_it_runs_agrees_and_learns():
    record = run(CLAIM, **SMALL)
    assert record.verdict == CLAIM.expected
    assert value_of(record, "held-out words right") > 0.95


def test_the_same_seed_gives_the_same_record():
    few = {**SMALL, "steps": 4}
    assert run(CLAIM, **few) == run(CLAIM, **few)


def test_a_model_that_has_not_learned_refutes_it():
    assert run(CLAIM, **{**SMALL, "steps": 2}).verdict == "refuted"


def test_another_scale_is_no_longer_the_original_transformer(monkeypatch):
    monkeypatch.setattr(scale.InverseSqrt, "resolve", multiplies_by(1 / 12))
    record = run(CLAIM, **{**SMALL, "steps": 2})
    assert value_of(record, "largest difference from torch.nn's layers: logits") > 1e-3
    assert record.verdict == "refuted"
