"""A real Ray cluster of two nodes on this machine, and a certain end to all its processes."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "ISOTHERM_TEST_NODE"
PATIENCE = 90.0
"""Seconds a node has to come up on a busy machine."""


class Cluster:
    """Two nodes with one CPU each. Their processes are known by a mark in their environment, which children inherit."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray puts sockets there, whose paths may not be long
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    def start(self) -> None:
        """The head node."""
        port = self.address.split(":")[1]
        self._node("head", "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.folder}")

    def join(self) -> None:
        """The worker node. Started after the driver has connected: of two nodes on one machine it may choose either."""
        self._node("worker", f"--address={self.address}")

    def _node(self, name: str, *arguments: str) -> None:
        quick = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "4"}
        # Otherwise a node asks for a token wherever Ray once left one in the home folder, and the driver brings none.
        alike = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        own = {MARK: f"{self.mark}-{name}", **alike, **quick}
        sizes = ("--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats")
        ray = [str(Path(sys.executable).parent / "ray"), "start", *arguments, *sizes]
        # In a session of its own: a raylet that ends signals process groups, and ours should not be among them.
        options = {"capture_output": True, "timeout": PATIENCE, "start_new_session": True}
        subprocess.run(ray, env={**os.environ, **own}, check=True, **options)

    def processes(self, named: str) -> dict[int, str]:
        """Living processes of this cluster whose command line holds these words, and the node each belongs to."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            for node in ("head", "worker"):
                if f"{MARK}={self.mark}-{node}".encode() in environment and command and named in command:
                    found[int(folder.name)] = node
        return found

    def wait_for(self, condition) -> None:
        """Until it holds, or fail."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the cluster did not get there in time"
            time.sleep(0.05)

    def kill(self, named: str, node: str) -> int:
        """End a node's processes with these words in their command line, without warning; how many there were."""
        found = [pid for pid, its_node in self.processes(named).items() if node in ("any", its_node)]
        for pid in found:
            with suppress(ProcessLookupError):  # some end by themselves when others do
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def stop(self) -> None:
        """Every process of this cluster, whatever it is doing."""
        for _ in range(20):
            if not self.kill("", "any"):
                return
            time.sleep(0.1)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A head node that others may join, gone afterwards with them whatever happens."""
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.stop()
        subprocess.run(["rm", "-rf", made.folder], check=False)
