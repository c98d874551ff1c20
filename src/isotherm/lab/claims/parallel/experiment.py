"""Which sequence models must compute one position after another: the longest chain of operations, and measured times."""

from math import log2, sqrt

import torch
from torch import Tensor, nn

from isotherm import ops, scale
from isotherm.lab import recurrence
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import normal
from isotherm.lab.figures import IN_SEQUENCE, MILLISECONDS, POSITIONS, curve, figure
from isotherm.lab.interval import interval, over_seeds, slope
from isotherm.lab.stopwatch import seconds, timed
from isotherm.lab.tally import depth, rounds
from isotherm.language import Text
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
PER_DOUBLING = 2.0
"""Operations in sequence that twice as many positions may add: one for a sum over them and one to spare."""
LOGARITHMIC = ("attention", "linear-scan")
"""Ways whose growth is told per doubling of n; that of the others is told per position."""
WAYS = ("attention", "gru", "linear-loop", "linear-scan", "generate")


def experiment(setting: Setting) -> Result:
    """Count the depth of each computation at each length, compare scan with loop, and time a training step."""
    lengths = setting["lengths"]
    depths = {way: [_depth(setting, way, n) for n in lengths] for way in WAYS}
    setting.progress(0.4)
    agree = [_disagreement(setting, lengths[-1], seed) for seed in range(setting["seeds"])]
    shallow = _per_doubling(lengths, depths["attention"]) <= PER_DOUBLING
    waits = {way: slope(lengths, depths[way]) >= 1 for way in ("gru", "linear-loop", "generate")}
    scans = interval(agree).high < 1e-10 and depths["linear-scan"][-1] < lengths[-1]
    timings, timing_figures = _timings(setting)
    holds = shallow and waits["gru"]
    return conclude(
        holds and not scans,
        _sentence(lengths[-1], depths),
        _measured(setting, depths, agree, shallow, waits["gru"], scans),
        [_figure(lengths, depths)],
        under=holds,
        condition=SAYS["condition"],
        timings=timings,
        timing_figures=timing_figures,
    )


def _per_doubling(lengths: tuple[int, ...], depths: list[int]) -> float:
    return slope([log2(n) for n in lengths], depths)


def _depth(setting: Setting, way: str, n: int) -> int:
    """Operations on the longest path from the first input to the last output; a sum over m numbers counts ⌈log₂ m⌉ more."""
    d = setting["dimension"]
    generator = setting.generator(WAYS.index(way), n)
    first, others = normal((1, 1, d), generator).requires_grad_(), normal((1, n - 1, d), generator)
    states = torch.cat([first, others], 1)
    if way == "attention":
        return depth(_attend(setting, states, generator), first, rounds)
    if way == "generate":
        return depth(_generate(setting, first, n, generator), first, rounds)
    if way == "gru":
        layer, state = recurrence.weights([generator], d, 3), torch.zeros(1, 1, d, dtype=torch.float64)
        for t in range(n):
            state = recurrence.gru_step(layer, first if t == 0 else others[:, t - 1 : t], state)
        return depth(state, first, rounds)
    decay = torch.rand(1, n, d, generator=generator, dtype=torch.float64)
    return depth((loop if way == "linear-loop" else scan)(decay, states)[:, -1], first, rounds)


def _attend(setting: Setting, states: Tensor, generator: torch.Generator) -> Tensor:
    d = setting["dimension"]
    q, k, v = ((states @ normal((d, d), generator) / sqrt(d)).unsqueeze(1) for _ in range(3))
    return ops.attention(q, k, v, scale=scale.InverseSqrt(), causal=True, impl="reference").output[:, 0, -1]


