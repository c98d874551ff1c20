"""Tables of docs/cost.md and docs/watch.md from the measured GPU rows: what a user calls, kernels by shape, by task and at
several scales, watched runs. The figure uses the same rows."""

from collections.abc import Callable
from math import exp, log
from statistics import fmean

from table import markdown, rows

Key = tuple[int, int, bool]
"""Head dimension, number of keys, causal."""
BY_SHAPE = {
    "en": (
        "d, n",
        "cuDNN, no statistics",
        "ours, all statistics",
        "FlexAttention, max and lse",
        "weights held in memory, all statistics",
    ),
    "zh": ("d、n", "cuDNN，无统计", "我们的，全部统计", "FlexAttention，max 与 lse", "保存权重矩阵，全部统计"),
}
BY_TASK = {
    "en": ("time ÷ cuDNN without statistics", "geometric mean", "worst", "plain calls", "worst"),
    "zh": ("用时 ÷ cuDNN（不含统计）", "几何平均", "最差", "普通调用", "最差"),
}
AT_SCALES = {
    "en": ("time ÷ the same at one scale", "geometric mean", "worst", "plain calls", "worst"),
    "zh": ("用时 ÷ 同样的统计在一个缩放下", "几何平均", "最差", "普通调用", "最差"),
}
TASKS = {
    "forward": ("output and all statistics", "输出与全部统计"),
    "forward+backward": ("output, all statistics and gradients", "输出、全部统计与梯度"),
    "statistics": ("statistics alone", "只要统计"),
    "forward, unscaled": (
        "output and all statistics without 1/√d (rows freeze)",
        "不除以 √d（行被冻结）时的输出与全部统计",
    ),
    "statistics, unscaled": ("statistics alone without 1/√d (rows freeze)", "不除以 √d（行被冻结）时只要统计"),
    "sampled": ("statistics of 256 rows, n = 16,384", "256 行的统计，n = 16,384"),
}
TIMINGS = ("device", "call")
MEAN = {"en": "geometric mean", "zh": "几何平均"}
SCALES = {
    "8 scales, half-octaves": ("eight scales, half an octave apart", "八个缩放，相隔半个八度"),
    "8 scales, evenly spaced": ("eight scales, evenly spaced", "八个缩放，等间隔"),
    "8 scales, unrelated": ("eight scales with no simple relation to each other", "八个缩放，彼此没有简单关系"),
    "8 scales, up to 1": (
        "eight scales, half an octave apart, up to 1 (rows freeze)",
        "八个缩放，相隔半个八度，直到 1（行被冻结）",
    ),
    "8 scales, unrelated, up to 1": (
        "eight scales with no simple relation, up to 1 (rows freeze)",
        "八个缩放，没有简单关系，直到 1（行被冻结）",
    ),
    "32 scales, a curve": ("32 scales, evenly spaced", "32 个缩放，等间隔"),
    "sampled, 8 scales, half-octaves": (
        "256 rows, n = 16,384: eight scales, half an octave apart",
        "256 行，n = 16,384：八个缩放，相隔半个八度",
    ),
    "sampled, 8 scales, evenly spaced": (
        "256 rows, n = 16,384: eight scales, evenly spaced",
        "256 行，n = 16,384：八个缩放，等间隔",
    ),
    "sampled, 8 scales, unrelated": (
        "256 rows, n = 16,384: eight scales with no simple relation",
        "256 行，n = 16,384：八个缩放，没有简单关系",
    ),
    "sampled, 32 scales, a curve": (
        "256 rows, n = 16,384: 32 scales, evenly spaced",
        "256 行，n = 16,384：32 个缩放，等间隔",
    ),
}


CHECKS = {
    "en": (
        "check of a Llama, tokens",
        "one forward",
        "without what-if and comparison ÷ forward",
        "whole ÷ forward",
        "peak memory of both ÷ the forward's",
    ),
    "zh": (
        "检查一个 Llama，词元数",
        "一次前向",
        "不含假如与比较 ÷ 前向",
        "整个检查 ÷ 前向",
        "二者的显存峰值 ÷ 前向的",
    ),
}
TRAINING = {
    "en": ("a training step of GPT-2 small, 16 × 1,024 tokens", "eight queued", "each waited for"),
    "zh": ("GPT-2 small 的一个训练步，16 × 1,024 个词元", "八步排队", "逐步等待"),
}
WAYS = {
    "statistics": ("statistics of every row", "每一行的统计"),
    "64 rows": ("statistics of 64 rows of each head", "每头 64 行的统计"),
}
STEPS = {"eager": ("eager", "未编译"), "compiled": ("compiled", "编译")}
CALLS = {
    "en": ("`attention`, plain calls", "output and statistics", "with gradients", "`rows=64`"),
    "zh": ("`attention`，普通调用", "输出与统计", "含梯度", "`rows=64`"),
}
SHAPES = {
    "en": ("shapes, graph replays", "output and statistics", "compared with"),
    "zh": ("形状，CUDA 图重放", "输出与统计", "相比于"),
}
PEERS = {"sdpa": "`scaled_dot_product_attention`", "flex": "FlexAttention"}
IN_CHINESE = {
    "16 documents, ": "16 篇文档，",
    "a window of 1,024, ": "窗口 1,024，",
    " heads, ": " 头，",
    ", causal": "，因果",
    ", n ": "，n ",
    ", v ": "，v ",
}
WATCHED = {
    "en": ("GPT-2 small, 16 × 1,024 tokens", "a step is read every", "rows of each head", "time", "memory"),
    "zh": ("GPT-2 small，16 × 1,024 个词元", "读数间隔（步）", "每头的行数", "时间", "内存"),
}
ALL = {"en": "all", "zh": "全部"}


