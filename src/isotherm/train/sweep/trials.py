"""Which trials can be run, and which can train as one because they differ in numbers alone."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import get_args

from isotherm.errors import ArgumentError, named
from isotherm.language import Text
from isotherm.models.recurrent import ScoreKind
from isotherm.record.plain import from_plain, one_of
from isotherm.record.sweep import Trial
from isotherm.scale import parse
from isotherm.train.config import MOST_PARAMETERS

TASKS = ("copy", "reverse", "recall", "align", "lookup", "translation", "text")
FROM_CORPUS = ("translation", "text")
ONE_STREAM = ("lookup", "text")
MODELS = ("transformer", "decoder", "recurrent")


def check(trial: Trial) -> Trial:
    """The trial, if it can be run; an `ArgumentError` names the field that cannot."""
    from_plain(Trial, asdict(trial), where="")
    one_of("task", trial.task, TASKS)
    one_of("model", trial.model, MODELS)
    if trial.model == "recurrent":
        one_of("rule", trial.rule, get_args(ScoreKind))
    else:
        with named(scale="rule"):
            parse(trial.rule)
    rough = trial.layers * 16 * trial.width * max(trial.width, trial.heads * trial.d) + trial.vocabulary * trial.width
    if rough > MOST_PARAMETERS:
        most = Text("fewer than {n:.0e} parameters in all", "参数总数少于 {n:.0e}").format(n=MOST_PARAMETERS)
        raise ArgumentError("width, heads, layers", most, got=f"{rough:.0e}")
    if trial.model != "recurrent" and trial.head_dim is None and trial.width % trial.heads:
        raise ArgumentError("width", Text("a multiple of heads", "heads 的倍数"), got=trial.width)
    if trial.model == "recurrent" and trial.rule == "dot" and trial.init != 1:
        raise ArgumentError(
            "init", Text("1 for a dot product of the states themselves", "1（dot 直接取状态点积）"), got=trial.init
        )
    _check_task(trial)
    return trial


def _check_task(trial: Trial) -> None:
    if (trial.corpus is not None) != (trial.task in FROM_CORPUS):
        needs = (
            Text("a file for task {task}", "{task} 任务所用的文件")
            if trial.corpus is None
            else Text("nothing for task {task}, which makes its own examples", "{task} 任务自行生成样本，不应给出")
        )
        raise ArgumentError("corpus", needs.format(task=trial.task), got=repr(trial.corpus))
    if trial.task in ONE_STREAM and trial.model != "decoder":
        expected = Text("decoder for task {task}", "{task} 任务须为 decoder").format(task=trial.task)
        raise ArgumentError("model", expected, got=trial.model)
    if trial.task == "translation" and trial.test_lengths:
        raise ArgumentError(
            "test_lengths", Text("nothing for translation", "translation 任务不应给出"), got=trial.test_lengths
        )


def multiplier(trial: Trial) -> float | None:
    """The one number the trial's rule multiplies q·k by; None if it is a score, or more than a number.

    >>> multiplier(Trial(rule="1/sqrt(d)", width=64, heads=1)), multiplier(Trial(rule="log-n"))
    (0.125, None)
    """
    if trial.model == "recurrent":
        return None
    rule = parse(trial.rule)
    return None if rule.per_layer else rule.number(trial.d, trial.heads)


def groups(trials: Sequence[Trial], most: int) -> list[tuple[Trial, ...]]:
    """Trials that train together, at most `most` a group, in the order of their first.

    The groups depend on the trials alone, not on what has been run. So a sweep that is taken up again forms the same groups,
    and each model has the same neighbours, the same shapes and the same last bits.
    """
    found: dict[Trial, list[Trial]] = {}
    for trial in dict.fromkeys(trials):
        found.setdefault(_shape(trial), []).append(trial)
    return [tuple(alike[i : i + most]) for alike in found.values() for i in range(0, len(alike), most)]


def _shape(trial: Trial) -> Trial:
    """The trial without the numbers that may differ within a group."""
    rule = trial.rule if multiplier(trial) is None else "none"
    return replace(trial, rule=rule, lr=1.0, warmup=0, seed=0, init=1.0)
