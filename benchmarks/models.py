"""One training step (forward, backward, AdamW) of our models against PyTorch's and transformers' own of the same size.

    python benchmarks/models.py cpu
    python benchmarks/models.py cuda --commit $(git rev-parse --short HEAD) --out benchmarks/results

Both are built with the same weights and their outputs compared; then they take their steps in turns, so that whatever else
the machine does strikes both. Writes one tidy row per (model, provider, precision) to benchmarks/results/models_{device}.csv
with where it was measured beside it, and prints the ratios.
"""

import argparse
import csv
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from isotherm.models import Bert, Shape, Transformer, smoothed_cross_entropy
from isotherm.models.bert_checkpoint import our_name
from isotherm.models.embedding import Embedding
from isotherm.models.layers import TransformerLayer

HERE = Path(__file__).parent
THREADS = 2
GOAL = 1.05
HEADER = [
    "model", "provider", "precision", "batch", "length", "width", "layers",
    "ms_best", "ms_median", "ratio_best", "ratio_median", "output_difference",
]  # fmt: skip


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with our embedding around it, called the fastest way it knows: causal by flag, no weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.embedding = shape, Embedding(shape)
        with warnings.catch_warnings(action="ignore"):  # it warns that pre-norm has no fast path for inference
            self.transformer = nn.Transformer(
                shape.width,
                shape.heads,
                shape.layers,
                shape.layers,
                shape.inside,
                0.0,
                batch_first=True,
                norm_first=True,
            )
        later = nn.Transformer.generate_square_subsequent_mask(shape.longest)
        self.register_buffer("later", later.isneginf(), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits, as `Transformer` gives them."""
        padding, length = source == self.shape.pad, target.shape[1]
        x = self.transformer(
            self.embedding(source),
            self.embedding(target),
            tgt_mask=self.later[:length, :length],
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.embedding.logits(x)


@torch.no_grad()
def copy_transformer(ours: Transformer, theirs: TorchTransformer) -> None:
    """The same weights in both."""
    theirs.embedding.load_state_dict(ours.embedding.state_dict())
    for mine, its in ((ours.encoder, theirs.transformer.encoder), (ours.decoder, theirs.transformer.decoder)):
        its.norm.load_state_dict(mine.norm.state_dict())
        for layer, same in zip(mine.layers, its.layers, strict=True):
            copy_layer(layer, same)


def copy_layer(layer: TransformerLayer, theirs: nn.Module) -> None:
    """One layer: PyTorch keeps query, key and value in one matrix, and counts its norms."""
    parts = [(layer.attention, theirs.self_attn), *([(layer.cross, theirs.multihead_attn)] if layer.cross else [])]
    for part, attention in parts:
        three = (part.inner.query, part.inner.key, part.inner.value)
        attention.in_proj_weight.copy_(torch.cat([linear.weight for linear in three]))
        attention.in_proj_bias.copy_(torch.cat([linear.bias for linear in three]))
        attention.out_proj.load_state_dict(part.inner.out.state_dict())
    for index, part in enumerate([*(part for part, _ in parts), layer.feed_forward], 1):
        getattr(theirs, f"norm{index}").load_state_dict(part.norm.state_dict())
    theirs.linear1.load_state_dict(layer.feed_forward.inner[0].state_dict())
    theirs.linear2.load_state_dict(layer.feed_forward.inner[2].state_dict())


class TransformersBert(nn.Module):
    """transformers' `BertModel` with sdpa, its last hidden state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            num_attention_heads=shape.heads,
            num_hidden_layers=shape.layers,
            intermediate_size=shape.inside,
            max_position_embeddings=shape.longest,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Every token in its context, [B, T, W]."""
        return self.bert(tokens, mask).last_hidden_state


def copy_bert(ours: Bert, theirs: TransformersBert) -> None:
    """The same weights in both."""
    ours.load_state_dict({our_name(name): tensor for name, tensor in theirs.bert.state_dict().items()}, strict=False)


@dataclass(frozen=True)
class Case:
    """A pair of models of one shape, what they are given, and how their output becomes a loss."""

    model: str
    peer: str
    shape: Shape
    batch: int
    length: int

    def build(self, device: str) -> tuple[nn.Module, nn.Module]:
        """Ours and theirs with the same weights."""
        torch.manual_seed(0)
        if self.model == "Transformer":
            ours, theirs = Transformer(self.shape), TorchTransformer(self.shape)
            copy_transformer(ours, theirs)
            return ours.to(device), theirs.to(device)
        bert, hf = Bert(self.shape), TransformersBert(self.shape)
        copy_bert(bert, hf)
        return bert.to(device), hf.to(device)

    def inputs(self, device: str) -> tuple[Tensor, Tensor]:
        """Random words; one row in four has padding at its end."""
        generator = torch.Generator().manual_seed(1)
        ids = [
            torch.randint(1, self.shape.vocabulary, (self.batch, self.length), generator=generator) for _ in range(2)
        ]
        words = (
            torch.arange(self.length)
            < torch.where(torch.arange(self.batch) % 4 == 3, self.length - 5, self.length)[:, None]
        )
        first = (ids[0] * words).to(device)
        return first, (ids[1] if self.model == "Transformer" else words).to(device)

    def loss(self, out: Tensor, given: tuple[Tensor, Tensor]) -> Tensor:
        """A number to step down; the same work for both."""
        return smoothed_cross_entropy(out, given[1]) if self.model == "Transformer" else out.float().square().mean()


def cases(device: str) -> list[Case]:
    """Small enough for the device to take a few dozen steps in a minute."""
    torch_s, hf_s = "torch.nn.Transformer", "transformers BertModel (sdpa)"
    if device == "cpu":
        small = Shape(vocabulary=4001, width=256, heads=4, layers=2, longest=128)
        return [
            Case("Transformer", torch_s, small, 8, 64),
            Case("Bert", hf_s, replace(small, layers=4, norm="post"), 8, 64),
        ]
    base = Shape(vocabulary=32000, width=512, heads=8, layers=6, longest=512)
    bert = Shape(vocabulary=30522, width=768, heads=12, layers=12, longest=512, norm="post")
    small = Shape(vocabulary=4001, width=256, heads=4, layers=2, longest=128)
    return [
        Case("Transformer", torch_s, base, 64, 128),
        Case("Transformer", torch_s, small, 8, 64),
        Case("Bert", hf_s, bert, 32, 256),
        Case("Bert", hf_s, replace(small, layers=4, norm="post"), 8, 64),
    ]


def stepper(model: nn.Module, case: Case, device: str, precision: str) -> Callable[[], None]:
    """A function that takes one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    given = case.inputs(device)

    def low() -> AbstractContextManager[object]:
        return torch.autocast(device, torch.bfloat16) if precision == "bf16 autocast" else nullcontext()

    def step() -> None:
        with low():
            loss = case.loss(model(*given), given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@torch.no_grad()
def difference(ours: nn.Module, theirs: nn.Module, case: Case, device: str) -> float:
    """The largest difference of the outputs at words, in float32; fails if it is no rounding."""
    given = case.inputs(device)
    words = slice(None) if case.model == "Transformer" else given[1]
    largest = float((ours(*given) - theirs(*given))[words].abs().max())
    assert largest < 2e-4, (case, largest)
    return largest


def in_turns(steps: list[Callable[[], None]], device: str, seconds: float) -> list[list[float]]:
    """Milliseconds of each one's steps, taken in turns for about so long, after a few to warm up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[list[float]] = [[] for _ in steps]
    for step in steps * 3:
        step()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        order = range(len(steps)) if len(times[0]) % 2 else reversed(range(len(steps)))
        for which in order:
            wait()
            start = time.perf_counter()
            steps[which]()
            wait()
            times[which].append(1e3 * (time.perf_counter() - start))
    return times


def measure(case: Case, device: str, precision: str, seconds: float) -> list[list[object]]:
    """Two rows: ours and the peer's."""
    print(f"{case.model} {case.shape.width} × {case.shape.layers}, {precision} …", file=sys.stderr)
    ours, theirs = case.build(device)
    off = difference(ours, theirs, case, device)
    mine, its = in_turns([stepper(model, case, device, precision) for model in (ours, theirs)], device, seconds)
    size = [case.batch, case.length, case.shape.width, case.shape.layers]
    best, median = min(mine) / min(its), statistics.median(mine) / statistics.median(its)
    return [
        [case.model, "isotherm", precision, *size, min(mine), statistics.median(mine), best, median, off],
        [case.model, case.peer, precision, *size, min(its), statistics.median(its), 1.0, 1.0, off],
    ]


def provenance(device: str, commit: str | None) -> dict[str, str | int]:
    """Where and with what the numbers were measured."""
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = commit or subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    import transformers

    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "cpu": cpu or platform.processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def show(rows: list[list[object]], where: dict[str, str | int]) -> None:
    """The table a person reads."""
    table = Table(box=box.SIMPLE_HEAD, title=", ".join(f"{k} {v}" for k, v in where.items()), title_style="dim")
    for name in ("model", "size", "precision", "ours ms", "peer ms", "× peer, median", "× peer, best", "goal ≤ 1.05"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        model, _, precision, batch, length, width, layers, _, median, best, ratio, _ = ours
        met = "yes" if float(str(ratio)) <= GOAL else "no"
        table.add_row(
            f"{model} vs {theirs[1]}", f"{batch}×{length}, {width}×{layers}", str(precision),
            f"{median:.2f}", f"{theirs[8]:.2f}", f"{ratio:.3f}", f"{best:.3f}", met,
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    """Check, time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--commit", help="where there is no git to ask")
    given = parser.parse_args()
    device = given.device
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device")
    if device == "cpu":
        torch.set_num_threads(THREADS)
    precisions = ("float32",) if device == "cpu" else ("float32", "bf16 autocast")
    seconds = 20.0 if device == "cpu" else 4.0
    rows = [
        row for case in cases(device) for precision in precisions for row in measure(case, device, precision, seconds)
    ]
    where = provenance(device, given.commit)
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / f"models_{device}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows([[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    (given.out / f"models_{device}.json").write_text(json.dumps(where, indent=2) + "\n")
    show(rows, where)


if __name__ == "__main__":
    main()
