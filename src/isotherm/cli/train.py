"""`isotherm train`: a model from a configuration, or the same model under several scale rules, side by side."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isotherm.cli.command import as_json, command, option
from isotherm.cli.output import print_json, say
from isotherm.errors import IsothermError
from isotherm.language import Text, current
from isotherm.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from isotherm.train.compare_rules import Contestant
    from isotherm.train.config import Config
    from isotherm.train.loop import TrainingEnd

ABOUT = Text(
    "Train a model as a TOML file describes it.\n\nThe run's folder holds metrics.jsonl, checkpoints, vocabulary and result."
    " Ctrl-C saves and stops; --resume continues exactly where the run stopped, also after a crash.\n\nOn several GPUs:"
    " torchrun --nproc-per-node N -m isotherm train CONFIG.",
    "按 TOML 文件训练模型。\n\n训练文件夹中有 metrics.jsonl、检查点、词表与结果。Ctrl-C 会保存后停止；"
    "--resume 从停下之处精确继续，崩溃之后亦然。\n\n多 GPU：torchrun --nproc-per-node N -m isotherm train CONFIG。",
)
INTERRUPTED = Text(
    "stopped; what was saved before is kept, and --resume continues from there",
    "已停止；此前存下的仍在，可用 --resume 由此继续",
)
SAVED = Text(
    "stopped and saved after step {step}; continue with: {again}", "已在第 {step} 步后保存并停止；继续：{again}"
)
SHOWN = 4  # sample translations


@command("train", ABOUT)
@click.argument("config")
@option(
    "--out",
    Text("Folder of the run (default: runs/ and the file's name).", "训练文件夹（默认 runs/ 加配置文件名）。"),
    metavar="RUN",
)
@option("--resume", Text("Continue from the last whole checkpoint.", "从最后一个完整的检查点继续。"), is_flag=True)
@option(
    "--rules",
    Text(
        "Train once under each of these scale rules, comma-separated, and compare.",
        "在这些缩放规则（逗号分隔）下各训练一次并比较。",
    ),
    metavar="RULES",
)
@as_json
def train(config: str, out: str | None, resume: bool, rules: str | None, as_json: bool) -> int:
    """Train, and show the result. If torchrun started several processes, only the first of each machine complains."""
    folder, speaks = Path(out) if out else Path("runs") / Path(config).stem, os.environ.get("LOCAL_RANK", "0") == "0"
    names = None if rules is None else [name.strip() for name in rules.split(",")]
    try:
        return _Training(config, folder, resume, as_json).run(names)
    except IsothermError:
        if speaks:
            raise
        return 2
    except KeyboardInterrupt:
        if speaks:
            say(INTERRUPTED)
        return 130


@dataclass(frozen=True)
class _Training:
    """The command line as typed."""

    file: str
    folder: Path
    resume: bool
    as_json: bool

    def run(self, rules: list[str] | None) -> int:
        from isotherm.train.config import load

        config = load(self.file)
        return self.train_one(config) if rules is None else self.compare_rules(config, rules)

    def train_one(self, config: "Config") -> int:
        """Train and show the result. Returns 128 plus the signal's number if a signal stopped the training."""
        from isotherm.train.loop import train

        outcome = train(config, self.folder, resume=self.resume)
        if outcome.stopped is not None:
            return _stopped(outcome, f"isotherm train {self.file} --out {self.folder} --resume")
        if not _first():
            return 0
        if self.as_json:
            print_json({"run": str(self.folder), **outcome.result})
        else:
            _show_result(config, self.folder, outcome.result)
        return 0

    def compare_rules(self, config: "Config", rules: list[str]) -> int:
        """Train under each rule, then show the curves, the numbers and a few translations."""
        from isotherm.train.compare_rules import compare

        comparison = compare(config, rules, self.folder, resume=self.resume)
        if comparison.stopped is not None:
            again = f"isotherm train {self.file} --rules '{','.join(rules)}' --out {self.folder} --resume"
            return _stopped(comparison.stopped, again)
        if not _first():
            return 0
        found = comparison.contestants
        if self.as_json:
            runs = [{"rule": it.rule, "run": str(it.folder), "curve": it.curve, **it.result} for it in found]
            print_json({"runs": runs})
        else:
            _show_comparison(config, found)
            say(Text("the curves as a picture: {path}", "曲线图：{path}").format(path=self.folder / "curves.svg"))
        return 0


