"""A trained run, opened to translate or to read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.train import checkpoint as checkpoints
from isotherm.train.checkpoint import Say
from isotherm.train.config import PARALLEL, Config
from isotherm.train.evaluate import translate
from isotherm.train.learner import make_model, restore_model
from isotherm.train.processes import pick
from isotherm.train.run_folder import RunFolder
from isotherm.train.vocabulary import Vocabulary


@dataclass(frozen=True)
class Trained:
    """A trained model with its vocabulary, and how many steps it was trained for."""

    config: Config
    vocabulary: Vocabulary
    model: nn.Module
    step: int

    def translate(self, sentences: Sequence[str], *, width: int | None = None) -> list[str]:
        """Each sentence's translation; an empty one stays empty."""
        longest = 2 * self.config.data.length
        for place, ids in enumerate(self.vocabulary.encode(sentences), 1):
            if len(ids) > longest:
                why = Text(
                    "{n} tokens, and this model reads {longest} at most", "有 {n} 个词元，而该模型最多读 {longest} 个"
                )
                name = Text("sentence {place}", "第 {place} 句").format(place=place)
                raise InputError(name, why.format(n=len(ids), longest=longest))
        found = translate(self.model, self.vocabulary, sentences, width=width or self.config.run.beam)
        return [text if sentence.strip() else "" for text, sentence in zip(found, sentences, strict=True)]


def open_run(path: Path, *, device: str = "cpu", say: Say = lambda _: None) -> Trained:
    """The run in a folder, which learned to translate, at its last whole checkpoint; `say` is told of damaged ones passed
    over."""
    kind = _folder(path).config().data.kind
    if kind not in PARALLEL:
        why = Text("this run learned {kind}, not to translate", "这次训练学的是 {kind}，不是翻译")
        raise InputError(path, why.format(kind=kind))
    return open_any(path, device=device, say=say)


def open_any(path: Path, *, device: str = "cpu", say: Say = lambda _: None) -> Trained:
    """The run in a folder, whatever it learned."""
    place = pick(device, argument="--device")
    folder = _folder(path)
    config = folder.config()
    last = checkpoints.latest(folder.checkpoints, say)
    if last is None:
        why = Text(
            "no checkpoint yet; `isotherm train CONFIG.toml --out {path} --resume` goes on with it",
            "还没有检查点；可用 `isotherm train CONFIG.toml --out {path} --resume` 继续训练",
        )
        raise InputError(path, why.format(path=path))
    vocabulary = Vocabulary.load(folder.tokenizer)
    if vocabulary.digest != last.notes.vocabulary:
        why = Text(
            "not the vocabulary the checkpoint of step {step} was trained with",
            "不是第 {step} 步检查点训练时所用的词表",
        )
        raise InputError(folder.tokenizer, why.format(step=last.step))
    model = make_model(config, len(vocabulary))
    restore_model(model, last.tensors)
    return Trained(config, vocabulary, model.to(place).eval(), last.step)


def _folder(path: Path) -> RunFolder:
    if not os.path.isdir(path):  # False, not an error, for a name that no folder can have
        raise InputError(path, Text("there is no such run", "没有这次训练"))
    return RunFolder(path)
