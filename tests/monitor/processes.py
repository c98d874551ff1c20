"""What one of two processes does in tests/monitor/test_ranks.py."""

import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from isotherm.monitor.monitor import watch
from isotherm.monitor.valve import Valve
from tests.monitor.loops import Model, batch

TAU = 0.5


class Split(nn.Module):
    """Attention with a projection for each of q, k and v, whose heads may be this process's only."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.size = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            made(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for made in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def built():
    torch.manual_seed(0)
    return Model(Split)


def ddp(model):
    return DistributedDataParallel(model)


def fsdp(model):
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp_half(model):
    mesh, policy = init_device_mesh("cpu", (2,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def tensor_parallel(model):
    plan = {f"layers.*.{name}_proj": ColwiseParallel() for name in "qkv"} | {"layers.*.out": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


WAYS = {one.__name__: one for one in (ddp, fsdp, fsdp_half, tensor_parallel)}


def trained(model, mine, valve=None, store=None):
    """Two steps on this process's part of a batch. Everything that was read, and the weights in the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    with warnings.catch_warnings(), watch(model, every=1, rows=None, valve=valve, store=store) as monitor:
        warnings.simplefilter("ignore")
        for step in range(2):
            given = mine(batch(step, 6))
            loss = (model(given) - given.roll(1, 1)).square().mean()
            loss.backward()
            monitor.log(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(monitor.latest)
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
    return {
        "layers": [(layer.name, layer.heads) for layer in monitor.layers],
        "readings": [(one.step, one.loss, one.values, one.gradients) for one in found],
        "events": [event.message.en for event in monitor.events],
        "weights": [one.detach().clone() for one in whole],
    }


def stopped(mine, folder):
    """Each step's wish to stop, where the first process hears of an alert, takes snapshots and wants to stop."""
    model = built()
    with torch.no_grad():
        model.layers[0].q_proj.weight.mul_(1e4)
    run, stops = ddp(model), []
    optimizer = torch.optim.SGD(run.parameters(), lr=0.0)

    def told(event):
        monitor.should_stop = True
        monitor.snapshot(event.layer, folder)

    with watch(run, every=2, on_alert=told) as monitor:
        for step in range(5):
            run(mine(batch(step, 6))).square().mean().backward()
            optimizer.step()
            stops.append(monitor.should_stop)
    return stops


def half_idle(mine, *, idle):
    """The gradients that a reading has where the last layer may be skipped, as an expert without a token is."""
    model, given = built(), mine(batch(0, 6))
    if idle:
        model.layers[1].forward = torch.zeros_like
    run = DistributedDataParallel(model, find_unused_parameters=True) if dist.is_initialized() else model
    with watch(run, every=1, rows=None) as monitor:
        (run(given) - given.roll(1, 1)).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    return monitor.latest.gradients


def experts(order, valve=None):
    """The readings of steps each of which runs one layer, the weights in the end, and what was told."""
    model, found = built(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings(), watch(model, every=1, rows=None, together=True, valve=valve) as monitor:
        warnings.simplefilter("ignore")
        for expert in order:
            model.layers[expert](batch(0)).square().mean().backward()
            optimizer.step()
            found.append(monitor.latest.values["max_logit"])
    weights = [one.detach().clone() for one in model.parameters()]
    return [layer.name for layer in monitor.layers], found, weights, [event.message.en for event in monitor.events]


def work(rank, folder):
    """One process: every way to train together, with and without the valve."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    done = {}
    for name, way in WAYS.items():
        mine = (lambda whole: whole) if name == "tensor_parallel" else (lambda whole: whole.chunk(2)[rank])
        for valve in (None, Valve(TAU)):
            try:
                done[name, valve is not None] = trained(
                    way(built()), mine, valve, f"{folder}/{name}-{valve is None}.db"
                )
            except Exception as error:
                done[name, valve is not None] = repr(error)
    done["stops"] = stopped(lambda whole: whole.chunk(2)[rank], f"{folder}/snapshots")
    done["half idle"] = half_idle(lambda whole: whole.chunk(2)[rank], idle=rank == 1)
    done["experts"] = experts([[0, 0, 0, 0], [0, 0, 1, 1]][rank])
    done["clipped experts"] = experts([[0, 1, 0, 1], [1, 1, 1, 1]][rank], Valve(TAU))
    torch.save(done, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
