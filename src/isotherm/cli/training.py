"""What `isotherm train` prints once it has trained: a run's result, or several rules beside one another."""

import json
import os
from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from isotherm.language import Text
from isotherm.train.compare_rules import LOSS, Contestant, compare
from isotherm.train.config import PARALLEL, Config
from isotherm.train.curves import plot
from isotherm.train.loop import TrainingEnd, train

SHOWN = 4  # sample translations


def train_one(config: Config, folder: Path, name: str, *, resume: bool, as_json: bool) -> int:
    """Train and show the result; 128 plus the signal's number if one stopped it."""
    outcome = train(config, folder, resume=resume)
    if outcome.stopped is not None:
        return _stopped(outcome, f"isotherm train {name} --out {folder} --resume")
    if not _first():
        return 0
    if as_json:
        click.echo(json.dumps({"run": str(folder), **outcome.result}, ensure_ascii=False, indent=2))
        return 0
    console = Console()
    console.print(str(Text("Run {path}", "训练 {path}").format(path=folder)), highlight=False, markup=False)
    held_out = outcome.result["held_out"]
    if held_out is not None:
        console.print(f"  {LOSS}  {held_out['loss']:.3f}", highlight=False)
        if config.data.kind not in PARALLEL:
            console.print("  {}  {}".format(*_measure(config, held_out)), highlight=False)
    if "scores" in outcome.result:
        console.print(f"  {_scores(outcome.result)}", highlight=False)
        _samples(console, [("", outcome.result)])
        hint = Text('isotherm translate {path} "…" translates', '可用 isotherm translate {path} "…" 翻译')
        console.print(f"  {hint.format(path=folder)}", highlight=False, markup=False)
    return 0


def compare_rules(config: Config, rules: Sequence[str], folder: Path, name: str, *, resume: bool, as_json: bool) -> int:
    """Train under each rule, then show the curves, the numbers and a few translations."""
    comparison = compare(config, rules, folder, resume=resume)
    if comparison.stopped is not None:
        again = f"isotherm train {name} --rules '{','.join(rules)}' --out {folder} --resume"
        return _stopped(comparison.stopped, again)
    if not _first():
        return 0
    found = comparison.contestants
    if as_json:
        plain = [{"rule": one.rule, "run": str(one.folder), "curve": one.curve.points, **one.result} for one in found]
        click.echo(json.dumps({"runs": plain}, ensure_ascii=False, indent=2))
        return 0
    console = Console()
    console.print(plot([one.curve for one in found], LOSS), highlight=False, markup=False, soft_wrap=True)
    console.print()
    console.print(_table(config, found))
    _samples(console, [(one.rule, one.result) for one in found])
    drawn = Text("the curves as a picture: {path}", "曲线图：{path}").format(path=folder / "curves.svg")
    click.echo(str(drawn), err=True)
    return 0


def _measure(config: Config, held_out: Any) -> tuple[Text, str]:
    """Of a model that continues text its perplexity, of one that does a task or fills gaps its accuracy."""
    if config.data.kind == "text" and config.model.kind == "decoder":
        return Text("perplexity per token", "每词元困惑度"), f"{exp(min(held_out['loss'], 700.0)):.4g}"
    return Text("tokens right", "答对的词元"), f"{held_out['accuracy']:.1%}" if "accuracy" in held_out else "–"


def _table(config: Config, found: Sequence[Contestant]) -> Table:
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


def _samples(console: Console, results: Sequence[tuple[str, dict[str, Any]]] | Sequence[tuple[str, Any]]) -> None:
    """A few held-out sentences, spread over the sample, and what each run made of them."""
    first = results[0][1].get("samples", [])
    for place in range(0, len(first), max(1, len(first) // SHOWN))[:SHOWN]:
        sample = first[place]
        console.print(f"\n  {sample['source']}", style="bold", highlight=False, markup=False)
        rows = [(str(Text("reference", "参考")), sample["target"])]
        rows += [(name or str(Text("output", "输出")), result["samples"][place]["output"]) for name, result in results]
        width = max(12, *(cell_len(name) for name, _ in rows))
        for name, text in rows:
            console.print(f"    {name}{' ' * (width - cell_len(name))} {text}", highlight=False, markup=False)
    console.print()


def _scores(result: Any) -> Text:
    scores = result["scores"]
    told = Text(
        "BLEU {bleu:.1f}, chrF {chrf:.1f} on {n} held-out sentences", "{n} 个留出句上 BLEU {bleu:.1f}，chrF {chrf:.1f}"
    )
    return told.format(bleu=scores["bleu"], chrf=scores["chrf"], n=scores["sentences"])


def _stopped(outcome: TrainingEnd, again: str) -> int:
    if _first():
        told = Text(
            "stopped and saved after step {step}; go on with: {again}", "已在第 {step} 步后保存并停止；继续：{again}"
        )
        click.echo(str(told.format(step=outcome.step, again=again)), err=True)
    return 128 + (outcome.stopped or 0)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"
