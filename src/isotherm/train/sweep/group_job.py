"""Train one group in another process or on another node: what it needs, and what it returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from isotherm.errors import IsothermError
from isotherm.language import Text
from isotherm.record.sweep import Trial, TrialOutcome
from isotherm.train.processes import using_threads, within_memory
from isotherm.train.sweep.examples import Corpora
from isotherm.train.sweep.group_training import Tick, train_group

ATTEMPTS = 3
"""How often a group is started again after the process or node that trained it died."""
Group = tuple[Trial, ...]
Done = Callable[[Sequence[TrialOutcome]], object]


@dataclass(frozen=True)
class Job:
    """What all groups of a sweep have in common. On a CPU the number of threads is fixed, since it decides last bits."""

    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    corpora: Corpora = field(default_factory=dict)


def work(group: Group, job: Job, tick: Tick = lambda _steps: None) -> list[TrialOutcome] | Text:
    """Train a group. An `IsothermError` is returned as its sentence, since exceptions do not pickle well."""
    too_large = Text(
        "{n} models of width {width} do not fit the device's memory together; try a smaller --together",
        "{n} 个宽度为 {width} 的模型无法同时放入设备内存；请减小 --together",
    ).format(n=len(group), width=group[0].width)
    try:
        with using_threads(job.threads), within_memory(too_large):
            return train_group(group, device=job.device, precision=job.precision, corpora=job.corpora, progress=tick)
    except IsothermError as error:
        return error.text


def unwrap(answer: list[TrialOutcome] | Text) -> list[TrialOutcome]:
    """The outcomes; a sentence is raised as an error here."""
    if isinstance(answer, Text):
        raise IsothermError(answer)
    return answer


def gave_up(group: Group, why: object) -> IsothermError:
    """The error for a group whose workers keep dying."""
    text = Text(
        "{n} trials of rule {rule} were lost {times} times with the process that trained them ({why})",
        "规则 {rule} 的 {n} 次训练随所在进程丢失了 {times} 次（{why}）",
    )
    return IsothermError(text.format(n=len(group), rule=group[0].rule, times=ATTEMPTS + 1, why=why))


def by_cost(groups: Sequence[Group]) -> list[Group]:
    """The longest first, so that no worker is left with a long one at the end."""

    def cost(group: Group) -> float:
        trial = group[0]
        return len(group) * trial.steps * trial.batch * trial.length * trial.layers * float(trial.width + trial.d) ** 2

    return sorted(groups, key=cost, reverse=True)
