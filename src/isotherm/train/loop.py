"""The training loop. It gives the same numbers whether it runs through, is stopped, or is killed and resumed.

What a step computes depends on the checkpointed state and the step's number alone: batches are a function of seed and
step, and the random states of every process are in the checkpoint.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isotherm.errors import InputError, IsothermError, named
from isotherm.language import Text
from isotherm.monitor.monitor import Monitor, watch
from isotherm.report.files import write_atomically
from isotherm.train import checkpoint as checkpoints
from isotherm.train.checkpoint import Checkpoint, Notes
from isotherm.train.config import PARALLEL, TASKS, Config
from isotherm.train.evaluate import gates, held_out_loss, score, translate
from isotherm.train.feeds import TrainingData, load_training_data
from isotherm.train.interrupt import Interrupt
from isotherm.train.learner import Learner, rate
from isotherm.train.processes import Processes, join, using_threads, within_memory
from isotherm.train.progress import Reporter
from isotherm.train.run_folder import RunFolder
from isotherm.train.vocabulary import Vocabulary, missing

TOO_LARGE = Text(
    "the run does not fit the memory of {device}: make [model], data.length or run.batch_tokens smaller",
    "{device} 的内存容不下这次训练：请缩小 [model]、data.length 或 run.batch_tokens",
)


@dataclass(frozen=True)
class TrainingEnd:
    """How a run ended: the signal that stopped it, or None and its result."""

    folder: Path
    step: int
    stopped: int | None
    result: Mapping[str, Any]


def train(config: Config, path: Path, *, resume: bool = False, title: str = "", quiet: bool = False) -> TrainingEnd:
    """Train what the configuration describes, in a folder of its own; `resume` goes on from its last whole checkpoint."""
    _check_packages(config)
    processes, folder = join(config.run.device), RunFolder(path)
    with ExitStack() as held:
        reporter = held.enter_context(Reporter(config.run.steps, quiet=quiet or not processes.first, title=title))
        held.enter_context(using_threads(config.run.threads))
        with processes.together():
            if processes.first:
                held.enter_context(folder.held())
            last = _open_run(config, folder, processes, reporter, resume=resume)
            vocabulary = Vocabulary.load(folder.tokenizer) if last is not None and folder.tokenizer.exists() else None
            fed = load_training_data(config, vocabulary)
            if processes.first and fed.vocabulary is not None and vocabulary is None:
                write_atomically(folder.tokenizer, fed.vocabulary.to_json())
        with within_memory(TOO_LARGE.format(device=processes.device)):
            with named(rule="model.rule"):
                learner = Learner(config, fed.size, processes)
            size = sum(weight.numel() for weight in learner.model.parameters())
            told = Text("{about}; {size:,} parameters", "{about}；{size:,} 个参数")
            reporter.say(told.format(about=fed.about, size=size))
            return Loop(config, folder, fed, learner, reporter).run(last)


def _check_packages(config: Config) -> None:
    """Refuse now if a package is missing that the run would need only at its end."""
    parallel = config.data.kind in PARALLEL
    needed = {
        "safetensors": True,
        "tokenizers": config.data.kind not in TASKS,
        "sacrebleu": parallel and config.run.samples,
    }
    for package, wanted in needed.items():
        if wanted and find_spec(package) is None:
            raise missing(package)


def _open_run(
    config: Config, folder: RunFolder, processes: Processes, reporter: Reporter, *, resume: bool
) -> Checkpoint | None:
    """The folder of a new run, or the last checkpoint of one. Only the first process writes."""
    if processes.first:
        folder.admit(config, resume=resume)
    last = checkpoints.latest(folder.checkpoints, reporter.say) if resume else None
    if last is not None and last.step > config.run.steps:
        why = Text(
            "trained for {done} steps already, and run.steps asks for {steps}",
            "已训练 {done} 步，而 run.steps 只要求 {steps} 步",
        )
        raise InputError(folder.path, why.format(done=last.step, steps=config.run.steps))
    if not processes.first:
        return last
    if not (resume and folder.begun):
        folder.write_config(config)
        return None
    folder.measured()  # a damaged file is refused before anything is written
    if last is None:
        reporter.say(Text("no checkpoint yet: from the start", "还没有检查点：从头开始"))
    else:
        reporter.say(Text("resuming after step {step}", "从第 {step} 步之后继续").format(step=last.step))
    return last


class Loop:
    """One run: a learner, what it is fed, and the folder its measurements and checkpoints go to."""

    def __init__(
        self, config: Config, folder: RunFolder, fed: TrainingData, learner: Learner, reporter: Reporter
    ) -> None:
        self.config, self.folder, self.fed, self.learner, self.reporter = config, folder, fed, learner, reporter
        self.processes = learner.processes
        self._losses: list[float] = []  # since the last line of metrics
        self._waiting: list[Tensor] = []  # the same, still on their way from the device
        self._tokens, self._since = 0, time.monotonic()
        self._saved = 0

    def run(self, last: Checkpoint | None) -> TrainingEnd:
        """From the last checkpoint, or the start, to the end or the first signal."""
        first = 0 if last is None else self._restore(last)
        run = self.config.run
        with self.processes.together():
            if self.processes.first and self.folder.begun:
                self.folder.write_config(self.config)  # it may ask for more steps than before
                self.folder.rewind(first)
        self.reporter.begin(first)
        with Interrupt().listening() as interrupt, self._watching(first) as monitor:
            for step in range(first + 1, run.steps + 1):
                norm = self._step(step)
                monitor.log(self._waiting[-1])
                ends = step == run.steps
                if step % run.log_every == 0 or ends:
                    self._log(step, norm)
                if ends or _due(step, run.evaluate_every):
                    self._evaluate(step)
                asked = self._stop_signal(step, interrupt)
                if asked or ends or _due(step, run.checkpoint_every):
                    self._save(step)
                if asked:
                    return TrainingEnd(self.folder.path, step, asked, {})
        return TrainingEnd(self.folder.path, run.steps, None, self._finish())

    @contextmanager
    def _watching(self, first: int) -> Iterator[Monitor]:
        """Watch attention's temperature. Not watched are compiled models, whose steps would have to run uncompiled, and
        recurrent ones, which may score without a product of queries and keys."""
        run = self.config.run
        every = 0 if run.compile or self.config.model.kind == "recurrent" else run.watch_every
        monitor = watch(
            self.learner.model,
            every=every or run.steps + 1,
            store=self.folder.watched if every and self.processes.first else None,
            together=self.processes.world > 1,
            scaler=self.learner.scaler,
        )
        if not every:
            yield monitor
            return
        monitor.start(first)
        try:
            yield monitor
        finally:
            monitor.stop()

    def _step(self, step: int) -> Tensor:
        run, processes = self.config.run, self.processes
        batch = self.fed.feed.batch(step - 1)
        parts = processes.world * run.accumulate
        pieces = [batch.part(place * processes.world + processes.rank, parts) for place in range(run.accumulate)]
        lr = rate(self.config.optimizer, step, run.steps)
        loss, norm = self.learner.step(pieces, batch.tokens, lr)
        self._waiting.append(loss)
        self._tokens += batch.tokens
        return norm

    def _fetch_losses(self, step: int) -> None:
        """Fetch the losses since the last line of metrics, each summed over all processes; refuse one that is not finite."""
        if self._waiting:
            self._losses += self.processes.total(torch.stack(self._waiting).cpu().double()).tolist()
            self._waiting = []
        for loss in self._losses:
            if not isfinite(loss):
                why = Text(
                    "the loss became {loss} before step {step}: a smaller optimizer.lr, a longer warmup or another"
                    " model.rule may help, in a new folder (--out); {saved}",
                    "第 {step} 步之前损失变为 {loss}：可用 --out 另指定文件夹，试更小的 optimizer.lr、更长的 warmup"
                    " 或另一条 model.rule；{saved}",
                )
                saved = (
                    Text("the last checkpoint is of step {n}", "最后的检查点在第 {n} 步").format(n=self._saved)
                    if self._saved
                    else Text("nothing was saved yet", "尚未存下检查点")
                )
                raise IsothermError(why.format(loss=loss, step=step, saved=saved))

    def _log(self, step: int, norm: Tensor) -> None:
        self._fetch_losses(step)
        loss = sum(self._losses) / len(self._losses)
        now = time.monotonic()
        speed = self._tokens / max(now - self._since, 1e-9)
        line = {
            "kind": "train",
            "step": step,
            "loss": loss,
            "lr": rate(self.config.optimizer, step, self.config.run.steps),
            "gradient_norm": norm.item(),
            "tokens_per_second": speed,
        }
        if self.processes.first:
            self.folder.record(line)
        self.reporter.trained(step, loss, speed)
        self._losses, self._tokens, self._since = [], 0, now

    def _evaluate(self, step: int) -> None:
        feed, most = self.fed.feed, self.config.run.evaluate_batches
        loss, accuracy = held_out_loss(self.learner, feed, most)
        if self.processes.first:
            seen = gates(self.learner.model, next(iter(feed.held_out(1))), self.processes.device)
            told = {} if seen is None else {"gate_p50": seen.p50, "gate_p10": seen.p10, "max_logit": seen.max_logit}
            self.folder.record({"kind": "held_out", "step": step, "loss": loss, "accuracy": accuracy, **told})
            self.reporter.measured(step, loss, None if seen is None else seen.p50)

    def _stop_signal(self, step: int, interrupt: Interrupt) -> int | None:
        """The signal that asked to stop. Several processes agree on it every `log_every` steps: that waits for the device."""
        if self.processes.world == 1:
            return interrupt.asked
        if step % self.config.run.log_every:
            return None
        told = self.processes.gather(torch.tensor(interrupt.asked or 0))
        return max(int(one) for one in told) or None

    def _save(self, step: int) -> None:
        self._fetch_losses(step)
        tensors = self.learner.tensors() | self._random()
        with self.processes.together():
            if self.processes.first:
                checkpoints.save(self.folder.checkpoints, Checkpoint(step, tensors, self._notes()))
        self._saved = step

    def _notes(self) -> Notes:
        vocabulary = None if self.fed.vocabulary is None else self.fed.vocabulary.digest
        return Notes(vocabulary, self.fed.digest, self.processes.world, tuple(self._losses))

    def _random(self) -> dict[str, Tensor]:
        """The random states of every process, by rank."""
        states = {"cpu": torch.get_rng_state()}
        if self.processes.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.processes.device)
        return {
            f"random.{kind}.{rank}": state
            for kind, mine in states.items()
            for rank, state in enumerate(self.processes.gather(mine))
        }

    def _restore(self, last: Checkpoint) -> int:
        self._check_same_data(last)
        self.learner.restore(last.tensors)
        rank = self.processes.rank
        if f"random.cpu.{rank}" in last.tensors:
            torch.set_rng_state(last.tensors[f"random.cpu.{rank}"])
        if self.processes.device.type == "cuda" and f"random.cuda.{rank}" in last.tensors:
            torch.cuda.set_rng_state(last.tensors[f"random.cuda.{rank}"], self.processes.device)
        self._losses = list(last.notes.losses)
        self._saved = last.step
        return last.step

    def _check_same_data(self, last: Checkpoint) -> None:
        """Refuse a checkpoint that was made with another vocabulary or text."""
        for name, text in (
            ("vocabulary", Text("vocabulary (tokenizer.json)", "词表（tokenizer.json）")),
            ("data", Text("text", "文本")),
        ):
            if getattr(last.notes, name) != getattr(self._notes(), name):
                why = Text(
                    "the checkpoint of step {step} was made with another {what}; put it back, or start anew with --out",
                    "第 {step} 步的检查点用的是另一个{what}；请恢复原状，或用 --out 重新开始",
                )
                raise InputError(self.folder.path, why.format(step=last.step, what=text))

    def _finish(self) -> dict[str, Any]:
        """The first process writes and returns the result: last measurements, and scores of translated held-out sentences."""
        if not self.processes.first:
            return {}
        lines = self.folder.measured()
        held_out = [line for line in lines if line["kind"] == "held_out"]
        result: dict[str, Any] = {"steps": self.config.run.steps, "held_out": held_out[-1] if held_out else None}
        count = min(self.config.run.samples, len(self.fed.held_out))
        if count and self.fed.vocabulary is not None:
            result |= self._translations(self.fed.vocabulary, count)
        self.folder.finish(result)
        return result

    def _translations(self, vocabulary: Vocabulary, count: int) -> dict[str, Any]:
        sources = vocabulary.encode([pair.source for pair in self.fed.held_out])
        longest = self.config.data.length
        short = [pair for pair, ids in zip(self.fed.held_out, sources, strict=True) if len(ids) <= longest]
        chosen = short[:: max(1, len(short) // count)][:count]
        outputs = translate(
            self.learner.model, vocabulary, [pair.source for pair in chosen], width=self.config.run.beam
        )
        scores = score(outputs, [pair.target for pair in chosen], self.config.data.lang)
        samples = [asdict(pair) | {"output": output} for pair, output in zip(chosen, outputs, strict=True)]
        return {"scores": asdict(scores) | {"sentences": len(chosen)}, "samples": samples}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
