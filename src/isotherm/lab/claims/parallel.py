"""Which sequence models have to wait for themselves: operations that must follow one another, counted, and time beside."""

from math import ceil, log2, sqrt

import torch
from torch import Tensor, nn

from isotherm import ops, scale
from isotherm.lab import recurrence
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import normal
from isotherm.lab.figures import IN_SEQUENCE, MILLISECONDS, POSITIONS, curve, figure
from isotherm.lab.interval import interval, over_seeds, slope
from isotherm.lab.mathml import bracket, equation, row, sub
from isotherm.lab.stopwatch import seconds, timed
from isotherm.lab.tally import depth
from isotherm.language import Text
from isotherm.record import Figure, Measured, Step

WAYS = ("attention", "gru", "linear-loop", "linear-scan", "generate")


def experiment(setting: Setting) -> Result:
    """Count the depth of each computation at each length, compare scan with loop, and time a training step."""
    lengths = setting["lengths"]
    depths = {way: [_depth(setting, way, n) for n in lengths] for way in WAYS}
    setting.progress(0.4)
    agree = [_disagreement(setting, lengths[-1], seed) for seed in range(setting["seeds"])]
    constant = len(set(depths["attention"])) == 1
    waits = {way: slope(lengths, depths[way]) >= 1 for way in ("gru", "linear-loop", "generate")}
    scans = interval(agree).high < 1e-10 and depths["linear-scan"][-1] < lengths[-1]
    timings, timing_figures = _timings(setting)
    holds = constant and waits["gru"]
    return conclude(
        holds and not scans,
        _sentence(lengths[-1], depths),
        _measured(setting, depths, agree, constant, waits["gru"], scans),
        [_figure(lengths, depths)],
        under=holds,
        condition=CONDITION,
        timings=timings,
        timing_figures=timing_figures,
    )


def _depth(setting: Setting, way: str, n: int) -> int:
    """Operations on the longest path from the first input to the last output."""
    d = setting["dimension"]
    generator = setting.generator(WAYS.index(way), n)
    first, others = normal((1, 1, d), generator).requires_grad_(), normal((1, n - 1, d), generator)
    states = torch.cat([first, others], 1)
    if way == "attention":
        return depth(_attend(setting, states, generator), first)
    if way == "generate":
        return depth(_generate(setting, first, n, generator), first)
    if way == "gru":
        layer, state = recurrence.weights([generator], d, 3), torch.zeros(1, 1, d, dtype=torch.float64)
        for t in range(n):
            state = recurrence.gru_step(layer, first if t == 0 else others[:, t - 1 : t], state)
        return depth(state, first)
    decay = torch.rand(1, n, d, generator=generator, dtype=torch.float64)
    return depth((loop if way == "linear-loop" else scan)(decay, states)[:, -1], first)


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
    setting: Setting, depths: dict[str, list[int]], agree: list[float], constant: bool, waits: bool, scans: bool
) -> tuple[Measured, ...]:
    lengths = setting["lengths"]
    n = lengths[-1]
    each = Text("more operations in sequence for each position: {name}", "每多一个位置，依次执行的运算增加：{name}")
    judged = {"attention": constant, "gru": waits, "linear-scan": not scans}
    numbers = [
        Measured(each.format(name=NAMES[way]), slope(lengths, depths[way]), holds=judged.get(way)) for way in WAYS
    ]
    rounds = ceil(log2(n))
    per_round = Text("operations in sequence per round of the scan", "并行扫描每一轮依次执行的运算数")
    numbers.append(Measured(per_round, depths["linear-scan"][-1] / rounds))
    same = Text("largest difference between scan and loop", "并行扫描与逐步循环的最大差值")
    numbers.append(over_seeds(same, agree, predicted=0.0))
    return tuple(numbers)


def _figure(lengths: tuple[int, ...], depths: dict[str, list[int]]) -> Figure:
    lines = (curve(NAMES[way], lengths, map(float, depths[way])) for way in WAYS)
    caption = Text(
        "Operations that must wait for one another, whatever the machine. Attention in training is level; a GRU climbs "
        "with n; a linear recurrence climbs or, computed as a scan, hardly does; attention that generates climbs too.",
        "无论机器如何都必须依次等待的运算数。训练中的注意力为常数；GRU 随 n 上升；线性递推逐步计算时上升，用并行扫描则"
        "几乎不升；逐词生成时注意力同样上升。",
    )
    return figure("parallel-depth", caption, POSITIONS, IN_SEQUENCE, lines, log="xy")


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
            timings.append(timed(TIME.format(name=NAMES[name], n=n, d=d), found))
    lines = (curve(NAMES[name], setting["timed"], y) for name, y in curves.items())
    caption = Text(
        "One layer, forward and backward, on this machine. On one core attention's n² work shows; on many, the GRU's "
        "waiting does.",
        "本机上一层的前向与反向：注意力随 n² 的计算量增长，GRU 随要等待的 n 步增长。",
    )
    return tuple(timings), (figure("parallel-time", caption, POSITIONS, MILLISECONDS, lines, log="xy"),)


