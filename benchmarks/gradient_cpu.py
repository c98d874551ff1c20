"""What the temperature gradient costs on a CPU, against one forward and backward pass of the same model on the same batch.

The passes take turns, and the least time of each counts: on a busy machine that is the one least disturbed. Prints a line of
JSON.

    python benchmarks/gradient_cpu.py [rounds]
"""

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from isotherm.checkup.measure import look
from isotherm.tuning.knobs import Knobs


def main(rounds: int) -> None:
    """Time both on a GPT-2 of 4 layers, 8 heads of 64, 2 × 256 tokens."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=5000, n_embd=512, n_layer=4, n_head=8, n_positions=256)).eval()
    batch = {"input_ids": torch.randint(5000, (2, 256))}

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(**batch).logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    with torch.no_grad():
        captures = look(model, batch).captures
    times: dict[str, list[float]] = {"plain": [], "gradient": []}
    for _ in range(rounds):
        times["plain"].append(timed(plain))
        with Knobs(model, captures, batch, ()) as knobs:
            leaves = knobs.leaves()
            times["gradient"].append(timed(lambda leaves=leaves: torch.autograd.grad(loss(), leaves)))
    least = {name: min(values) for name, values in times.items()}
    print(
        json.dumps({**least, "ratio": least["gradient"] / least["plain"], "rounds": rounds, "torch": torch.__version__})
    )


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