def _stopped(outcome: "TrainingEnd", again: str) -> int:
    if _first():
        say(SAVED.format(step=outcome.step, again=again))
    return 128 + (outcome.stopped or 0)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _show_result(config: "Config", folder: Path, result: Any) -> None:
    from rich.console import Console

    from isotherm.train.compare_rules import LOSS
    from isotherm.train.config import PARALLEL

    console = Console(highlight=False, markup=False)
    console.print(str(Text("Run {path}", "训练 {path}").format(path=printable(str(folder)))))
    held_out = result["held_out"]
    if held_out is not None:
        console.print(f"  {LOSS}  {held_out['loss']:.3f}")
        if config.data.kind not in PARALLEL:
            console.print("  {}  {}".format(*_measure(config, held_out)))
    if "scores" in result:
        told = Text(
            "BLEU {bleu:.1f}, chrF {chrf:.1f} on {sentences} held-out sentences",
            "{sentences} 个留出句上 BLEU {bleu:.1f}，chrF {chrf:.1f}",
        )
        console.print(f"  {told.format(**result['scores'])}")
        _show_samples(console, [("", result)])
        hint = Text('isotherm translate {path} "…" translates', '可用 isotherm translate {path} "…" 翻译')
        console.print(f"  {hint.format(path=printable(str(folder)))}")


def _show_comparison(config: "Config", found: Sequence["Contestant"]) -> None:
    from rich.console import Console

    from isotherm.report.draw import terminal
    from isotherm.train.compare_rules import figure

    console = Console(highlight=False, markup=False)
    for line in terminal.draw(figure({one.rule: one.curve for one in found}), current(), min(console.width, 76)):
        console.print(line, no_wrap=True)
    console.print()
    console.print(_table(config, found))
    _show_samples(console, [(one.rule, one.result) for one in found])


def _measure(config: "Config", held_out: Any) -> tuple[Text, str]:
    """The perplexity of a model that continues text; the accuracy of one that does a task or fills gaps."""
    if config.data.kind == "text" and config.model.kind == "decoder":
        return Text("perplexity per token", "每词元困惑度"), f"{exp(min(held_out['loss'], 700.0)):.4g}"
    return Text("tokens right", "答对的词元"), f"{held_out['accuracy']:.1%}" if "accuracy" in held_out else "–"


def _table(config: "Config", found: Sequence["Contestant"]) -> "Table":
    from rich.table import Table

    from isotherm.train.config import PARALLEL

    table = Table(box=None, pad_edge=False, header_style="bold")
    translates = config.data.kind in PARALLEL
    headings = (
        Text("rule", "规则"),
        Text("held-out loss", "留出损失"),
        Text("gate p50", "闸门 p50"),
        Text("gate p10", "闸门 p10"),
        Text("largest logit", "最大 logit"),
        *(("BLEU", "chrF") if translates else (_measure(config, found[0].result["held_out"])[0],)),
    )
    for place, heading in enumerate(headings):
        table.add_column(str(heading), justify="right" if place else "left")
    for one in found:
        held_out, scores = one.result["held_out"], one.result.get("scores", {})
        cells = [f"{held_out['loss']:.3f}"]
        cells += [
            f"{held_out[name]:.2g}" if name in held_out else "–" for name in ("gate_p50", "gate_p10", "max_logit")
        ]
        if translates:
            cells += [f"{scores[name]:.1f}" if name in scores else "–" for name in ("bleu", "chrf")]
        else:
            cells.append(_measure(config, held_out)[1])
        table.add_row(one.rule, *cells)
    return table


def _show_samples(console: "Console", results: Sequence[tuple[str, Any]]) -> None:
    """Show a few held-out sentences, spread over the sample, with each run's translation."""
    from rich.cells import cell_len

    first = results[0][1].get("samples", [])
    for place in range(0, len(first), max(1, len(first) // SHOWN))[:SHOWN]:
        sample = first[place]
        console.print(f"\n  {printable(sample['source'])}", style="bold")
        rows = [(str(Text("reference", "参考")), sample["target"])]
        rows += [(name or str(Text("output", "输出")), result["samples"][place]["output"]) for name, result in results]
        width = max(12, *(cell_len(name) for name, _ in rows))
        for name, text in rows:
            console.print(f"    {name}{' ' * (width - cell_len(name))} {printable(text)}")
    console.print()
