"""What keeps a small GPT's loss down beyond the length it was trained at: nothing, log-n, YaRN's factor, or a tuned scale.

Byte-level GPTs are trained at 512 tokens on the Python sources and documents of this machine, one model a seed, with rotary
positions and with none. Then the same last tokens of held-out files are predicted after more and more context, up to 8,192
tokens, under each rule. The tuned factor is found by `isotherm tune`'s own search on files that the table is not made of.

    python benchmarks/length_study.py --out OUT [--quick] [--seeds 0 1 2] [--positions rope none]

writes OUT/length_study.json: a row for each kind of positions, seed, rule and length. `--quick` is a trial of the script, not
a measurement.
"""

import argparse
import hashlib
import json
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.scale import LogN, Site, YaRN
from isotherm.tuning.estimate import optimum
from isotherm.tuning.search import search

TEXT = (".py", ".rst", ".md", ".txt", ".pyi", ".html")
POSITIONS = ("rope", "yarn", "none")
"""Rotary positions as trained; the same model with YaRN's frequencies; a model without positions."""
RULES = ("constant", "log-n", "yarn", "tuned")


@dataclass(frozen=True)
class Study:
    """Sizes of the study."""

    trained: int = 512
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    seeds: int = 3
    steps: int = 1200
    batch: int = 64
    width: int = 384
    layers: int = 6
    heads: int = 6
    documents: int = 64
    scored: int = 256
    rate: float = 1e-3
    together: int = 2**18
    """Tokens of one forward."""


