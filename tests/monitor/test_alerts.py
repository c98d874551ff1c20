"""Alerts: told when and where a rule begins to hold, once, and not for healthy runs."""

from dataclasses import replace

import numpy as np
import pytest

from isotherm.language import LANGUAGES
from isotherm.monitor import demo
from isotherm.monitor.alerts import QUIET, Alarms
from isotherm.monitor.detectors import DEFAULT, EARLY, WINDOW
from tests.monitor.runs import LAYERS, reading


def changed(one, **values):
    """The reading with some values set: name=(places, value)."""
    arrays = {name: array.copy() for name, array in one.values.items()}
    for name, (places, value) in values.items():
        arrays[name][places] = value
    return replace(one, values=arrays)


def told(alarms, readings):
    return [(event.step, event.rule, event.layer, event.head) for one in readings for event in alarms.look(one)]


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_is_quiet(seed):
    """Logits settle from 5 to 25, entropy halves, a head specialises: what training does."""
    alarms, chance = Alarms(LAYERS), np.random.default_rng(seed)
    for step in range(0, 5000, 50):
        settled = 1 - np.exp(-step / 800)
        one = reading(step, seed=seed)
        noise = np.exp(0.15 * chance.standard_normal(12)).astype(np.float32)
        entropy = one.values["entropy"] * np.float32(1 - 0.5 * settled)
        one = replace(one, values=one.values | {"max_logit": one.values["max_logit"] * (1 + 4 * settled) * noise})
        one = changed(replace(one, values=one.values | {"entropy": entropy}), entropy=(3, 0.05), saturated=(3, settled))
        assert alarms.look(one) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_training_run_is_quiet(seed):
    """A transformer that learns to repeat what it read, whose heads become sharp on the way."""
    assert demo.train(seed, demo.STEPS, 1.0).alerted is None


@pytest.mark.parametrize(
    ("value", "rules"), [(99, []), (101, ["max-logit-100"]), (2e4, ["max-logit-1e4", "max-logit-100"])]
)
def test_a_logit_past_a_limit_is_told_with_its_head(value, rules):
    found = Alarms(LAYERS).look(changed(reading(50), max_logit=(6, value)))
    assert [(event.rule, event.layer, event.head, event.kind) for event in found] == [
        (rule, 1, 2, "alert") for rule in rules
    ]
    assert all(event.numbers["max_logit"] == value for event in found)


def test_the_worst_head_speaks_for_its_layer():
    (event,) = Alarms(LAYERS).look(changed(reading(50), max_logit=([4, 5, 7], [150, 400, 120])))
    assert (event.layer, event.head, event.numbers["heads"]) == (1, 1, 3)
    assert str(event.message) == (
        "layer 1, head 1: the largest logit is 400, past 100 (and 2 more of the layer's heads)"
    )
    assert event.message.zh == "第 1 层第 1 头：最大 logit 为 400，超过 100（该层另有 2 个头亦然）"


def test_an_alert_is_told_once_until_it_has_been_quiet():
    alarms, hot = Alarms(LAYERS), {"max_logit": (0, 200)}
    calm = [reading(step) for step in range(100)]
    run = [changed(one, **hot) for one in calm[:10]] + calm[10 : 10 + QUIET - 1] + [changed(calm[10 + QUIET], **hot)]
    assert told(alarms, run) == [(0, "max-logit-100", 0, 0)]
    again = [*calm[40 : 40 + QUIET], changed(calm[60], **hot), changed(calm[61], **hot)]
    assert told(alarms, again) == [(60, "max-logit-100", 0, 0)]


def test_a_second_head_of_the_layer_is_told_too():
    alarms = Alarms(LAYERS)
    run = [changed(reading(0), max_logit=(0, 200)), changed(reading(50), max_logit=([0, 1], [300, 200]))]
    assert told(alarms, run) == [(0, "max-logit-100", 0, 0), (50, "max-logit-100", 0, 1)]


def growing(rate, noise=0.05, start=5.0, steps=range(0, 4000, 50)):
    chance = np.random.default_rng(1)
    for step in steps:
        value = start * np.exp(rate * step + noise * chance.standard_normal())
        yield changed(reading(step), max_logit=(11, value))


def test_growth_is_told_before_the_limit_with_the_steps_between_which_it_passes():
    alarms = Alarms(LAYERS)
    events = [event for one in growing(0.001) for event in alarms.look(one)]
    passes = np.log(100 / 5) / 0.001  # step 2996
    first, second = [event for event in events if event.rule in ("logit-growth-100", "max-logit-100")][:2]
    assert (first.rule, first.layer, first.head) == ("logit-growth-100", 2, 3)
    assert passes - first.step > 500
    assert first.numbers["soon"] == pytest.approx(passes, abs=150)
    assert passes < first.numbers["late"] < passes + 1000
    assert "at this rate it passes 100 between step" in str(first.message)
    assert (second.rule, abs(second.step - passes) < 150) == ("max-logit-100", True)


