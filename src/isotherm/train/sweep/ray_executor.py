"""Train groups on a Ray cluster. What a worker or node was training when it died is trained again elsewhere.

Ray starts a lost task again by itself (`max_retries`); a task it gives up on is submitted again. The numbers do not depend
on where or how often a group ran: it is always the same group, with the same number of threads.
"""

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.language import Text
from isotherm.train.sweep.group_job import ATTEMPTS, Done, Group, Job, by_cost, gave_up, unwrap, work

ANSWERS_WITHIN = 5.0
"""Seconds a cluster has to answer."""
SETTINGS = b"\x04"
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS + bytes(5)
"""How an HTTP/2 client begins (RFC 9113, §3.4): the preface and an empty settings frame."""
MISSING = Text(
    "a Ray cluster needs ray: pip install 'isotherm[ray]'", "使用 Ray 集群需要 ray：pip install 'isotherm[ray]'"
)
SILENT = Text(
    "no Ray cluster answers there (start one with: ray start --head)",
    "该地址没有 Ray 集群应答（可用 ray start --head 启动）",
)
TOO_SMALL = Text(
    "no node of the cluster has what a group takes, 1 CPU and {gpus:g} GPU (--gpus); they have {have}",
    "集群中没有节点具备每组所需的 1 个 CPU 与 {gpus:g} 块 GPU（--gpus）；现有 {have}",
)


def run_on_ray(
    groups: Sequence[Group], job: Job, *, address: str | None, gpus: float, workers: int | None, done: Done
) -> None:
    """Train every group on the cluster at `address` (None: RAY_ADDRESS, or the one on this machine).

    A group takes one CPU and `gpus` of a GPU (a fraction lets several share it); `workers` limits how many run at once.
    """
    with _connected(address) as ray:
        check_room(ray.nodes(), gpus)
        task = ray.remote(work).options(num_cpus=1, num_gpus=gpus, max_retries=ATTEMPTS)
        shared = ray.put(job)
        waiting = by_cost(groups)
        running: dict[Any, Group] = {}
        attempts = Counter[Group]()
        try:
            while waiting or running:
                while waiting and (workers is None or len(running) < workers):
                    group = waiting.pop(0)
                    running[task.remote(group, shared)] = group
                finished, _ = ray.wait(list(running), num_returns=1)
                for reference in finished:
                    group = running.pop(reference)
                    try:
                        answer = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:  # the training itself failed: it would fail again
                        raise gave_up(group, error.cause or error) from error
                    except ray.exceptions.RayError as error:
                        attempts[group] += 1
                        if attempts[group] > ATTEMPTS:
                            raise gave_up(group, type(error).__name__) from error
                        waiting.append(group)
                        continue
                    done(unwrap(answer))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def check_room(nodes: Sequence[Mapping[str, Any]], gpus: float) -> None:
    """Refuse to ask for more than any living node has: Ray itself would wait for such a node without a word."""
    if gpus > 1 and not gpus.is_integer():
        raise ArgumentError(
            "--gpus", Text("a share of one GPU, or a whole number", "一块 GPU 的份额，或整数"), got=gpus
        )
    sizes = [tuple(node["Resources"].get(kind, 0.0) for kind in ("CPU", "GPU")) for node in nodes if node["Alive"]]
    if not any(cpu >= 1 and gpu >= gpus for cpu, gpu in sizes):
        have = "; ".join(f"{cpu:g} CPU + {gpu:g} GPU" for cpu, gpu in sizes)
        raise IsothermError(TOO_SMALL.format(gpus=gpus, have=have))


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster that answers, and disconnected at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise IsothermError(MISSING) from None
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    if where != "auto":
        _answers(where)
    try:
        ray.init(address=where, logging_level=logging.ERROR, log_to_driver=False, ignore_reinit_error=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(where, SILENT) from error
    # Ray reports dying nodes on standard output, some of them while shutting down; standard output is for results.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            yield ray
        finally:
            ray.shutdown()


def _answers(address: str) -> None:
    """Refuse an address where no gRPC server answers, as every Ray server does; Ray itself would try for two minutes.

    An HTTP/2 server answers a client's preface with its settings at once: a frame whose type, the fourth byte, is 4.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWERS_WITHIN) as connection:
            connection.sendall(HELLO)
            answer = connection.recv(9)
    except (OSError, ValueError):
        answer = b""
    if answer[3:4] != SETTINGS:
        raise InputError(address, SILENT)