QUICK = Study(64, (64, 128, 256), 2, 30, 8, 64, 2, 2, 8, 16, 3e-3, 4096)


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, study: Study) -> None:
        super().__init__()
        self.heads = study.heads
        self.norms = nn.ModuleList(nn.RMSNorm(study.width) for _ in range(2))
        self.qkv = nn.Linear(study.width, 3 * study.width, bias=False)
        self.out = nn.Linear(study.width, study.width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(study.width, 4 * study.width, bias=False),
            nn.GELU(),
            nn.Linear(4 * study.width, study.width, bias=False),
        )

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, multiplier: Tensor | float) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if turn is not None:
            q, k = rotated(q, turn), rotated(k, turn)
        q = (q * multiplier).to(v.dtype)
        seen = F.scaled_dot_product_attention(q, k.to(v.dtype), v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class ByteGPT(nn.Module):
    """A GPT over bytes. `turn` are the angles of its rotary positions, None for a model without."""

    def __init__(self, study: Study) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, study.width)
        self.blocks = nn.ModuleList(Block(study) for _ in range(study.layers))
        self.norm = nn.RMSNorm(study.width)
        self.head = nn.Linear(study.width, 257, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(
                    weight, std=0.02 / (2 * study.layers) ** 0.5 if "out" in name or "mlp.2" in name else 0.02
                )

    def forward(
        self, ids: Tensor, turn: tuple[Tensor, Tensor] | None, multiplier: Tensor | float = 1.0, last: int | None = None
    ) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, turn, multiplier)
        return self.head(self.norm(x if last is None else x[:, -last:]))


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, H, T, D] with each pair of dimensions turned by its angle."""
    one, two = x.float().chunk(2, -1)
    cos, sin = turn
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


def angles(study: Study, length: int, kind: str, device: str) -> tuple[Tensor, Tensor] | None:
    """cos and sin [T, D/2]. YaRN (Peng et al. 2023, §3.2) divides slow frequencies by length/trained and keeps fast ones."""
    if kind == "none":
        return None
    d = study.width // study.heads
    frequency = 10000 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    if kind == "yarn" and length > study.trained:
        turns = study.trained * frequency / (2 * torch.pi)
        keep = ((turns - 1) / (32 - 1)).clamp(0, 1)
        frequency = frequency * (keep + (1 - keep) * study.trained / length)
    table = torch.arange(length, dtype=torch.float64).view(-1, 1) * frequency
    return table.cos().float().to(device), table.sin().float().to(device)


def multiplier(study: Study, rule: str, length: int, device: str) -> Tensor | float:
    """What a rule multiplies q with, besides 1/√d."""
    positions = torch.arange(length, device=device)
    site = Site(study.width // study.heads, study.heads, positions, positions + 1)
    if rule == "log-n":
        resolved = LogN(study.trained).resolve(site).multiplier
        assert isinstance(resolved, Tensor)
        return resolved.float()
    if rule == "yarn":
        return float(YaRN(length / study.trained).resolve(site).multiplier)  # type: ignore[arg-type]
    return 1.0


def files() -> Iterator[tuple[str, Path]]:
    """Every text file of the standard library and of installed packages, with the group it belongs to."""
    for place in dict.fromkeys(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")):
        for path in sorted(Path(place).rglob("*")):
            if (
                path.suffix in TEXT
                and path.is_file()
                and not (place.endswith(("python3", "lib")) and "packages" in path.parts)
            ):
                yield "/".join(path.relative_to(place).parts[:-1][:2]), path


def corpus(study: Study, most: int) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Bytes to train on [N], and documents [2·documents, longest + 1] from groups of files that are not trained on.

    Of a group, at most 8 documents are taken, and none of it is trained on. The first half tunes, the second half judges.
    """
    groups: dict[str, list[Path]] = {}
    for group, path in files():
        groups.setdefault(group, []).append(path)
    longest, held, documents = max(study.lengths) + 1, set(), list[bytes]()
    for group in sorted(groups, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        if len(documents) >= 2 * study.documents:
            break
        long = [path for path in groups[group] if path.stat().st_size >= longest]
        if long and len(groups[group]) <= 200:
            held.add(group)
            documents += [path.read_bytes()[:longest] for path in long[:8]]
    if len(documents) < 2 * study.documents:
        sys.exit(f"only {len(documents)} files of {longest} bytes")
    order = np.random.default_rng(0).permutation(len(documents))[: 2 * study.documents]
    chunks, size, seen = [], 0, set(documents)
    for group, paths in sorted(groups.items(), key=lambda pair: hashlib.sha256(pair[0][::-1].encode()).hexdigest()):
        for path in paths if group not in held else ():
            data = path.read_bytes()[: 2**18]
            if size < most and data not in seen:
                seen.add(data)
                chunks.append(data + b"\0")
                size += len(data)
    text = torch.frombuffer(bytearray(b"".join(chunks)), dtype=torch.uint8)
    held_out = torch.stack([torch.frombuffer(bytearray(documents[i]), dtype=torch.uint8) for i in order])
    return text, held_out, {"bytes": len(text), "groups": len(groups), "held_out_groups": len(held)}


def train(study: Study, text: Tensor, kind: str, seed: int, device: str) -> tuple[ByteGPT, list[float]]:
    """A model trained at `study.trained` tokens: AdamW, warm-up and cosine."""
    torch.manual_seed(seed)
    model = ByteGPT(study).to(device)
    turn = angles(study, study.trained, kind, device)
    optimizer = torch.optim.AdamW(model.parameters(), study.rate, (0.9, 0.95), weight_decay=0.1, fused=device == "cuda")
    chance, text, losses = torch.Generator(device).manual_seed(seed), text.to(device), []
    reach = torch.arange(study.trained + 1, device=device)
    for step in range(study.steps):
        done = step / study.steps
        rate = study.rate * min(1, (step + 1) / 50) * (0.55 + 0.45 * np.cos(np.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(text) - study.trained - 1, (study.batch, 1), generator=chance, device=device)
        ids = text[starts + reach].long()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(ids[:, :-1], turn)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99 or step == study.steps - 1:
            losses.append(round(loss.item(), 4))
    return model.eval(), losses


@torch.no_grad()
def held_out(study: Study, model: ByteGPT, documents: Tensor, length: int, kind: str, by: Tensor | float) -> np.ndarray:
    """Each document's mean loss over its last tokens, in nats a byte, with `length` tokens of context at most."""
    device = documents.device.type
    turn, found = angles(study, length, kind, device), []
    for part in documents[:, -length - 1 :].long().split(max(study.together // length, 1)):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(part[:, :-1], turn, by, study.scored).float()
        loss = F.cross_entropy(logits.transpose(1, 2), part[:, -study.scored :], reduction="none")
        found.append(loss.mean(1).double().cpu())
    return torch.cat(found).numpy()


def rows(study: Study, model: ByteGPT, documents: Tensor, kind: str, seed: int) -> Iterator[dict[str, object]]:
    """The judged documents' losses under every rule at every length, with the factor tuned on the others."""
    tuning, judged = documents.chunk(2)
    device = documents.device.type
    for length in study.lengths:
        found = optimum(search(lambda x, n=length: held_out(study, model, tuning, n, kind, float(np.exp(x)))))
        for rule in RULES:
            by = float(np.exp(found.x)) if rule == "tuned" else multiplier(study, rule, length, device)
            losses = held_out(study, model, judged, length, kind, by)
            row = {"positions": kind, "seed": seed, "rule": rule, "length": length, "loss": float(losses.mean())}
            row["losses"] = [round(float(loss), 5) for loss in losses]
            if rule == "tuned":
                row |= {
                    "factor": float(np.exp(found.x)),
                    "low": float(np.exp(found.low)),
                    "high": float(np.exp(found.high)),
                }
            yield row


def main() -> None:
    """Train, evaluate, write."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--seconds", type=float, default=230.0, help="start no new model after this many seconds")
    asked.add_argument("--seeds", type=int, nargs="+", help="which seeds to train; several runs may share the work")
    asked.add_argument("--positions", nargs="+", default=["rope", "none"], help="which kinds of models to train")
    asked.add_argument("--steps", type=int, help="how long to train each model")
    given = asked.parse_args()
    study, device = (QUICK if given.quick else Study()), "cuda" if torch.cuda.is_available() else "cpu"
    study = replace(study, steps=given.steps or study.steps)
    started = time.perf_counter()
    text, documents, about = corpus(study, 2**22 if given.quick else 2**27)
    documents, table, runs = documents.to(device), [], []
    print(f"corpus {about} in {time.perf_counter() - started:.0f} s", flush=True)
    for seed in given.seeds or range(study.seeds):
        for kind in given.positions:
            if time.perf_counter() - started > given.seconds:
                print(f"out of time before {kind}, seed {seed}", flush=True)
                continue
            begun = time.perf_counter()
            model, losses = train(study, text, kind, seed, device)
            trained = time.perf_counter() - begun
            runs.append({"positions": kind, "seed": seed, "training_losses": losses, "seconds": trained})
            for evaluated in ("rope", "yarn") if kind == "rope" else ("none",):
                table += rows(study, model, documents, evaluated, seed)
                for row in table[-len(study.lengths) * len(RULES) :]:
                    print(
                        row["positions"],
                        seed,
                        row["length"],
                        row["rule"],
                        round(row["loss"], 4),
                        row.get("factor"),
                        flush=True,
                    )
            print(
                f"{kind} seed {seed}: trained {trained:.0f} s, all {time.perf_counter() - begun:.0f} s, {losses[-1]}",
                flush=True,
            )
            name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
            result = {"study": asdict(replace(study)), "corpus": about, "device": name, "torch": torch.__version__}
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "length_study.json").write_text(json.dumps(result | {"runs": runs, "rows": table}))


if __name__ == "__main__":
    main()
