"""The README's figure, drawn from the measured rows: what each way to attention costs against cuDNN's without statistics."""

from warnings import catch_warnings

from matplotlib import rc_context
from matplotlib.figure import Figure

import table_gpu
from isotherm.report.draw.palette import INK, PAPER, QUIET, RULE, SERIES, Theme
from table import HERE

FOLDER = HERE.parent / "docs"
WAYS = {
    "isotherm": ("ours: output and all statistics, exact", "我们的：输出与全部统计，精确", "o"),
    "flex": ("FlexAttention: output, max, lse", "FlexAttention：输出、max、lse", "s"),
    "flash": ("SDPA's flash kernel: output", "SDPA 的 flash 核函数：输出", "^"),
    "identities": ("stock kernels three times: lse, entropy, collision", "现成核函数三次：lse、熵、碰撞概率", "D"),
    "eager": ("weights in memory: the same statistics", "保存权重矩阵：同样的统计", "X"),
}
AXIS = (
    "time ÷ cuDNN's attention without statistics (H200, bf16, logarithmic)",
    "用时 ÷ cuDNN 不含统计的注意力（H200，bf16，对数）",
)
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "isotherm", "font.family": "sans-serif", "font.size": 10.5}


def draw() -> None:
    """One file for each language and theme."""
    for language in ("en", "zh"):
        for theme in ("light", "dark"):
            _draw(language, theme, f"h200-{theme}{'.zh' if language == 'zh' else ''}.svg")


def _draw(language: str, theme: Theme, name: str) -> None:
    chinese = language == "zh"
    shapes = list(table_gpu.measured("forward", "cudnn"))
    with rc_context(STYLE), catch_warnings(action="ignore", category=UserWarning):  # glyphs are the reader's, not ours
        page = Figure(figsize=(9.2, 4.9), facecolor=PAPER[theme], layout="constrained")
        plane = page.add_subplot(facecolor=PAPER[theme])
        for (way, (english, translated, marker)), colour in zip(WAYS.items(), SERIES[theme], strict=False):
            ratios = table_gpu.measured("forward", way)
            places = [shapes.index(shape) for shape in ratios]
            label = translated if chinese else english
            plane.plot(
                list(ratios.values()),
                places,
                marker,
                color=colour,
                markersize=8,
                label=label,
                zorder=5 if way == "isotherm" else 3,
            )
            if way == "isotherm":
                for place, ratio in zip(places, ratios.values(), strict=True):
                    plane.text(
                        ratio, place - 0.42, f"{ratio:.2f}", color=colour, ha="center", va="center", fontsize=9,
                        bbox={"facecolor": PAPER[theme], "edgecolor": "none", "pad": 0.6}, zorder=4,
                    )  # fmt: skip
        plane.axvline(1, color=QUIET[theme], linewidth=1)
        plane.set(xscale="log", xlim=(0.9, 160), ylim=(len(shapes) - 0.4, -0.7), xlabel=AXIS[chinese], ylabel="d, n")
        plane.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        plane.minorticks_off()
        plane.set_yticks(range(len(shapes)), [table_gpu.named(shape, language) for shape in shapes])
        plane.grid(axis="both", color=RULE[theme], linewidth=0.7, zorder=0)
        plane.tick_params(colors=QUIET[theme], length=0)
        for axis in (plane.xaxis, plane.yaxis):
            axis.label.set_color(QUIET[theme])
        for side in plane.spines.values():
            side.set_visible(False)
        page.legend(loc="outside upper left", ncols=2, frameon=False, labelcolor=INK[theme], fontsize=9.5)
        page.savefig(FOLDER / name, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
