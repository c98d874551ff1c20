"""The GPU rows as the README shows them: a table by shape, a table by task, and what the figure draws."""

from math import exp, log
from statistics import fmean

from table import markdown, rows

Key = tuple[int, int, bool]
BY_SHAPE = {
    "en": (
        "d, n",
        "cuDNN, no statistics",
        "ours, all statistics",
        "FlexAttention, max and lse",
        "materialised, the same",
    ),
    "zh": ("d、n", "cuDNN，无统计", "我们的，全部统计", "FlexAttention，max 与 lse", "保存权重矩阵，同样的统计"),
}
BY_TASK = {
    "en": (
        "against cuDNN's forward, or forward and backward, without statistics",
        "geometric mean",
        "worst",
        "as plain calls",
        "worst",
    ),
    "zh": ("对照 cuDNN 不含统计的前向，或前向加反向", "几何平均", "最差", "普通调用", "最差"),
}
TASKS = {
    "forward": ("output and all statistics", "输出与全部统计"),
    "forward+backward": ("the same, and the gradients", "再加梯度"),
    "statistics": ("statistics alone", "只要统计"),
    "forward, unscaled": (
        "output and all statistics without 1/√d, when rows freeze",
        "不除以 √d、行被冻结时的输出与全部统计",
    ),
    "statistics, unscaled": ("statistics alone without 1/√d", "不除以 √d 时只要统计"),
    "sampled": ("statistics of 256 rows, n = 16,384", "256 行的统计，n = 16,384"),
}
TIMINGS = ("device", "call")
MEAN = {"en": "geometric mean", "zh": "几何平均"}
EIGHT = {
    "8 scales, half-octaves": (
        "statistics at eight scales, half an octave apart, against one scale",
        "八个相隔半个八度的缩放下的统计，对照一个缩放",
    ),
    "8 scales, evenly spaced": ("the same, evenly spaced", "同上，等间隔"),
    "8 scales, unrelated": (
        "the same, unrelated: none is the sum of two others, no two gaps are alike",
        "同上，互不相关：任何一个都不是另两个之和，间隔也各不相同",
    ),
    "8 scales, up to 1": (
        "the same, half-octaves up to 1, where rows freeze",
        "同上，相隔半个八度直到 1，行在那里被冻结",
    ),
    "8 scales, unrelated, up to 1": ("the same, unrelated and up to 1", "同上，互不相关且直到 1"),
    "32 scales, a curve": (
        "a curve of 32 scales in one pass, against one scale",
        "一遍算出 32 个缩放的曲线，对照一个缩放",
    ),
    "sampled, 8 scales, half-octaves": (
        "256 rows at eight scales, half an octave apart, against one scale, n = 16,384",
        "256 行在八个相隔半个八度的缩放下，对照一个缩放，n = 16,384",
    ),
    "sampled, 8 scales, evenly spaced": ("the same, evenly spaced", "同上，等间隔"),
    "sampled, 8 scales, unrelated": ("the same, unrelated", "同上，互不相关"),
    "sampled, 32 scales, a curve": ("the same, a curve of 32", "同上，32 个缩放的曲线"),
}


def measured(task: str, provider: str, column: str = "against_cudnn", timing: str = "device") -> dict[Key, float]:
    """One column by shape: graph replays, or plain calls where asked for or there is no graph (materialised weights)."""
    timing = "call" if provider == "eager" else timing
    found = {}
    for row in rows("h200"):
        if (row["task"], row["provider"], row["timing"]) == (task, provider, timing):
            found[int(row["d"]), int(row["n"]), row["causal"] == "True"] = float(row[column])
    return found


def against_one(task: str, timing: str) -> dict[Key, float]:
    """Several scales against one."""
    one = measured("sampled" if task.startswith("sampled") else "statistics", "isotherm", "p50", timing)
    return {shape: time / one[shape] for shape, time in measured(task, "isotherm", "p50", timing).items()}


def shown(task: str, ratios: dict[Key, float]) -> dict[Key, float]:
    """The shapes a task is told of: a sample of rows is for long ones."""
    return {shape: ratio for shape, ratio in ratios.items() if shape[1] == 16384 or not task.startswith("sampled")}


def mean(values: dict[Key, float]) -> float:
    """The geometric mean, which does not depend on what is divided by what."""
    return exp(fmean(map(log, values.values())))


def named(shape: Key, language: str) -> str:
    """A shape in words."""
    d, n, causal = shape
    return f"{d}, {n:,}{(', causal' if language == 'en' else '，因果') if causal else ''}"


def tables(language: str) -> str:
    """Both tables in Markdown."""
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
    tasks = []
    for task, names in TASKS.items():
        ways = [shown(task, measured(task, "isotherm", timing=timing)) for timing in TIMINGS]
        tasks.append((names[language == "zh"], *(f"{x:.3f}" for way in ways for x in (mean(way), max(way.values())))))
    for task, names in EIGHT.items():
        ways = [shown(task, against_one(task, timing)) for timing in TIMINGS]
        tasks.append((names[language == "zh"], *(f"{x:.2f}" for way in ways for x in (mean(way), max(way.values())))))
    return "\n".join([*markdown(BY_SHAPE[language], lines), "", *markdown(BY_TASK[language], tasks)])