def _generate(setting: Setting, first: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Generate n positions with attention: each output is the next input, so the steps must follow one another."""
    d = setting["dimension"]
    weights = [normal((d, d), generator) / sqrt(d) for _ in range(3)]
    states = first
    for _ in range(n - 1):
        q, k, v = ((part @ w).unsqueeze(1) for part, w in zip((states[:, -1:], states, states), weights, strict=True))
        made = ops.attention(q, k, v, scale=scale.InverseSqrt(), impl="reference").output.squeeze(1)
        states = torch.cat([states, made], 1)
    return states[:, -1]


def loop(decay: Tensor, x: Tensor) -> Tensor:
    """h_t = a_t·h_{t−1} + x_t, one step after another; decay and x [B, n, d]."""
    states = [x[:, 0]]
    for t in range(1, x.shape[1]):
        states.append(decay[:, t] * states[-1] + x[:, t])
    return torch.stack(states, 1)


def scan(decay: Tensor, x: Tensor) -> Tensor:
    """The same in ⌈log₂ n⌉ rounds (Hillis & Steele 1986): two steps in a row are one step of the same kind."""
    reach = 1
    while reach < x.shape[1]:
        ones, zeros = torch.ones_like(decay[:, :reach]), torch.zeros_like(x[:, :reach])
        earlier_decay = torch.cat([ones, decay[:, :-reach]], 1)
        earlier = torch.cat([zeros, x[:, :-reach]], 1)
        decay, x = decay * earlier_decay, decay * earlier + x
        reach *= 2
    return x


def _disagreement(setting: Setting, n: int, seed: int) -> float:
    generator = setting.generator(99, seed)
    decay = torch.rand(2, n, setting["dimension"], generator=generator, dtype=torch.float64)
    x = normal((2, n, setting["dimension"]), generator)
    return (loop(decay, x) - scan(decay, x)).abs().max().item()


def _measured(
    setting: Setting, depths: dict[str, list[int]], agree: list[float], shallow: bool, waits: bool, scans: bool
) -> tuple[Measured, ...]:
    lengths = setting["lengths"]
    judged = {"attention": shallow, "gru": waits, "linear-scan": not scans}
    numbers = []
    for way in WAYS:
        name, growth = SAYS["per-position"], slope(lengths, depths[way])
        if way in LOGARITHMIC:
            name, growth = SAYS["per-doubling"], _per_doubling(lengths, depths[way])
        numbers.append(Measured(name.format(name=SAYS[f"way-{way}"]), growth, holds=judged.get(way)))
    numbers.append(over_seeds(SAYS["disagreement"], agree, predicted=0.0))
    return tuple(numbers)


def _figure(lengths: tuple[int, ...], depths: dict[str, list[int]]) -> Figure:
    lines = (curve(SAYS[f"way-{way}"], lengths, map(float, depths[way])) for way in WAYS)
    return figure("parallel-depth", SAYS["depth-caption"], POSITIONS, IN_SEQUENCE, lines, log="xy")


def _timings(setting: Setting) -> tuple[tuple[Measured, ...], tuple[Figure, ...]]:
    """Forward and backward of one layer over n positions."""
    d, device = setting["dimension"], setting.device
    with torch.random.fork_rng():
        torch.manual_seed(setting.seed)
        gru, project = nn.GRU(d, d, batch_first=True).to(device), nn.Linear(d, 3 * d).to(device)
    curves: dict[str, list[float]] = {"attention": [], "gru": []}
    timings = []
    for n in setting["timed"]:
        x = torch.randn(8, n, d, generator=setting.generator(5, n)).to(device)

        def attend(x: Tensor = x) -> None:
            q, k, v = (part.unsqueeze(1) for part in project(x).chunk(3, -1))
            ops.attention(q, k, v, causal=True).output.sum().backward()

        def recur(x: Tensor = x) -> None:
            gru(x)[0].sum().backward()

        for name, work in (("attention", attend), ("gru", recur)):
            found = seconds(work, setting["repeats"], device)
            curves[name].append(1e3 * found[len(found) // 2])
            timings.append(timed(SAYS["time"].format(name=SAYS[f"way-{name}"], n=n, d=d), found))
    lines = (curve(SAYS[f"way-{name}"], setting["timed"], y) for name, y in curves.items())
    return tuple(timings), (figure("parallel-time", SAYS["time-caption"], POSITIONS, MILLISECONDS, lines, log="xy"),)


def _sentence(n: int, depths: dict[str, list[int]]) -> Text:
    values = {"n": n, **{way.replace("-", "_"): depths[way][-1] for way in WAYS}}
    return SAYS["outcome"].format(**values)


CLAIM = SAYS.claim(
    id="parallel",
    sources=("002",),
    expected="conditional",
    experiment=experiment,
    quick={"lengths": (8, 16, 32, 64, 128, 256), "dimension": 16, "seeds": 5, "timed": (32, 128, 512), "repeats": 3},
    full={"dimension": 64, "timed": (32, 128, 512, 1024, 2048), "repeats": 9},
)
