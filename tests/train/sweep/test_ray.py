"""A sweep on a cluster of two nodes, of which one dies."""

import socket
import subprocess
import sys
import time

import pytest

from isotherm.errors import InputError, IsothermError
from isotherm.train.sweep import ray_executor as on_ray
from isotherm.train.sweep.run import How, run_sweep
from isotherm.train.sweep.spec import read_spec
from tests.train.sweep.nodes import cluster
from tests.train.sweep.small import SPEC

pytest.importorskip("ray", reason="ray is not installed (pip install 'isotherm[ray]')")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc")
DRIVER = """
import sys
from isotherm.train.sweep.run import How, run_sweep
from isotherm.train.sweep.spec import read_spec
run_sweep(read_spec(sys.argv[1]), sys.argv[2], How(executor="ray", address=sys.argv[3], together=2))
"""


@pytest.mark.slow
def test_a_sweep_survives_the_death_of_a_worker_and_of_a_node_and_equals_the_local_one(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.replace("steps = 5", "steps = 300"), encoding="utf-8")
    with cluster() as nodes:
        command = [sys.executable, "-c", DRIVER, str(path), str(tmp_path / "ray"), nodes.address]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            nodes.wait_for(lambda: nodes.processes("ray::work"))
            nodes.join()
            nodes.wait_for(lambda: set(nodes.processes("ray::work").values()) == {"head", "worker"})
            assert nodes.kill("ray::work", "head") == 1  # a process at work on one node dies,
            assert nodes.kill("", "worker") > 1  # then the whole other node
            assert driver.poll() is None, "the sweep was over before anything died"
            said = driver.communicate(timeout=120)
            more = ["--executor", "ray", "--address", nodes.address, "--gpus", "2"]
            call = [sys.executable, "-m", "isotherm", "sweep", str(path), "--store", str(tmp_path / "more"), *more]
            refused = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
        finally:
            driver.kill()
            driver.wait()
    assert driver.returncode == 0, said
    assert said == ("", "")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused
    assert "1 CPU and 2 GPU (--gpus); they have 1 CPU + 0 GPU" in refused.stderr
    spec = read_spec(path)
    there = run_sweep(spec, tmp_path / "ray", How(workers=1, together=2))
    here = run_sweep(spec, tmp_path / "local", How(workers=1, together=2))
    assert [outcome.numbers() for outcome in there.outcomes] == [outcome.numbers() for outcome in here.outcomes]
    assert {outcome.seconds for outcome in there.outcomes} != {outcome.seconds for outcome in here.outcomes}


@pytest.mark.parametrize(
    "listening", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["nobody there", "somebody else there"]
)
def test_an_address_where_no_cluster_answers_is_refused_within_seconds(listening):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listening:
            other.listen()
        started = time.monotonic()
        with (
            pytest.raises(InputError, match="no Ray cluster answers there"),
            on_ray._connected(f"127.0.0.1:{other.getsockname()[1]}"),
        ):
            pass
        assert time.monotonic() - started < 10


@pytest.mark.parametrize(("gpus", "fits"), [(0.0, True), (0.25, True), (1.0, True), (2.0, False)])
def test_more_than_any_living_node_has_is_refused(gpus, fits):
    nodes = [
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": True, "Resources": {"CPU": 5.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 7.0, "GPU": 8.0}},
    ]
    if fits:
        on_ray.check_room(nodes, gpus)
    else:
        with pytest.raises(IsothermError, match=r"1 CPU and 2 GPU .*they have 3 CPU \+ 0 GPU; 5 CPU \+ 1 GPU$"):
            on_ray.check_room(nodes, gpus)
    with pytest.raises(IsothermError, match=r"--gpus: expected a share of one GPU, or a whole number, got 1\.5"):
        on_ray.check_room(nodes, 1.5)
    with pytest.raises(IsothermError, match="no node of the cluster"):
        on_ray.check_room(nodes[2:], gpus)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", ":", "ray://127.0.0.1:1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InputError, match="no Ray cluster answers there"), on_ray._connected(address):
        pass