def _sentence(n: int, depths: dict[str, list[int]]) -> Text:
    values = {"n": n, **{way.replace("-", "_"): depths[way][-1] for way in WAYS}}
    return Text(
        "At n = {n} a training pass of attention waits for {attention} operations in a row, as at any n; a GRU for "
        "{gru}; but a linear recurrence computed as a scan only for {linear_scan}, and attention that generates for "
        "{generate}.",
        "n = {n} 时，注意力的一次训练前向要依次等待 {attention} 个运算，与 n 无关；GRU 为 {gru} 个；但用并行扫描计算的"
        "线性递推只需 {linear_scan} 个，而逐词生成时注意力也要 {generate} 个。",
    ).format(**values)


NAMES = {
    "attention": Text("attention, training", "注意力，训练"),
    "gru": Text("GRU", "GRU"),
    "linear-loop": Text("linear recurrence, step by step", "线性递推，逐步计算"),
    "linear-scan": Text("linear recurrence, parallel scan", "线性递推，并行扫描"),
    "generate": Text("attention, generating", "注意力，逐词生成"),
}
TIME = Text("{name}, forward and backward, n = {n}, d = {d} (ms)", "{name}，前向与反向，n = {n}，d = {d}（毫秒）")
CONDITION = Text(
    "The recurrence is non-linear in its state (RNN, GRU, LSTM) and the whole sequence is known, as in training. A "
    "linear recurrence (S4, Mamba) trains in about log₂ n rounds, and attention that writes its own input waits n "
    "times too.",
    "递推对状态是非线性的（RNN、GRU、LSTM），且整个序列已知（如训练时）。线性递推（S4、Mamba）约 log₂ n 轮即可训练；而"
    "注意力在生成自己的输入时同样要等待 n 次。",
)
STEPS = (
    Step(
        Text("Every row of attention needs inputs only, no other row.", "注意力的每一行只需要输入，不需要别的行。"),
        equation("y_t", row("∑ p_tj v_j")),
    ),
    Step(
        Text("A recurrent state needs the one before it.", "循环网络的状态需要前一个状态。"),
        equation("h_t", row("f (", sub("h", "t − 1"), ", x_t )")),
    ),
    Step(
        Text(
            "If f is linear, two steps in a row are one step of the same kind, so neighbours can be joined in pairs: "
            "log₂ n rounds.",
            "若 f 是线性的，连续两步仍是同一种形式的一步，因此可两两合并：log₂ n 轮。",
        ),
        equation(row(bracket("a_2 , x_2"), "∘", bracket("a_1 , x_1")), bracket("a_2 a_1 , a_2 x_1 + x_2")),
    ),
)
CLAIM = Claim(
    id="parallel",
    title=Text("Attention trains in parallel, recurrence does not", "注意力可并行训练，循环网络不能"),
    question=Text("Why could transformers be trained at such scale?", "为什么 Transformer 能够大规模训练？"),
    statement=Text(
        "The parallelism of the transformer made training at large scale possible; a recurrent net must go through the "
        "positions one after another.",
        "transformer 的并行化让大规模的训练成为了可能；循环网络则必须逐个位置地递推。",
    ),
    sources=("002",),
    hypothesis=Text(
        "The longest chain of operations that wait for one another is the same for every n in attention, and grows by "
        "at least one for each position in every recurrence, however it is computed.",
        "必须依次等待的最长运算链，在注意力中对每个 n 都相同；而任何递推无论怎样计算，每多一个位置至少增加一个运算。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"lengths": (8, 16, 32, 64, 128, 256), "dimension": 16, "seeds": 5, "timed": (32, 128, 512), "repeats": 3},
    full={"dimension": 64, "timed": (32, 128, 512, 1024, 2048), "repeats": 9},
    steps=STEPS,
)
