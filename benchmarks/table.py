"""Writes the measured rows into docs/cost.md and docs/watch.md as tables, in both languages, and draws the figure.

python benchmarks/table.py
"""

import csv
import re
from pathlib import Path

HERE = Path(__file__).parent
HEADS = {
    "en": ("what", "n", "time ÷ PyTorch's kernel", "memory beyond inputs and outputs"),
    "zh": ("内容", "n", "时间 ÷ PyTorch 核函数", "输入输出之外的内存"),
}
WHAT = {
    "sdpa": ("PyTorch's kernel, no statistics", "PyTorch 核函数，无统计"),
    "isotherm exact": ("output and exact statistics of every row", "输出与每一行的精确统计"),
    "isotherm sampled 1/16": ("output, statistics of one row in 16", "输出与十六分之一行的统计"),
    "isotherm no statistics": ("our tiled implementation, no statistics", "我们的分块实现，无统计"),
    "materialised": ("weights held in memory, the same statistics", "保存权重矩阵后求同样的统计"),
}
CHECK_HEADS = {
    "en": ("model, tokens", "what", "time ÷ one forward", "memory beyond the model"),
    "zh": ("模型、词元数", "内容", "时间 ÷ 一次前向", "模型之外的内存"),
}
CHECK_WHAT = {
    "plain forward": ("one plain forward", "一次普通前向"),
    "check, exact": ("exact statistics, audit of scales, findings", "精确统计、缩放审计与发现"),
    "check, whole": ("the same with what-if, comparison of implementations, predictions", "再加假如、实现比较与预测"),
    "output_attentions": ("transformers' output_attentions and the same statistics", "output_attentions 加同样的统计"),
}


def rows(name: str) -> list[dict[str, str]]:
    """Read the measured rows of one benchmark."""
    with (HERE / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def tables(language: str) -> str:
    """Both CPU tables in Markdown."""
    which = 0 if language == "en" else 1
    attention = [
        (
            WHAT[row["provider"]][which],
            _keys(row, language),
            _ratio(row["ratio_to_sdpa"]),
            _mib(row["extra_mib"]),
        )
        for row in rows("attention_cpu")
    ]
    checks = [
        (
            row["model"],
            CHECK_WHAT[row["provider"]][which],
            f"{float(row['ratio_to_forward']):.2f}",
            _mib(row["extra_mib"]),
        )
        for row in rows("check_cpu")
    ]
    return "\n".join([*markdown(HEADS[language], attention), "", *markdown(CHECK_HEADS[language], checks)])


def _keys(row: dict[str, str], language: str) -> str:
    causal = (", causal" if language == "en" else "，因果") if row["causal"] == "True" else ""
    return f"{int(row['n']):,}{causal}"


def _ratio(text: str) -> str:
    return f"{float(text):.2f}" if text else "–"


def _mib(text: str) -> str:
    return f"{max(0.0, float(text)):,.0f} MiB"


def markdown(heads: tuple[str, ...], lines: list[tuple[str, ...]]) -> list[str]:
    """Format a table as lines of Markdown."""
    return [f"| {' | '.join(line)} |" for line in (heads, ("---",) * len(heads), *lines)]


def main() -> None:
    """Replace what is between the marks, and draw the figure."""
    import figure
    import table_gpu

    for language, suffix in (("en", "md"), ("zh", "zh.md")):
        costs = {
            "used": table_gpu.used(language),
            "measured": tables(language),
            "measured on a GPU": table_gpu.tables(language),
        }
        for name, marks in (("cost", costs), ("watch", {"watched": table_gpu.watched(language)})):
            path = HERE.parent / "docs" / f"{name}.{suffix}"
            text = path.read_text(encoding="utf-8")
            for mark, made in marks.items():
                marked = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.S)
                text = marked.sub(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)
            path.write_text(text, encoding="utf-8")
    figure.draw()


if __name__ == "__main__":
    main()
