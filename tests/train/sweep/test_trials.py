from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import ArgumentError
from isotherm.record import from_plain, to_plain
from isotherm.record.sweep import Trial
from isotherm.train.sweep.trials import check, groups, multiplier

OTHER = {
    "task": "reverse", "model": "decoder", "rule": "none", "width": 128, "heads": 2, "head_dim": 8, "layers": 3,
    "vocabulary": 99, "length": 7, "batch": 5, "steps": 3, "lr": 0.5, "warmup": 1, "seed": 9, "init": 0.5,
    "corpus": "a.txt", "test_lengths": (3,),
}  # fmt: skip


def test_a_key_is_stable_and_changes_with_every_field():
    assert Trial().key() == Trial().key()
    assert OTHER.keys() == {field.name for field in fields(Trial)}
    keys = {replace(Trial(), **{name: value}).key() for name, value in OTHER.items()}
    assert len(keys | {Trial().key()}) == len(OTHER) + 1


def test_a_trial_survives_json():
    trial = replace(Trial(), **OTHER)
    assert from_plain(Trial, to_plain(trial)) == trial


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"task": "sing"}, "task: expected copy"),
        ({"model": "perceptron"}, "model: expected transformer"),
        ({"rule": "logn"}, "^rule: expected .*nearest: log-n"),
        ({"rule": "softcap:-1"}, "^softcap: expected"),
        ({"model": "recurrent", "rule": "1/sqrt(d)"}, "rule: expected additive"),
        ({"lr": 0.0}, "lr"),
        ({"init": float("inf")}, "init"),
        ({"steps": 0}, "steps"),
        ({"width": 30, "heads": 4}, "width: expected a multiple of heads"),
        ({"task": "text", "model": "decoder"}, "corpus: expected a file"),
        ({"corpus": "a.txt"}, "corpus: expected nothing"),
        ({"task": "text", "corpus": "a.txt"}, "model: expected decoder"),
        ({"model": "recurrent", "rule": "dot", "init": 0.5}, "init: expected 1"),
        ({"test_lengths": (0,)}, "test_lengths"),
        ({"width": 2**17, "layers": 1024}, "width, heads, layers: expected fewer than"),
        ({"steps": True}, "steps: expected a whole number, got True"),
        ({"layers": 10**20}, "layers: expected 1 to 1024"),
    ],
)
def test_a_trial_that_cannot_be_run_is_refused(changes, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        check(replace(Trial(), **changes))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", 1.0),
        ("1/sqrt(d)", 0.25),
        ("1/d", 1 / 16),
        ("0.3", 0.3),
        ("x2*1/d", 1 / 8),
        ("qk-norm", None),
        ("ssmax", None),
    ],
)
def test_a_rule_of_one_number_is_that_number(rule, expected):
    assert multiplier(Trial(rule=rule, width=64, heads=4)) == expected


def test_trials_that_differ_in_numbers_alone_form_one_group():
    trials = [
        Trial(rule=rule, seed=seed, lr=lr, init=init, warmup=warmup)
        for rule in ("none", "1/d")
        for seed, lr, init, warmup in ((0, 1e-3, 1.0, 5), (1, 1e-2, 0.5, 7))
    ]
    different = [replace(Trial(), rule="qk-norm"), replace(Trial(), width=128), replace(Trial(), steps=7)]
    made = groups([*trials, *different], most=64)
    assert [len(group) for group in made] == [4, 1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([32, 64])), min_size=1, max_size=20), st.integers(1, 7))
def test_groups_hold_every_trial_once_and_keep_their_order(pairs, most):
    trials = [Trial(seed=seed, width=width) for seed, width in pairs]
    made = groups(trials, most)
    assert sorted(trial.key() for group in made for trial in group) == sorted({trial.key() for trial in trials})
    assert all(len(group) <= most for group in made)
    assert all(len({trial.width for trial in group}) == 1 for group in made)
    assert made == groups(list(dict.fromkeys(trials)), most)