@pytest.mark.parametrize("end", [60, 80])
def test_a_logit_that_settles_below_the_limit_is_not_told(end):
    alarms, chance = Alarms(LAYERS), np.random.default_rng(end)
    for step in range(0, 10_000, 50):
        value = (end - (end - 5) * np.exp(-step / 2000)) * np.exp(0.03 * chance.standard_normal())
        assert alarms.look(changed(reading(step), max_logit=(11, value))) == []


def test_large_logits_that_do_not_grow_are_not_told_as_growing():
    alarms, chance = Alarms(LAYERS), np.random.default_rng(0)
    for step in range(0, 20_000, 50):
        values = np.minimum(80 * np.exp(0.1 * chance.standard_normal(12)), 99)
        assert alarms.look(changed(reading(step), max_logit=(slice(None), values))) == []


def test_a_run_that_goes_back_is_measured_anew():
    alarms = Alarms(LAYERS)
    run = list(growing(0.002, noise=0.0))[:WINDOW]
    assert (
        told(alarms, [*run[: WINDOW - 1], *(replace(one, step=one.step - 10_000) for one in run[: WINDOW - 1])]) == []
    )


def test_entropy_that_collapses_is_told_for_its_layer():
    alarms = Alarms(LAYERS)
    early = reading(0).values["entropy"][4:8].mean()
    run = [reading(step) for step in range(EARLY)]
    run += [
        changed(reading(10), entropy=(slice(4, 8), 0.12 * early)),
        changed(reading(11), entropy=(slice(4, 8), 0.08 * early)),
    ]
    assert told(alarms, run) == [(11, "entropy-collapse", 1, None)]


def test_rows_that_saturate_are_told_for_their_layer_unless_they_began_so():
    alarms = Alarms(LAYERS)
    first = {"saturated": (slice(0, 4), 0.6)}
    run = [changed(reading(step), **first) for step in range(EARLY)]
    run.append(changed(reading(10), saturated=(slice(0, 8), 0.8)))
    (event,) = [event for one in run for event in alarms.look(one)]
    assert (event.step, event.rule, event.layer, event.head) == (10, "saturation", 1, None)
    assert str(event.message) == (
        f"layer 1: 80% of the rows are saturated (their gate is below 0.05); it began at {event.numbers['early']:.0%}"
    )


def test_nan_is_told_once_for_the_first_layer_that_had_it():
    alarms = Alarms(LAYERS)
    sick = changed(reading(50), invalid=(slice(5, 12), 0.25), max_logit=(slice(5, 12), np.nan))
    assert told(alarms, [reading(0), sick, replace(sick, step=100)]) == [(50, "invalid", 1, 1)]
    assert told(Alarms(LAYERS), [changed(reading(0), max_logit=(2, np.inf))])[0] == (0, "invalid", 0, 2)


def test_a_layer_that_did_not_run_is_not_told():
    alarms = Alarms(LAYERS)
    for step in range(0, 2000, 50):
        one = reading(step)
        for values in one.values.values():
            values[4:8] = np.nan
        assert alarms.look(one) == []


@pytest.mark.parametrize("rule", DEFAULT, ids=lambda rule: rule.id)
def test_every_rule_gives_its_reason_in_both_languages(rule):
    assert all(rule.reason.to(language) and rule.sentence.to(language) for language in LANGUAGES)
    assert len({one.id for one in DEFAULT}) == len(DEFAULT)


def test_the_alarms_of_a_long_run_do_not_grow():
    alarms = Alarms(LAYERS)
    for step in range(0, 10_000, 50):
        alarms.look(reading(step))
    assert len(alarms._history.readings) == WINDOW
    assert {kept.shape for kept in alarms._history.early.values()} == {(2, len(LAYERS))}


def test_layers_that_are_met_later_forget_nothing():
    """What was told is not told again. Every layer has the early values of its own first readings."""
    fewer, hot = LAYERS[:-1], {"max_logit": (0, 200)}
    alarms, heads = Alarms(fewer), sum(layer.heads for layer in fewer)

    def narrow(one):
        return replace(one, values={name: values[:heads] for name, values in one.values.items()})

    def collapsed(step):
        found = told(alarms, [changed(reading(step), entropy=(slice(None), 0.01), **hot)])
        return {layer for _, rule, layer, _ in found if rule == "entropy-collapse"}

    assert told(alarms, [narrow(changed(reading(step), **hot)) for step in range(5)]) == [(0, "max-logit-100", 0, 0)]
    alarms.grow(LAYERS)
    assert told(alarms, [changed(reading(step), **hot) for step in range(5, 8)]) == []
    assert told(alarms, [narrow(changed(reading(8), **hot))]) == []  # of a store, from before the layer
    assert collapsed(9) == {layer.number for layer in fewer}
    assert told(alarms, [changed(reading(step), **hot) for step in range(10, 30)]) == []
    assert collapsed(30) == {layer.number for layer in LAYERS}
