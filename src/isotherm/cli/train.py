"""`isotherm train`: a model from a configuration; or the same model under several scale rules, side by side."""

import os
from pathlib import Path

import click

from isotherm.cli.command import command, option
from isotherm.errors import IsothermError
from isotherm.language import Text

ABOUT = Text(
    "Train a model as a TOML file describes it.\n\nThe run's folder holds metrics.jsonl, checkpoints, vocabulary and result."
    " Ctrl-C saves and stops; --resume goes on exactly where it stopped, also after a crash. Several GPUs: torchrun"
    " --nproc-per-node N -m isotherm train CONFIG.",
    "按 TOML 文件训练模型。\n\n训练文件夹中有 metrics.jsonl、检查点、词表与结果。Ctrl-C 会保存后停止；"
    "--resume 从停下之处精确继续，崩溃之后亦然。多 GPU：torchrun --nproc-per-node N -m isotherm train CONFIG。",
)


@command("train", ABOUT)
@click.argument("config")
@option(
    "--out",
    metavar="RUN",
    text=Text("Folder of the run (default: runs/ and the file's name).", "训练文件夹（默认 runs/ 加配置文件名）。"),
)
@option("--resume", is_flag=True, text=Text("Go on from the last whole checkpoint.", "从最后一个完整的检查点继续。"))
@option(
    "--rules",
    metavar="RULES",
    text=Text(
        "Train once under each of these scale rules, comma-separated, and compare.",
        "在这些缩放规则（逗号分隔）下各训练一次并比较。",
    ),
)
@option("--json", "as_json", is_flag=True, text=Text("Print one JSON document.", "输出一个 JSON 文档。"))
def train(config: str, out: str | None, resume: bool, rules: str | None, as_json: bool) -> int:
    """Read the configuration, train, and say what came of it. Of a machine's processes only the first complains."""
    folder, speaks = Path(out) if out else Path("runs") / Path(config).stem, os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        return _train(config, folder, rules, resume=resume, as_json=as_json)
    except IsothermError:
        if speaks:
            raise
        return 2
    except KeyboardInterrupt:
        told = Text(
            "stopped; what was saved before is kept, and --resume goes on from there",
            "已停止；此前存下的仍在，可用 --resume 由此继续",
        )
        if speaks:
            click.echo(str(told), err=True)
        return 130


def _train(config: str, folder: Path, rules: str | None, *, resume: bool, as_json: bool) -> int:
    from isotherm.cli.training import compare_rules, train_one
    from isotherm.train.config_file import load

    wanted = load(config)
    if rules is None:
        return train_one(wanted, folder, config, resume=resume, as_json=as_json)
    names = [name.strip() for name in rules.split(",")]
    return compare_rules(wanted, names, folder, config, resume=resume, as_json=as_json)