def measured(task: str, provider: str, column: str = "against_cudnn", timing: str = "device") -> dict[Key, float]:
    """Read one column by shape: graph replays by default, always plain calls for weights held in memory."""
    timing = "call" if provider == "eager" else timing
    found = {}
    for row in rows("h200"):
        if (row["task"], row["provider"], row["timing"]) == (task, provider, timing):
            found[int(row["d"]), int(row["n"]), row["causal"] == "True"] = float(row[column])
    return found


def against_one(task: str, timing: str) -> dict[Key, float]:
    """Divide the time at several scales by the time at one."""
    one = measured("sampled" if task.startswith("sampled") else "statistics", "isotherm", "p50", timing)
    return {shape: time / one[shape] for shape, time in measured(task, "isotherm", "p50", timing).items()}


def shown(task: str, ratios: dict[Key, float]) -> dict[Key, float]:
    """Keep the shapes that a task is shown for. Sampled rows are shown for long sequences only."""
    return {shape: ratio for shape, ratio in ratios.items() if shape[1] == 16384 or not task.startswith("sampled")}


def mean(values: dict[Key, float]) -> float:
    """Return the geometric mean."""
    return exp(fmean(map(log, values.values())))


def named(shape: Key, language: str) -> str:
    """Describe a shape in words."""
    d, n, causal = shape
    return f"{d}, {n:,}{(', causal' if language == 'en' else '，因果') if causal else ''}"


def tables(language: str) -> str:
    """All three tables in Markdown."""
    cudnn, memory = measured("forward", "cudnn", "p50"), measured("forward", "eager", "extra_mib")
    ours, flex, eager = (measured("forward", provider) for provider in ("isotherm", "flex", "eager"))
    ours_memory = measured("forward", "isotherm", "extra_mib")
    lines = [
        (
            named(shape, language),
            f"{cudnn[shape]:.2f} ms",
            f"**{ours[shape]:.2f}**, {ours_memory[shape]:.0f} MiB",
            f"{flex[shape]:.2f}",
            f"{eager[shape]:.0f}, {memory[shape] / 1024:.0f} GiB",
        )
        for shape in cudnn
    ]
    lines.append((MEAN[language], "", f"**{mean(ours):.3f}**", f"{mean(flex):.2f}", f"{mean(eager):.0f}"))
    tasks = [
        (
            names[language == "zh"],
            *_summary(task, lambda timing, task=task: measured(task, "isotherm", timing=timing), 3),
        )
        for task, names in TASKS.items()
    ]
    scales = [
        (names[language == "zh"], *_summary(task, lambda timing, task=task: against_one(task, timing), 2))
        for task, names in SCALES.items()
    ]
    parts = (BY_SHAPE, lines), (BY_TASK, tasks), (AT_SCALES, scales)
    return "\n\n".join("\n".join(markdown(heads[language], body)) for heads, body in parts)


def used(language: str) -> str:
    """What a user waits for, in Markdown: checks, training steps, plain calls, and shapes of many models."""
    which = language == "zh"
    found = {(int(row["n"]), row["what"]): row for row in rows("check_gpu")}
    checks = [
        (
            f"{n:,}",
            f"{float(found[n, 'forward']['ms']):,.0f} ms",
            *(f"{float(found[n, what]['ratio_to_forward']):.2f}" for what in ("look", "whole")),
            " · ".join(f"{float(found[n, what]['ratio_of_peak']):.2f}" for what in ("look", "whole")),
        )
        for n, what in found
        if what == "forward"
    ]
    ratios = {(row["what"], row["way"]): f"{float(row['ratio']):.2f}" for row in rows("training_gpu")}
    training = [
        (
            f"{step[which]}{'，' if which else ', '}{words[which]}",
            *(ratios[f"GPT-2 small, 16 × 1,024, {name}, {how}", way] for how in TRAINING["en"][1:]),
        )
        for name, step in STEPS.items()
        for way, words in WAYS.items()
    ]
    shapes = dict.fromkeys(row["what"].partition(", with")[0] for row in rows("training_gpu") if row["kind"] == "calls")
    calls = [
        (
            shape,
            ratios[shape, "statistics"],
            ratios[f"{shape}, with backward", "statistics"],
            ratios[shape, "64 rows"],
        )
        for shape in shapes
    ]
    peers = {row["what"]: row["way"] for row in rows("shapes_gpu") if row["way"] in PEERS}
    replays = [
        (described(row["what"], language), f"{float(row['ratio']):.2f}", PEERS[peers[row["what"]]])
        for row in rows("shapes_gpu")
        if row["way"] == "statistics"
    ]
    parts = (CHECKS, checks), (TRAINING, training), (CALLS, calls), (SHAPES, replays)
    return "\n\n".join("\n".join(markdown(heads[language], body)) for heads, body in parts)


def described(what: str, language: str) -> str:
    """A shape in words."""
    for english, chinese in IN_CHINESE.items() if language == "zh" else ():
        what = what.replace(english, chinese)
    return what


def watched(language: str) -> str:
    """What a monitor costs a training run, in Markdown."""
    lines = [
        (
            STEPS[row["way"]][language == "zh"],
            row["every"],
            ALL[language] if row["rows"] == "all" else row["rows"],
            f"{float(row['ratio']):.3f} ×",
            f"{float(row['memory_ratio']):.2f} ×",
        )
        for row in rows("watch_gpu")
    ]
    return "\n".join(markdown(WATCHED[language], lines))


def _summary(task: str, ratios: Callable[[str], dict[Key, float]], digits: int) -> list[str]:
    """Geometric mean and worst ratio over the shapes, as graph replays and as plain calls."""
    ways = [shown(task, ratios(timing)) for timing in TIMINGS]
    return [f"{x:.{digits}f}" for way in ways for x in (mean(way), max(way.values()))]
